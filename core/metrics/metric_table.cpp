#include "core/metrics/metric_table.h"

#include <string>
#include <utility>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

constexpr std::string_view kWhere = "log";
constexpr std::string_view kLoaderSuffix = "/dataloader_idx_";

void check_name(HookPoint hook, std::string_view name) {
  if (name.empty())
    fail<ConfigError>(kWhere, "a metric logged in ", to_string(hook), " has an empty name.");
  if (name.find(kLoaderSuffix) != std::string_view::npos) {
    fail<ConfigError>(kWhere,
                      "the name of metric '",
                      name,
                      "' must not contain '",
                      kLoaderSuffix,
                      "': the suffix is added where several loaders are evaluated.");
  }
}

MetricEntry make_entry(HookPoint hook,
                       std::string_view name,
                       std::int64_t loader,
                       const LogOptions& options) {
  check_name(hook, name);
  const LoggingRule rule = logging_rule(hook);
  if (rule == LoggingRule::kForbidden) refuse_hook(hook, name);
  const bool step_default = rule == LoggingRule::kStepDefault;
  MetricEntry entry{
      .hook = hook,
      .name = std::string(name),
      .loader = loader,
      .add_dataloader_idx = options.add_dataloader_idx,
      .prog_bar = options.prog_bar,
      .logger = options.logger,
      .on_step = options.on_step.value_or(step_default),
      .on_epoch = options.on_epoch.value_or(!step_default),
      .reduce = options.reduce,
  };
  if (rule == LoggingRule::kEpochOnly && entry.on_step) {
    fail<ConfigError>(kWhere,
                      "metric '",
                      name,
                      "' asks for on_step in ",
                      to_string(hook),
                      ", which is not called for each batch. Leave on_step out.");
  }
  if (!entry.on_step && !entry.on_epoch) {
    fail<ConfigError>(
        kWhere,
        "metric '",
        name,
        "' in ",
        to_string(hook),
        " has neither on_step nor on_epoch: it would never be seen. Set one of them.");
  }
  entry.derive();
  return entry;
}

std::string_view yes_no(bool value) {
  return value ? "true" : "false";
}

std::string describe(const MetricEntry& entry) {
  std::string text = "{";
  const auto add = [&](std::string_view key, std::string_view value) {
    text.append(key).append(": ").append(value).append(", ");
  };
  add("prog_bar", yes_no(entry.prog_bar));
  add("logger", yes_no(entry.logger));
  add("on_step", yes_no(entry.on_step));
  add("on_epoch", yes_no(entry.on_epoch));
  return text + "reduce: " + std::string(to_string(entry.reduce)) + "}";
}

[[noreturn]] void refuse_change(const MetricEntry& old, const MetricEntry& now) {
  if (old.loader != now.loader) {
    fail<ConfigError>(
        kWhere,
        "metric '",
        old.name,
        "' is logged for loaders ",
        old.loader,
        " and ",
        now.loader,
        " with add_dataloader_idx = false. Give it a name of its own for each loader, or leave "
        "add_dataloader_idx out.");
  }
  fail<ConfigError>(kWhere,
                    "metric '",
                    old.name,
                    "' is logged in ",
                    to_string(old.hook),
                    " with different options: ",
                    describe(old),
                    ", then ",
                    describe(now),
                    ". Use the same options or another name.");
}

bool names_meet(const MetricEntry& a, const MetricEntry& b) {
  for (const std::string* left : {&a.plain_name, &a.step_name, &a.epoch_name}) {
    for (const std::string* right : {&b.plain_name, &b.step_name, &b.epoch_name}) {
      if (*left == *right) return true;
    }
  }
  return false;
}

/// Whether sums of one can go on as the other's.
bool same_meaning(const MetricEntry& a, const MetricEntry& b) {
  return a.loader == b.loader && a.on_step == b.on_step && a.on_epoch == b.on_epoch &&
         a.reduce == b.reduce;
}

}  // namespace

void refuse_hook(HookPoint hook, std::string_view metric) {
  fail<ConfigError>(
      kWhere,
      "metric '",
      metric,
      hook == HookPoint::kOutside ? "' cannot be logged outside of a hook"
                                  : "' cannot be logged in ",
      hook == HookPoint::kOutside ? "" : to_string(hook),
      ". Log it in a step, or in a hook of a batch or an epoch, of fit, validate or test.");
}

