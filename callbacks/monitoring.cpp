#include "callbacks/monitoring.h"

#include <ATen/ATen.h>

#include <cmath>
#include <string>

#include "fulmen/core/distributed/strategy.h"

namespace fulmen::detail {

bool decides(const TrainerContext& context) {
  return context.stage() == Stage::kFit && !context.sanity_checking() &&
         !context.plan().fast_dev_run;
}

bool acts_at_train_epoch_end(const RunPlan& plan, std::optional<bool> choice) {
  return choice.value_or(plan.validates_once_per_epoch || !plan.has_validation);
}

bool is_better(MonitorMode mode, double candidate, double than) {
  if (std::isnan(candidate)) return false;
  if (std::isnan(than)) return true;
  return mode == MonitorMode::kMin ? candidate < than : candidate > than;
}

const char* mode_name(MonitorMode mode) {
  return mode == MonitorMode::kMin ? "min" : "max";
}

std::string known_metrics(const TrainerContext& context) {
  std::string text;
  for (const auto& [name, value] : context.callback_metrics()) {
    text += (text.empty() ? "'" : ", '") + name + "'";
  }
  return text.empty() ? "none" : text;
}

bool is_writer(TrainerContext& context) {
  return context.strategy().topology().rank == 0;
}

std::string from_rank_zero(TrainerContext& context, const std::string& text) {
  auto& strategy = context.strategy();
  if (strategy.topology().world_size == 1) return text;
  const auto agreed =
      broadcast_object(boost::json::string(text), 0, strategy.mesh().world()->all());
  return std::string(agreed.as_string());
}

double from_rank_zero(TrainerContext& context, double value) {
  auto& strategy = context.strategy();
  if (strategy.topology().world_size == 1) return value;
  auto agreed = at::scalar_tensor(value, at::kDouble);
  broadcast(agreed, 0, strategy.mesh().world()->all());
  return agreed.item<double>();
}

std::int64_t agree_on_max(TrainerContext& context, std::int64_t value) {
  auto& strategy = context.strategy();
  if (strategy.topology().world_size == 1) return value;
  const auto mine = at::scalar_tensor(value, at::dtype(at::kLong).device(strategy.root_device()));
  return strategy.reduce(mine, ReduceOp::kMax).item<std::int64_t>();
}

}  // namespace fulmen::detail
