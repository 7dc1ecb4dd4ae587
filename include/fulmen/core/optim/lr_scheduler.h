#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "fulmen/core/support/state_dict.h"

namespace fulmen {

/// Sets hyperparameters (the learning rate, mostly) of one optimizer over time. The trainer steps
/// it. Like PyTorch's: construction puts the value of step 0 in place, each step() that of the
/// next. Not thread-safe.
class LRScheduler {
 public:
  virtual ~LRScheduler() = default;
  virtual std::string_view name() const = 0;
  /// `metric` is given only to schedulers that need one.
  virtual void step(std::optional<double> metric = {}) = 0;
  /// Whether step() needs a metric (plateau).
  virtual bool needs_metric() const { return false; }
  virtual StateDict state_dict() const = 0;
  /// Throws CheckpointError if the state is of another kind. The optimizer's own state holds the
  /// current rates.
  virtual void load_state_dict(const StateDict& state) = 0;
};

enum class Interval { kStep, kEpoch };

/// When the trainer steps a scheduler.
struct SchedulerConfig {
  std::shared_ptr<LRScheduler> scheduler;
  Interval interval = Interval::kEpoch;
  std::int64_t frequency = 1;  ///< In intervals; steps are optimizer steps really taken.
  std::string monitor = {};    ///< Metric of a plateau scheduler: required there.
  bool strict = true;     ///< Fail if `monitor` was not logged; else warn and leave the step out.
  std::string name = {};  ///< For the learning-rate monitor.
};

}  // namespace fulmen
