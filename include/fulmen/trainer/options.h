#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulmen/core/optim/clip_algorithm.h"
#include "fulmen/core/optim/precision.h"
#include "fulmen/core/support/log.h"
#include "fulmen/fwd.h"

namespace fulmen {

using Seconds = std::chrono::duration<double>;

/// How many batches of an epoch are used. Lightning's 1 and 1.0 mean different things; here the
/// function says which.
class BatchLimit {
 public:
  enum class Kind { kAll, kBatches, kFraction };
  BatchLimit() = default;
  BatchLimit(Kind kind, double value) : kind_(kind), value_(value) {}
  Kind kind() const { return kind_; }
  double value() const { return value_; }
  bool is_off() const { return kind_ != Kind::kAll && value_ == 0; }

 private:
  Kind kind_ = Kind::kAll;
  double value_ = 1;
};
/// At most `count` batches; 0 turns the loop off.
BatchLimit batches(std::int64_t count);
/// This part of the batches, rounded down; an error if that is 0 batches of a loader that has some.
BatchLimit fraction(double part);

/// When validation runs during fit.
class ValidationInterval {
 public:
  enum class Kind { kFraction, kBatches, kBatchesAcrossEpochs, kSteps, kTime };
  ValidationInterval() = default;
  ValidationInterval(Kind kind, double value) : kind_(kind), value_(value) {}
  Kind kind() const { return kind_; }
  double value() const { return value_; }

 private:
  Kind kind_ = Kind::kFraction;
  double value_ = 1;
};
/// After this part of each epoch's batches; 1.0: once, at its end.
ValidationInterval every_fraction(double part);
/// After every n batches of an epoch; the count starts anew in each epoch.
ValidationInterval every_n_batches(std::int64_t n);
/// After every n batches, counted over all epochs.
ValidationInterval every_n_batches_across_epochs(std::int64_t n);
/// After every n optimizer steps, counted over all epochs.
ValidationInterval every_n_steps(std::int64_t n);
/// After the batch in which this time has passed since the last validation.
ValidationInterval every_duration(Seconds time);

/// "DD:HH:MM:SS" as a duration. Throws ConfigError.
Seconds parse_duration(std::string_view text);

/// The kind of device: "auto", "cpu", "cuda", or an accelerator object.
class AcceleratorOption {
 public:
  AcceleratorOption(const char* name = "auto")
      : name_(name) {}  // NOLINT(google-explicit-constructor)
  AcceleratorOption(std::string name)
      : name_(std::move(name)) {}  // NOLINT(google-explicit-constructor)
  AcceleratorOption(std::shared_ptr<Accelerator> object) : object_(std::move(object)) {}  // NOLINT
  const std::string& name() const { return name_; }
  const std::shared_ptr<Accelerator>& object() const { return object_; }

 private:
  std::string name_;
  std::shared_ptr<Accelerator> object_;
};

enum class Deterministic { kUnset, kNo, kWarn, kYes };
/// What a loss that is not finite does: nothing, end the run with TrainingError, or leave out the
/// update.
enum class NonFiniteLoss { kIgnore, kRaise, kSkipStep };
/// The weight of a micro-batch for which training_step returns none.
enum class WindowWeighting {
  kMicroBatches,  ///< Each counts the same. Where a loader shares one out unevenly, ranks count by
                  ///< their samples: as in one process that has the whole of it.
  kRows,          ///< The rows of the batch.
};
/// What ends an epoch of training where ranks have different numbers of batches.
enum class UnevenData {
  kJoin,            ///< The last batch of any rank; the others take part with weight 0 meanwhile.
  kStopAtShortest,  ///< The last batch of the rank with the fewest; what others have more is
                    ///< unused.
};
/// SIGINT and SIGTERM during a run: stop at the next batch, let callbacks save, then pass the
/// signal on. In a batch job of SLURM SIGUSR1 too (sbatch --signal=USR1@120), and then the job is
/// requeued: what cannot be is an Error after the checkpoint.
enum class SignalHandling { kSaveAndStop, kNone };

/// As many ranks as the launcher of this process has started, on all hosts, when the trainer is
/// made; 1 without a launcher. For jobs whose size changes when they are restarted (fulmen-run
/// --nnodes 2:4). TrainerOptions::num_nodes does not count then.
inline constexpr std::int64_t kAsLaunched = -1;
/// What kAsLaunched means in this process. Throws ConfigError for a partial set of variables.
std::int64_t launched_ranks();

/// Everything a Trainer can be told. Names and meanings are lightning.pytorch.Trainer's;
/// docs/differences.md lists where they differ. Fill it with designated initialisers, in this
/// order.
struct TrainerOptions {
  AcceleratorOption accelerator = "auto";
  /// Null: one device, or DdpStrategy for more than one rank.
  std::shared_ptr<Strategy> strategy = {};
  std::int64_t devices = 1;    ///< Ranks on each host, one device each; or kAsLaunched.
  std::int64_t num_nodes = 1;  ///< Hosts.
  /// Each data rank reads its share of every loader. False: loaders are read in full by each rank,
  /// for data that you have split yourself.
  bool use_distributed_sampler = true;
  UnevenData uneven_data = UnevenData::kJoin;
  Precision precision = Precision::k32True;

