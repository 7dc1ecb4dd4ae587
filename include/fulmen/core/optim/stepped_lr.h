#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "fulmen/core/optim/lr_scheduler.h"
#include "fulmen/core/optim/optimizer.h"

namespace fulmen {

/// A scheduler whose rates follow from the number of its steps. As in PyTorch a rate is computed
/// from the one before, so that schedulers on the same optimizer multiply, and a rate set by hand
/// stays in force. The state holds progress and rates; options come from the constructor.
class SteppedLR : public LRScheduler {
 public:
  std::string_view name() const final { return name_; }
  void step(std::optional<double> metric = {}) override;
  /// Starts again: the rates of the optimizer are taken as those before the first step.
  virtual void restart();
  StateDict state_dict() const override;
  /// Also puts the saved rates into the optimizer, whatever was done to it since.
  void load_state_dict(const StateDict& state) override;
  /// Throws CheckpointError where load_state_dict would. Changes nothing.
  virtual void check_state(const StateDict& state) const;

  const std::shared_ptr<Optimizer>& optimizer() const { return optimizer_; }
  /// Steps made; 0 after construction.
  std::int64_t step_count() const { return step_; }

 protected:
  /// `name` must live as long as the program. Throws ConfigError if there is no optimizer.
  SteppedLR(std::string_view name, std::shared_ptr<Optimizer> optimizer);
  /// The rate of a group at step_count(), given the one in force (that of the step before).
  virtual double next_lr(std::size_t group, double lr) const = 0;
  /// Puts the rates of step_count() in place.
  virtual void apply();
  /// The learning rate of a group before any scheduler changed it.
  double initial_lr(std::size_t group) const { return initial_lrs_[group]; }
  void set_step_count(std::int64_t step) { step_ = step; }

 private:
  std::string_view name_;
  std::shared_ptr<Optimizer> optimizer_;
  std::vector<double> initial_lrs_;
  std::int64_t step_ = 0;
};

}  // namespace fulmen