void MetricEntry::derive() {
  const LoggingRule rule = logging_rule(hook);
  default_on_step = rule == LoggingRule::kStepDefault;
  default_on_epoch = !default_on_step;
  of_epoch_hook = rule == LoggingRule::kEpochOnly;
  const std::string suffix = loader != kNoLoader && add_dataloader_idx
                                 ? std::string(kLoaderSuffix) + std::to_string(loader)
                                 : "";
  const bool forked = on_step && on_epoch;
  plain_name = name + suffix;
  step_name = forked ? name + "_step" + suffix : plain_name;
  epoch_name = forked ? name + "_epoch" + suffix : plain_name;
}

void MetricTable::start_batch(BatchView batch, std::int64_t loader, std::int64_t loaders) {
  batch_ = batch;
  rows_ = -1;
  loader_ = loaders > 1 ? loader : kNoLoader;
  loaders_ = loaders;
  ++batch_serial_;
  cursor_ = 0;
}

std::size_t MetricTable::add(HookPoint hook,
                             std::string_view name,
                             std::int64_t loader,
                             const LogOptions& options) {
  MetricEntry entry = make_entry(hook, name, loader, options);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    MetricEntry& old = entries_[i];
    if (old.hook == HookPoint::kOutside || !names_meet(old, entry)) continue;
    const bool same_key = old.hook == hook && old.name == name && key_of(old) == key_of(entry);
    if (old.restored && same_key && same_meaning(old, entry)) {
      old.prog_bar = entry.prog_bar;
      old.logger = entry.logger;
      old.restored = false;
      note_step_loggers();
      return i;
    }
    if (old.restored) {
      old = MetricEntry{};
      continue;
    }
    if (same_key) refuse_change(old, entry);
    fail<ConfigError>(kWhere,
                      "metric '",
                      entry.plain_name,
                      "' of ",
                      to_string(hook),
                      " and metric '",
                      old.plain_name,
                      "' of ",
                      to_string(old.hook),
                      " would be shown under the same name. Give one of them another name.");
  }
  entries_.push_back(std::move(entry));
  note_step_loggers();
  return entries_.size() - 1;
}

double MetricTable::weight(const MetricEntry& entry, const LogOptions& options) {
  if (options.batch_size) {
    if (*options.batch_size < 0) {
      fail<ConfigError>(kWhere,
                        "batch_size of metric '",
                        entry.name,
                        "' must be at least 0, got ",
                        *options.batch_size,
                        ".");
    }
    return static_cast<double>(*options.batch_size);
  }
  const bool needs_rows = entry.on_epoch && entry.reduce == MetricReduction::kMean &&
                          !entry.of_epoch_hook && batch_.has_value();
  if (!needs_rows) return 1;
  if (rows_ < 0) {
    try {
      rows_ = batch_.rows();
    } catch (const DataError& error) {
      fail<DataError>(
          kWhere,
          "the mean of metric '",
          entry.name,
          "' in ",
          to_string(entry.hook),
          " needs the number of samples of the batch. Pass .batch_size, or declare batch_rows() "
          "for the batch's type. ",
          error.what());
    }
  }
  return static_cast<double>(rows_);
}

void MetricTable::apply(MetricEntry& entry,
                        const MetricValue& value,
                        double weight,
                        std::int64_t& clock) {
  entry.committed = true;
  if (entry.on_step) {
    entry.step = {value, ++clock};
    entry.step_batch = batch_serial_;
  }
  if (entry.on_epoch) {
    entry.total.add(value, entry.reduce, weight);
    if (ended_) show_epoch(entry, clock);
  }
}

void MetricTable::commit(std::int64_t& clock) {
  for (const Pending& pending : pending_) {
    apply(entries_[pending.entry], pending.value, pending.weight, clock);
  }
  pending_.clear();
}

void MetricTable::discard() {
  pending_.clear();
  while (!entries_.empty() && !entries_.back().committed) entries_.pop_back();
  note_step_loggers();
  cursor_ = 0;
}

void MetricTable::begin_epoch() {
  if (ended_) reset_totals();
}

void MetricTable::end_epoch(std::int64_t& clock) {
  ended_ = true;
  for (MetricEntry& entry : entries_) show_epoch(entry, clock);
}

void MetricTable::reset_totals() {
  ended_ = false;
  pending_.clear();
  for (MetricEntry& entry : entries_) entry.total = {};
}

void MetricTable::show_epoch(MetricEntry& entry, std::int64_t& clock) {
  if (!entry.on_epoch || entry.total.empty()) return;
  entry.epoch = {entry.total.result(entry.reduce), ++clock};
}

void MetricTable::note_step_loggers() {
  has_step_logger_metrics_ = false;
  for (const MetricEntry& entry : entries_) {
    if (entry.hook != HookPoint::kOutside && entry.on_step && entry.logger)
      has_step_logger_metrics_ = true;
  }
}

}  // namespace fulmen::detail