  std::vector<std::shared_ptr<Callback>> callbacks = {};
  /// Unset: a CSVLogger in default_root_dir. Empty: none.
  std::optional<std::vector<std::shared_ptr<Logger>>> loggers = {};
  std::filesystem::path default_root_dir = ".";
  bool enable_checkpointing = true;  ///< Adds a ModelCheckpoint if none is given.
  bool enable_progress_bar = true;
  bool enable_model_summary = true;

  std::optional<std::int64_t> max_epochs = {};  ///< With no other limit: 1000. -1: no limit.
  std::optional<std::int64_t> max_steps = {};   ///< Optimizer steps.
  std::optional<std::int64_t> min_epochs = {};  ///< Early stopping waits for these.
  std::optional<std::int64_t> min_steps = {};
  std::optional<Seconds> max_time = {};

  BatchLimit limit_train_batches = {};
  BatchLimit limit_val_batches = {};
  BatchLimit limit_test_batches = {};
  BatchLimit limit_predict_batches = {};
  /// Trains on the same few batches of the training loader, in the same order each epoch, and
  /// validates on as many of the validation loader.
  std::optional<BatchLimit> overfit_batches = {};
  /// Greater than 0: this many batches of each stage, one epoch, no files. To see whether a program
  /// runs.
  std::int64_t fast_dev_run = 0;

  ValidationInterval val_check_interval = {};
  std::int64_t check_val_every_n_epoch = 1;
  std::int64_t num_sanity_val_steps =
      2;  ///< Batches of each validation loader before training; -1: all.
  std::int64_t log_every_n_steps = 50;  ///< 0: step values are not logged.

  std::int64_t accumulate_grad_batches = 1;  ///< Micro-batches of one optimizer step.
  WindowWeighting window_weighting = WindowWeighting::kMicroBatches;
  std::optional<double> gradient_clip_val = {};
  ClipAlgorithm gradient_clip_algorithm = ClipAlgorithm::kNorm;
  NonFiniteLoss nonfinite_loss = NonFiniteLoss::kIgnore;

  std::optional<std::uint64_t> seed =
      {};  ///< Set: seed_everything at the start of fit, and loaders without a seed.
  Deterministic deterministic = Deterministic::kUnset;
  std::optional<bool> benchmark = {};  ///< cuDNN's.
  bool inference_mode = true;          ///< In validate, test and predict; else no_grad.
  bool detect_anomaly = false;
  bool barebones =
      false;  ///< No logger, bar, summary, checkpoint or sanity check; log() does nothing.
  std::int64_t reload_dataloaders_every_n_epochs = 0;
  std::shared_ptr<Profiler> profiler = {};  ///< Null: no profile, no cost.
  SignalHandling signals = SignalHandling::kSaveAndStop;
  std::shared_ptr<LogSink> log_sink = {};  ///< Null: standard error.
};

/// Throws ConfigError that names the option, its value and what is allowed.
void validate(const TrainerOptions& options);

}  // namespace fulmen
