#pragma once

#include <fulmen/fulmen.h>

#include <functional>
#include <string>
#include <vector>

namespace fulmen {

/// A run in which everything that could be lost by a stop matters: dropout, batch normalization,
/// augmentation, shuffling in worker threads, accumulation with a tail, step and plateau
/// schedulers, epoch metrics, a callback with state.
struct ResumableOptions {
  std::filesystem::path folder;
  ValidationInterval val_check_interval = {};
  std::int64_t max_epochs = 3;
  bool save_on_exception = false;
  std::optional<std::int64_t> every_n_train_steps = {};
  std::vector<std::shared_ptr<Callback>> callbacks = {};
  bool manual = false;
  SignalHandling signals = SignalHandling::kNone;
};

/// Where the module of a run calls out, so that a test can stop it there: "training_step",
/// "validation_step", ...
using Probe = std::function<void(const std::string& where)>;

/// Everything a finished run leaves, as text with exact bits.
struct RunRecord {
  std::vector<std::string> batches;      ///< Of each training batch: samples, loss, learning rate.
  std::vector<std::string> validations;  ///< Of each validation: the metric.
  std::string end;                       ///< Weights, optimizer state, counters, metrics.
};

class ResumableRun {
 public:
  ResumableRun(ResumableOptions options, Probe probe = {});
  ~ResumableRun();
  FitResult fit(const std::string& checkpoint = {}, Restore restore = Restore::kEverything);
  Trainer& trainer();
  ModelCheckpoint& checkpoints();
  const RunRecord& record() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace fulmen
