#include <ATen/ATen.h>

#include <string>

#include "core/metrics/metric_table.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

constexpr std::string_view kWhere = "metrics of the checkpoint";
constexpr std::int64_t kNumbers = 4;  // Step value, epoch value, total, weight.

MetricReduction parse_reduction(const std::string& name) {
  for (const MetricReduction reduce : {MetricReduction::kMean,
                                       MetricReduction::kSum,
                                       MetricReduction::kMin,
                                       MetricReduction::kMax}) {
    if (to_string(reduce) == name) return reduce;
  }
  fail<CheckpointError>(
      kWhere, "unknown reduction '", name, "'. The state is from another version.");
}

HookPoint parse_hook(const std::string& name) {
  const auto hook = find_hook_point(name);
  if (!hook || logging_rule(*hook) == LoggingRule::kForbidden) {
    fail<CheckpointError>(kWhere, "unknown hook '", name, "'. The state is from another version.");
  }
  return *hook;
}

boost::json::string_view json_view(std::string_view text) {
  return {text.data(), text.size()};
}

boost::json::object to_json(const MetricEntry& entry) {
  return {
      {"hook", json_view(to_string(entry.hook))},
      {"name", entry.name},
      {"loader", entry.loader},
      {"add_dataloader_idx", entry.add_dataloader_idx},
      {"prog_bar", entry.prog_bar},
      {"logger", entry.logger},
      {"on_step", entry.on_step},
      {"on_epoch", entry.on_epoch},
      {"reduce", json_view(to_string(entry.reduce))},
      {"step_stamp", entry.step.stamp},
      {"step_batch", entry.step_batch},
      {"epoch_stamp", entry.epoch.stamp},
      {"count", entry.total.count()},
  };
}

MetricEntry from_json(const boost::json::object& object, const double* numbers) {
  MetricEntry entry{
      .hook = parse_hook(require_string(object, "hook", kWhere)),
      .name = require_string(object, "name", kWhere),
      .loader = require_int(object, "loader", kWhere),
      .add_dataloader_idx = require_bool(object, "add_dataloader_idx", kWhere),
      .prog_bar = require_bool(object, "prog_bar", kWhere),
      .logger = require_bool(object, "logger", kWhere),
      .on_step = require_bool(object, "on_step", kWhere),
      .on_epoch = require_bool(object, "on_epoch", kWhere),
      .reduce = parse_reduction(require_string(object, "reduce", kWhere)),
      .restored = true,
      .committed = true,
      .step = {{numbers[0]}, require_int(object, "step_stamp", kWhere)},
      .epoch = {{numbers[1]}, require_int(object, "epoch_stamp", kWhere)},
      .step_batch = require_int(object, "step_batch", kWhere),
      .total = MetricTotal(numbers[2], numbers[3], require_int(object, "count", kWhere)),
  };
  entry.derive();
  return entry;
}

}  // namespace

void MetricTable::save(std::string_view key, StateDict& state) const {
  boost::json::array entries;
  std::vector<const MetricValue*> values;
  std::vector<double> weights;
  for (const MetricEntry& entry : entries_) {
    if (entry.hook == HookPoint::kOutside || !entry.committed) continue;
    entries.push_back(to_json(entry));
    for (const MetricValue* value : {&entry.step.value, &entry.epoch.value, &entry.total.total()}) {
      values.push_back(value);
    }
    weights.push_back(entry.total.weight());
  }
  if (entries.empty()) return;

  const std::vector<double> numbers = read_values(values);
  const auto rows = static_cast<std::int64_t>(entries.size());
  at::Tensor packed = at::empty({rows, kNumbers}, at::kDouble);
  for (std::int64_t i = 0; i < rows; ++i) {
    double* row = packed.mutable_data_ptr<double>() + i * kNumbers;
    for (std::int64_t j = 0; j < kNumbers - 1; ++j)
      row[j] = numbers[static_cast<std::size_t>(i * (kNumbers - 1) + j)];
    row[kNumbers - 1] = weights[static_cast<std::size_t>(i)];
  }
  state.tensors[std::string(key)] = packed;
  state.values[json_view(key)] = boost::json::object{
      {"ended", ended_},
      {"batch", batch_serial_},
      {"loaders", loaders_},
      {"entries", std::move(entries)},
  };
}

MetricTable MetricTable::load(std::string_view key, const StateDict& state) {
  MetricTable table;
  if (!state.values.contains(json_view(key))) return table;
  const boost::json::object& values = require_object(state.values, key, kWhere);
  table.ended_ = require_bool(values, "ended", kWhere);
  table.batch_serial_ = require_int(values, "batch", kWhere);
  table.loaders_ = require_int(values, "loaders", kWhere);
  const boost::json::array& entries = require_array(values, "entries", kWhere);

  const auto found = state.tensors.find(std::string(key));
  if (found == state.tensors.end()) {
    fail<CheckpointError>(kWhere, "the tensor '", key, "' is missing.");
  }
  const auto rows = static_cast<std::int64_t>(entries.size());
  if (found->second.scalar_type() != at::kDouble ||
      found->second.sizes() != at::IntArrayRef({rows, kNumbers})) {
    fail<CheckpointError>(kWhere,
                          "the tensor '",
                          key,
                          "' must be float64 of shape [",
                          rows,
                          ", ",
                          kNumbers,
                          "], found ",
                          found->second.scalar_type(),
                          " of shape ",
                          found->second.sizes(),
                          ".");
  }
  const at::Tensor numbers = found->second.to(at::Device(at::kCPU)).contiguous();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].is_object())
      fail<CheckpointError>(kWhere, "entry ", i, " of '", key, "' must be an object.");
    table.entries_.push_back(
        from_json(entries[i].get_object(),
                  numbers.const_data_ptr<double>() + static_cast<std::int64_t>(i) * kNumbers));
  }
  table.note_step_loggers();
  return table;
}

}  // namespace fulmen::detail
