#include "fulmen/callbacks/learning_rate_monitor.h"

#include <algorithm>
#include <vector>

#include "callbacks/monitoring.h"
#include "fulmen/core/loggers/logger.h"
#include "fulmen/core/optim/optimizer_config.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

Interval interval_of(const OptimizerConfig& config) {
  return config.schedulers.empty() ? Interval::kEpoch : config.schedulers.front().interval;
}

/// One for each optimizer, all different.
std::vector<std::string> names_of(std::span<const OptimizerConfig> configs) {
  std::vector<std::string> names;
  std::map<std::string, int> seen;
  for (const auto& config : configs) {
    const auto& schedulers = config.schedulers;
    std::string name = !schedulers.empty() && !schedulers.front().name.empty()
                           ? schedulers.front().name
                           : "lr-" + std::string(config.optimizer->name());
    const int count = seen[name]++;
    names.push_back(count == 0 ? name : name + "-" + std::to_string(count));
  }
  return names;
}

void add_values(const Optimizer& optimizer,
                const std::string& name,
                const LearningRateMonitorOptions& options,
                std::map<std::string, double>& values) {
  for (std::size_t group = 0; group < optimizer.group_count(); ++group) {
    const auto suffix =
        optimizer.group_count() > 1 ? "/pg" + std::to_string(group + 1) : std::string();
    const auto known = optimizer.hyperparameter_names(group);
    const auto has = [&](const char* key) { return std::ranges::find(known, key) != known.end(); };
    const auto add = [&](const char* key, const std::string& label) {
      if (has(key)) values[name + label + suffix] = optimizer.hyperparameter(group, key);
    };
    add("lr", "");
    if (options.log_momentum) add(has("momentum") ? "momentum" : "beta1", "-momentum");
    if (options.log_weight_decay) add("weight_decay", "-weight_decay");
  }
}

}  // namespace

std::shared_ptr<LearningRateMonitor> LearningRateMonitor::make(LearningRateMonitorOptions options) {
  return std::shared_ptr<LearningRateMonitor>(new LearningRateMonitor(options));
}

void LearningRateMonitor::on_train_start(Context& context, Module&) {
  last_step_ = -1;
  const auto& plan = context.plan();
  if (context.loggers().empty() && !plan.fast_dev_run && detail::is_writer(context)) {
    fail<ConfigError>("LearningRateMonitor",
                      "there is no logger to send learning rates to. Give the trainer one, or "
                      "leave this callback out.");
  }
}

void LearningRateMonitor::on_train_epoch_start(Context& context, Module&) {
  log(context, Interval::kEpoch);
}

void LearningRateMonitor::on_train_batch_start(Context& context, Module&, BatchView, std::int64_t) {
  const auto every = context.plan().log_every_n_steps;
  const auto step = context.progress().global_step;
  // The micro-batches of a window share a step.
  if (every < 1 || (step + 1) % every != 0 || step == last_step_) return;
  last_step_ = step;
  log(context, Interval::kStep);
}

void LearningRateMonitor::log(Context& context, Interval interval) {
  if (options_.logging_interval && *options_.logging_interval != interval) return;
  if (context.loggers().empty() || !detail::is_writer(context)) return;
  const auto configs = context.optimizer_configs();
  const auto names = names_of(configs);
  std::map<std::string, double> values;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    if (!options_.logging_interval && interval_of(configs[i]) != interval) continue;
    add_values(*configs[i].optimizer, names[i], options_, values);
  }
  if (values.empty()) return;
  const auto& progress = context.progress();
  last_values_ = values;
  values["epoch"] = static_cast<double>(progress.epoch);
  for (const auto& logger : context.loggers()) logger->log_metrics(values, progress.global_step);
}

}  // namespace fulmen
