#include "fulmen/callbacks/gradient_accumulation_scheduler.h"

#include <iterator>
#include <utility>

#include "fulmen/core/module/module_base.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

constexpr std::string_view kWhere = "GradientAccumulationScheduler";

}  // namespace

std::shared_ptr<GradientAccumulationScheduler> GradientAccumulationScheduler::make(
    GradientAccumulationSchedulerOptions options) {
  if (options.scheduling.empty()) {
    fail<ConfigError>(
        kWhere, "scheduling is empty. Give {epoch, factor} pairs, for example {{4, 2}, {8, 4}}.");
  }
  for (const auto& [epoch, factor] : options.scheduling) {
    if (epoch < 0) fail<ConfigError>(kWhere, "epochs must be at least 0, got ", epoch, ".");
    if (factor < 1) {
      fail<ConfigError>(
          kWhere, "factors must be at least 1, got ", factor, " for epoch ", epoch, ".");
    }
  }
  return std::shared_ptr<GradientAccumulationScheduler>(
      new GradientAccumulationScheduler(std::move(options)));
}

GradientAccumulationScheduler::GradientAccumulationScheduler(
    GradientAccumulationSchedulerOptions options)
    : scheduling_(std::move(options.scheduling)) {
  scheduling_.emplace(0, 1);
}

std::int64_t GradientAccumulationScheduler::factor(std::int64_t epoch) const {
  return std::prev(scheduling_.upper_bound(epoch))->second;
}

void GradientAccumulationScheduler::on_train_start(Context& context, Module& module) {
  if (module.optimization_mode() == OptimizationMode::kManual) {
    fail<ConfigError>(
        kWhere,
        "the module optimizes by hand, so it decides itself when to step. Leave this callback "
        "out.");
  }
  // A run that is resumed inside an epoch has no start of that epoch.
  context.set_accumulate_grad_batches(factor(context.progress().epoch));
}

void GradientAccumulationScheduler::on_train_epoch_start(Context& context, Module&) {
  context.set_accumulate_grad_batches(factor(context.progress().epoch));
}

}  // namespace fulmen
