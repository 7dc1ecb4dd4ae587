#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "fulmen/core/module/callback.h"
#include "fulmen/core/optim/lr_scheduler.h"

namespace fulmen {

struct LearningRateMonitorOptions {
  /// At which hooks rates are logged. Unset: those of optimizers with a scheduler, at its interval;
  /// those without one, each epoch.
  std::optional<Interval> logging_interval = {};
  bool log_momentum = false;  ///< "lr-SGD-momentum"; beta1 for optimizers that have no momentum.
  bool log_weight_decay = false;  ///< "lr-SGD-weight_decay".
};

/// Sends learning rates to the loggers: at the start of an epoch, and at the start of the training
/// batches whose step is logged (every log_every_n_steps), under the step that is about to be
/// taken. Names: "lr-AdamW"; with several groups "lr-AdamW/pg1", "lr-AdamW/pg2"; a second AdamW is
/// "lr-AdamW-1"; SchedulerConfig::name goes first.
class LearningRateMonitor : public Callback {
 public:
  static std::shared_ptr<LearningRateMonitor> make(LearningRateMonitorOptions options = {});

  /// What was sent last, by name.
  const std::map<std::string, double>& last_values() const { return last_values_; }

  /// Throws ConfigError if there is no logger.
  void on_train_start(Context& context, Module& module) override;
  void on_train_epoch_start(Context& context, Module& module) override;
  void on_train_batch_start(Context& context,
                            Module& module,
                            BatchView batch,
                            std::int64_t batch_idx) override;

 private:
  explicit LearningRateMonitor(LearningRateMonitorOptions options) : options_(options) {}
  void log(Context& context, Interval interval);

  LearningRateMonitorOptions options_;
  std::map<std::string, double> last_values_;
  std::int64_t last_step_ = -1;
};

}  // namespace fulmen
