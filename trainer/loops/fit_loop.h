#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "../boundary.h"
#include "../session.h"
#include "limited_source.h"
#include "train_window.h"

namespace fulmen::detail {

/// fit, from the sanity check to on_train_end: epochs, validations, schedulers.
class FitLoop {
 public:
  explicit FitLoop(Session& session);
  ~FitLoop();

  /// Returns why the run was interrupted; null: it ended by itself.
  const char* run();

  // For the window.
  void mark_boundary();
  void step_schedulers(bool updated, bool last_batch);
  bool validation_is_due(bool updated) const;
  /// By this rank's clock, where validations are counted in time.
  bool validation_is_due_by_clock() const;
  void run_validation();
  /// Whether validations are counted in optimizer steps.
  bool validates_by_steps() const;
  void log_step();

  TrainWindow& window() { return window_; }
  /// Puts run and module back to the last boundary of a batch, if that is kept and can be done.
  void roll_back();
  /// The position, random state and callbacks that a checkpoint written now stores; null: the
  /// current ones.
  const CheckpointContents* pinned_state() const { return pinned_ ? &*pinned_ : nullptr; }
  /// The metrics that a checkpoint written now stores; null: the current ones.
  const StateDict* pinned_metrics() const { return pinned_metrics_ ? &*pinned_metrics_ : nullptr; }
  /// State of the training data for a checkpoint.
  StateDict source_state() const;
  bool source_can_skip() const { return source_ == nullptr || source_->can_skip(); }
  double seconds_since_validation() const;

 private:
  void connect_validation_data();
  void connect_training_data();
  void agree_on_batches();
  void sanity_check();
  void restore_position();
  bool finished();
  bool minimums_met() const;
  void run_epoch();
  void start_epoch();
  void end_epoch();
  void step_epoch_plateau_schedulers();
  void step_scheduler(const SchedulerConfig& config);
  bool validation_epoch() const;
  void check_interval() const;

  Session& session_;
  TrainWindow window_;
  std::shared_ptr<BatchSource> source_;
  std::unique_ptr<LimitedSource> data_;
  std::vector<std::shared_ptr<BatchSource>> val_sources_;
  std::int64_t connected_epoch_ = 0;  ///< The epoch in which loaders were last asked for.
  std::chrono::steady_clock::time_point last_validation_;
  std::optional<CheckpointContents> pinned_;
  std::optional<StateDict> pinned_metrics_;
  std::int64_t validated_at_ = -1;  ///< total_batches at the last validation.
  Boundary boundary_;
  bool keeps_boundary_ = false;
};

}  // namespace fulmen::detail
