// When the fit loop steps schedulers.
#include "fit_loop.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {

void FitLoop::step_schedulers(bool updated, bool last_batch) {
  if (session_.module->optimization_mode() == OptimizationMode::kManual) return;
  const auto& progress = session_.state.progress;
  for (const auto& config : session_.optimizers) {
    for (const auto& scheduler : config.schedulers) {
      if (scheduler.interval == Interval::kStep) {
        if (updated && progress.global_step % scheduler.frequency == 0) step_scheduler(scheduler);
      } else if (last_batch && !scheduler.scheduler->needs_metric()) {
        if ((progress.epoch + 1) % scheduler.frequency == 0) step_scheduler(scheduler);
      }
    }
  }
}

void FitLoop::step_epoch_plateau_schedulers() {
  if (session_.module->optimization_mode() == OptimizationMode::kManual) return;
  const auto epochs = session_.state.progress.epoch + 1;
  for (const auto& config : session_.optimizers) {
    for (const auto& scheduler : config.schedulers) {
      const bool plateau =
          scheduler.interval == Interval::kEpoch && scheduler.scheduler->needs_metric();
      if (plateau && epochs % scheduler.frequency == 0) step_scheduler(scheduler);
    }
  }
}

void FitLoop::step_scheduler(const SchedulerConfig& config) {
  std::optional<double> metric;
  if (config.scheduler->needs_metric()) {
    metric = session_.metric_of_rank_zero(config.monitor);
    if (!metric) {
      std::string known;
      for (const auto& [name, value] : session_.metrics.callback_metrics())
        known += (known.empty() ? "" : ", ") + name;
      if (config.strict) {
        fail<ConfigError>(config.scheduler->name(),
                          "its metric \"",
                          config.monitor,
                          "\" was not logged; logged are: ",
                          known.empty() ? "none" : known,
                          ". Log it, or set .strict = false to leave such steps out.");
      }
      session_.log().warning_once(config.scheduler->name(),
                                  ": its metric \"",
                                  config.monitor,
                                  "\" was not logged; the step is left out.");
      return;
    }
  }
  session_.hook(HookPoint::kLrSchedulerStep).lr_scheduler_step(*config.scheduler, metric);
}

}  // namespace fulmen::detail
