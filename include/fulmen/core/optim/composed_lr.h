#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fulmen/core/optim/stepped_lr.h"

namespace fulmen {

struct SequentialLROptions {
  std::vector<std::shared_ptr<SteppedLR>> schedulers = {};  ///< All on the same optimizer.
  std::vector<std::int64_t> milestones = {};  ///< Step at which the next one takes over; rising.
};

/// Runs schedulers one after the other. Each starts from the initial rate when its turn comes.
class SequentialLR final : public SteppedLR {
 public:
  static std::shared_ptr<SequentialLR> make(std::shared_ptr<Optimizer> optimizer,
                                            SequentialLROptions options);

  void step(std::optional<double> metric = {}) override;
  void restart() override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void check_state(const StateDict& state) const override;

 private:
  SequentialLR(std::shared_ptr<Optimizer> optimizer, SequentialLROptions options);
  double next_lr(std::size_t, double lr) const override { return lr; }
  void start_scheduler(std::size_t index);

  SequentialLROptions options_;
};

struct ChainedSchedulerOptions {
  std::vector<std::shared_ptr<SteppedLR>> schedulers = {};  ///< All on the same optimizer.
};

/// Steps all its schedulers each time: their factors multiply.
class ChainedScheduler final : public SteppedLR {
 public:
  static std::shared_ptr<ChainedScheduler> make(std::shared_ptr<Optimizer> optimizer,
                                                ChainedSchedulerOptions options);

  void step(std::optional<double> metric = {}) override;
  void restart() override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void check_state(const StateDict& state) const override;

 private:
  ChainedScheduler(std::shared_ptr<Optimizer> optimizer, ChainedSchedulerOptions options);
  double next_lr(std::size_t, double lr) const override { return lr; }

  ChainedSchedulerOptions options_;
};

}  // namespace fulmen
