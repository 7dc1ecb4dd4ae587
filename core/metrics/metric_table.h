#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/metrics/metric_value.h"
#include "fulmen/core/data/batch.h"
#include "fulmen/core/metrics/log_options.h"
#include "fulmen/core/module/hook_point.h"
#include "fulmen/core/support/state_dict.h"

namespace fulmen::detail {

inline constexpr std::int64_t kNoLoader = -1;

/// A metric of one phase: one name in one hook, and one loader where there are several.
struct MetricEntry {
  /// A value to show; the stamp tells which of two is newer, 0 that there is none.
  struct Shown {
    MetricValue value = {};
    std::int64_t stamp = 0;
  };

  HookPoint hook = HookPoint::kOutside;  ///< kOutside: retired.
  std::string name = {};
  std::int64_t loader = kNoLoader;
  bool add_dataloader_idx = true;
  bool prog_bar = false;
  bool logger = true;
  bool on_step = false;
  bool on_epoch = false;
  MetricReduction reduce = MetricReduction::kMean;
  bool default_on_step = false;  ///< This and the next two are the hook's.
  bool default_on_epoch = false;
  bool of_epoch_hook = false;

  std::string plain_name = {};  ///< With the suffix of the loader, as the next two.
  std::string step_name = {};
  std::string epoch_name = {};

  bool restored = false;   ///< From a checkpoint, and not logged in this run yet.
  bool committed = false;  ///< Has or had a value.
  Shown step = {};
  Shown epoch = {};
  std::int64_t step_batch = 0;  ///< Serial number of the batch of `step`.
  MetricTotal total = {};

  bool matches(const LogOptions& options, std::int64_t current_loader) const {
    return !restored && loader == current_loader && prog_bar == options.prog_bar &&
           logger == options.logger && reduce == options.reduce &&
           on_step == options.on_step.value_or(default_on_step) &&
           on_epoch == options.on_epoch.value_or(default_on_epoch);
  }
  /// Fills what follows from the rest: defaults and names.
  void derive();
};

[[noreturn]] void refuse_hook(HookPoint hook, std::string_view metric);

/// The metrics of one phase.
class MetricTable {
 public:
  void start_batch(BatchView batch, std::int64_t loader, std::int64_t loaders);
  /// The place of the entry for these arguments, made if it is new. Throws ConfigError.
  std::size_t find_or_add(HookPoint hook, std::string_view name, const LogOptions& options) {
    const std::int64_t loader = is_evaluation_batch_hook(hook) ? loader_ : kNoLoader;
    const std::int64_t key_loader = options.add_dataloader_idx ? loader : kNoLoader;
    // Metrics come in the same order in each batch: the search starts behind the last hit.
    const std::size_t size = entries_.size();
    for (std::size_t i = 0, at = cursor_; i < size; ++i, ++at) {
      if (at >= size) at = 0;
      const MetricEntry& entry = entries_[at];
      if (entry.hook != hook || entry.name != name || key_of(entry) != key_loader) continue;
      if (!entry.matches(options, loader)) break;
      cursor_ = at + 1;
      return at;
    }
    return add(hook, name, loader, options);
  }
  /// Of a value in a mean. Throws DataError if the rows of the batch are ambiguous.
  double weight(const MetricEntry& entry, const LogOptions& options);

  void push(std::size_t entry, const MetricValue& value, double weight) {
    pending_.push_back({entry, weight, value});
  }
  void apply(MetricEntry& entry, const MetricValue& value, double weight, std::int64_t& clock);
  void commit(std::int64_t& clock);
  void discard();

  void begin_epoch();
  void end_epoch(std::int64_t& clock);
  /// Sums of this epoch over ranks: of the metrics of batches, or of those of epoch hooks.
  void reduce(const std::function<std::vector<StateDict>(const StateDict&)>& exchange,
              bool of_epoch_hooks,
              std::int64_t& clock);
  /// New sums; what is shown stays.
  void reset_totals();
  bool has_ended() const { return ended_; }

  const std::vector<MetricEntry>& entries() const { return entries_; }
  MetricEntry& entry(std::size_t place) { return entries_[place]; }
  bool is_newest_step(const MetricEntry& entry) const {
    return entry.on_step && entry.step.stamp > 0 && entry.step_batch == batch_serial_;
  }
  bool is_of_this_epoch(const MetricEntry& entry) const {
    return entry.on_epoch && ended_ && entry.epoch.stamp > 0 && !entry.total.empty();
  }
  bool has_step_logger_metrics() const { return has_step_logger_metrics_; }
  std::int64_t loaders() const { return loaders_; }

  /// Adds its values under `key`.
  void save(std::string_view key, StateDict& state) const;
  /// Throws CheckpointError.
  static MetricTable load(std::string_view key, const StateDict& state);

 private:
  struct Pending {
    std::size_t entry;
    double weight;
    MetricValue value;
  };

  static std::int64_t key_of(const MetricEntry& entry) {
    return entry.add_dataloader_idx ? entry.loader : kNoLoader;
  }
  std::size_t add(HookPoint hook,
                  std::string_view name,
                  std::int64_t loader,
                  const LogOptions& options);
  void show_epoch(MetricEntry& entry, std::int64_t& clock);
  void note_step_loggers();

  std::vector<MetricEntry> entries_;
  std::vector<Pending> pending_;
  std::size_t cursor_ = 0;
  BatchView batch_;
  std::int64_t rows_ = -1;  ///< Of the batch; -1: not counted yet.
  std::int64_t loader_ = kNoLoader;
  std::int64_t loaders_ = 1;
  std::int64_t batch_serial_ = 0;
  bool ended_ = false;
  bool has_step_logger_metrics_ = false;
};

}  // namespace fulmen::detail
