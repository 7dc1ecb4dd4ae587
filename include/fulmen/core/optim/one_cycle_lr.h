#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulmen/core/optim/stepped_lr.h"

namespace fulmen {

enum class AnnealStrategy { kCos, kLinear };

struct OneCycleLROptions {
  double max_lr = 0;             ///< Required: above 0.
  std::int64_t total_steps = 0;  ///< Required, or else both of the next two.
  std::int64_t epochs = 0;       ///< Used with steps_per_epoch when total_steps is 0.
  std::int64_t steps_per_epoch = 0;
  double pct_start = 0.3;  ///< Share of the steps in which the rate rises, in [0, 1].
  AnnealStrategy anneal_strategy = AnnealStrategy::kCos;
  bool cycle_momentum = true;  ///< Moves momentum (or beta1) against the rate.
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25.0;       ///< Initial rate = max_lr / div_factor.
  double final_div_factor = 1e4;  ///< Last rate = initial rate / final_div_factor.
  bool three_phase = false;       ///< Fall to the initial rate symmetrically, then to the last one.
};

/// One rise and fall of the rate over a whole run, as in PyTorch. Throws ConfigError beyond
/// total_steps.
class OneCycleLR final : public SteppedLR {
 public:
  static std::shared_ptr<OneCycleLR> make(std::shared_ptr<Optimizer> optimizer,
                                          OneCycleLROptions options);

  void step(std::optional<double> metric = {}) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void check_state(const StateDict& state) const override;

 private:
  struct Phase {
    double end_step;
    double start_lr;
    double end_lr;
    double start_momentum;
    double end_momentum;
  };
  OneCycleLR(std::shared_ptr<Optimizer> optimizer, OneCycleLROptions options);
  void add_phases();
  /// The phase of step_count() and how far it has come: 0 at its start, 1 at its end.
  const Phase& phase(double& progress) const;
  double anneal(double from, double to, double progress) const;
  double next_lr(std::size_t group, double lr) const override;
  void apply() override;

  OneCycleLROptions options_;
  std::string momentum_name_;  ///< Empty if it is not cycled.
  std::vector<Phase> phases_;
};

}  // namespace fulmen
