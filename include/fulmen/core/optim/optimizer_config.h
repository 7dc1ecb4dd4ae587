#pragma once

#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "fulmen/core/optim/lr_scheduler.h"
#include "fulmen/core/optim/optimizer.h"

namespace fulmen {

/// One optimizer with its schedulers.
struct OptimizerConfig {
  std::shared_ptr<Optimizer> optimizer;
  std::vector<SchedulerConfig> schedulers = {};
};

/// What configure_optimizers returns: an optimizer, an OptimizerConfig, several of them, or
/// nothing.
class OptimizerConfigs {
 public:
  /// No optimizer: the module trains nothing by itself.
  OptimizerConfigs() = default;
  template <class O>
  requires std::is_base_of_v<Optimizer, O> OptimizerConfigs(
      std::shared_ptr<O> optimizer) {  // NOLINT(google-explicit-constructor)
    configs_.push_back({.optimizer = std::move(optimizer), .schedulers = {}});
  }
  OptimizerConfigs(OptimizerConfig config) {
    configs_.push_back(std::move(config));
  }  // NOLINT(google-explicit-constructor)
  OptimizerConfigs(std::initializer_list<OptimizerConfig> configs) : configs_(configs) {}
  OptimizerConfigs(std::vector<OptimizerConfig> configs)
      : configs_(std::move(configs)) {}  // NOLINT(google-explicit-constructor)

  const std::vector<OptimizerConfig>& configs() const { return configs_; }

 private:
  std::vector<OptimizerConfig> configs_;
};

}  // namespace fulmen
