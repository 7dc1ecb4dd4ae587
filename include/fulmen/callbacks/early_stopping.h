#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "fulmen/callbacks/monitor_mode.h"
#include "fulmen/core/module/callback.h"

namespace fulmen {

struct EarlyStoppingOptions {
  std::string monitor = {};  ///< Required.
  double min_delta = 0;  ///< A value must be better by more than this to count as an improvement.
  std::int64_t patience = 3;  ///< Checks (not epochs) without improvement after which the fit ends.
  MonitorMode mode = MonitorMode::kMin;
  bool strict = true;        ///< A metric that was not logged is an error; else a warning.
  bool check_finite = true;  ///< End as soon as the metric is NaN or infinite.
  std::optional<double> stopping_threshold = {};    ///< End when the metric is better than this.
  std::optional<double> divergence_threshold = {};  ///< End when the metric is worse than this.
  /// Check at the end of the training epoch, or of validation. Unset: validation, unless each epoch
  /// ends with its only one (then its values are known at the end of the epoch) or there is none.
  std::optional<bool> check_on_train_epoch_end = {};
  bool verbose = false;  ///< Say when the metric improves.
};

/// Ends the fit when a metric stops improving. The decision is made anew at each check: while
/// min_epochs or min_steps hold it back, an improvement takes it back. After a resume `patience` is
/// that of the options.
class EarlyStopping : public Callback {
 public:
  /// Throws ConfigError for options out of range.
  static std::shared_ptr<EarlyStopping> make(EarlyStoppingOptions options);

  const EarlyStoppingOptions& options() const { return options_; }
  std::int64_t wait_count() const { return wait_count_; }
  /// The epoch of the last check that asked to stop; empty if the last check did not.
  std::optional<std::int64_t> stopped_epoch() const { return stopped_epoch_; }
  /// Empty before the first check.
  std::optional<double> best_score() const { return best_score_; }
  /// Why the last check asked to stop; empty if it did not.
  const std::string& reason() const { return reason_; }

  CallbackKind kind() const override { return CallbackKind::kMonitor; }
  std::string state_key() const override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void reset() override;
  /// Asks to stop again if the run that is resumed was about to.
  void on_train_start(Context& context, Module& module) override;
  void on_validation_end(Context& context, Module& module) override;
  void on_train_epoch_end(Context& context, Module& module) override;

 private:
  explicit EarlyStopping(EarlyStoppingOptions options);
  void check(Context& context);
  /// The reason to stop, or nothing. Counts.
  std::string judge(Context& context, double value);
  void report_missing(Context& context) const;

  EarlyStoppingOptions options_;
  std::int64_t wait_count_ = 0;
  std::optional<std::int64_t> stopped_epoch_;
  std::int64_t stopped_batches_ = -1;  ///< total_batches then.
  std::optional<double> best_score_;
  std::string reason_;
  bool validated_ = false;
};

}  // namespace fulmen
