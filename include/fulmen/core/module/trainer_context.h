#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/core/metrics/log_options.h"
#include "fulmen/fwd.h"

namespace fulmen {

struct OptimizerConfig;

/// Which entry point runs.
enum class Stage { kFit, kValidate, kTest, kPredict };
/// "fit", "validate", "test", "predict".
std::string_view to_string(Stage stage);

/// Counters that survive a restart.
struct Progress {
  std::int64_t epoch = 0;  ///< Completed epochs: the index of the one that runs.
  std::int64_t batch_idx =
      0;  ///< Completed training batches of this epoch: the index of the one that runs.
  std::int64_t total_batches = 0;  ///< Completed training batches of all epochs.
  std::int64_t global_step = 0;    ///< Optimizer steps taken; one for all optimizers of a batch.
  std::int64_t skipped_steps =
      0;  ///< Updates left out because gradients or the loss were not finite.
};

/// What a run was told and found out. Constant while it runs, but for the batch counts.
struct RunPlan {
  std::optional<std::int64_t> max_epochs = {};
  std::optional<std::int64_t> max_steps = {};
  std::optional<std::int64_t> train_batches = {};  ///< Of an epoch; empty: unknown or no training.
  std::vector<std::optional<std::int64_t>> eval_batches =
      {};  ///< Of each loader of the evaluation that runs.
  std::int64_t log_every_n_steps = 50;
  bool has_validation = false;           ///< Validation runs during this fit.
  bool validates_once_per_epoch = true;  ///< At the end of each epoch, and only there.
  bool fast_dev_run = false;
  std::filesystem::path default_root_dir = ".";
};

enum class CheckpointScope { kEverything, kWeightsOnly };

/// The part of the Trainer that callbacks and modules use. The Trainer implements it; tests use a
/// fake. Call from the trainer's thread only, but for request_stop.
class TrainerContext {
 public:
  virtual Stage stage() const = 0;
  /// In the sanity check before training: nothing is logged, saved or decided.
  virtual bool sanity_checking() const = 0;
  virtual const Progress& progress() const = 0;
  virtual const RunPlan& plan() const = 0;

  /// A metric by name among callback_metrics(); reads it from the device. Empty if it was not
  /// logged yet.
  virtual std::optional<double> metric(std::string_view name) const = 0;
  /// All of them, read from the device now. callback: step and epoch values under their plain names
  /// too; progress bar: those with prog_bar; logged: what goes to loggers.
  virtual std::map<std::string, double> callback_metrics() const = 0;
  virtual std::map<std::string, double> progress_bar_metrics() const = 0;
  virtual std::map<std::string, double> logged_metrics() const = 0;
  /// Records a scalar, as LightningModule::log does.
  virtual void log_value(std::string_view name,
                         const at::Tensor& value,
                         const LogOptions& options) = 0;
  virtual void log_value(std::string_view name, double value, const LogOptions& options) = 0;

  /// Ends the fit after this window of micro-batches as Lightning's should_stop does: validation
  /// and epoch-end hooks run once, and not before min_epochs and min_steps.
  virtual void stop_training(std::string_view reason) = 0;
  /// Writes a checkpoint directory that must not exist yet. Collective: every rank calls it.
  virtual void save_checkpoint(const std::filesystem::path& directory,
                               CheckpointScope scope = CheckpointScope::kEverything) = 0;
  /// From the next window on.
  virtual void set_accumulate_grad_batches(std::int64_t micro_batches) = 0;
  /// Optimizer steps of the whole fit, for schedules that need to know: windows of an epoch times
  /// max_epochs, at most max_steps. Empty if the run or its training loader has no known length.
  /// May ask for that loader early.
  virtual std::optional<std::int64_t> estimated_stepping_batches() = 0;

  virtual std::span<const OptimizerConfig> optimizer_configs() const = 0;
  virtual std::span<const std::shared_ptr<Logger>> loggers() const = 0;
  virtual Strategy& strategy() = 0;
  virtual Log& log() = 0;
  /// The checkpoint this run was restored from; empty if none.
  virtual std::filesystem::path restored_from() const = 0;

 protected:
  ~TrainerContext() = default;
};

}  // namespace fulmen
