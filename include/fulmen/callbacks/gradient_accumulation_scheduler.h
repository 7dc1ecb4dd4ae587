#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "fulmen/core/module/callback.h"

namespace fulmen {

struct GradientAccumulationSchedulerOptions {
  /// From which epoch (the first is 0) how many micro-batches make a step; before the first
  /// entry: 1.
  std::map<std::int64_t, std::int64_t> scheduling = {};
};

/// Changes accumulate_grad_batches at the start of epochs: make({.scheduling = {{4, 2}, {8, 4}}}).
class GradientAccumulationScheduler : public Callback {
 public:
  /// Throws ConfigError if `scheduling` is empty, or has an epoch below 0 or a factor below 1.
  static std::shared_ptr<GradientAccumulationScheduler> make(
      GradientAccumulationSchedulerOptions options);

  std::int64_t factor(std::int64_t epoch) const;

  /// Throws ConfigError if the module optimizes by hand.
  void on_train_start(Context& context, Module& module) override;
  void on_train_epoch_start(Context& context, Module& module) override;

 private:
  explicit GradientAccumulationScheduler(GradientAccumulationSchedulerOptions options);

  std::map<std::int64_t, std::int64_t> scheduling_;
};

}  // namespace fulmen
