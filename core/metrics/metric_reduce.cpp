// Metrics over ranks.
#include <algorithm>

#include "core/metrics/metric_table.h"
#include "fulmen/core/metrics/metric_store.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

constexpr std::string_view kKey = "table";

bool same_metric(const MetricEntry& a, const MetricEntry& b) {
  return a.hook == b.hook && a.name == b.name && a.loader == b.loader;
}

void check_same_options(const MetricEntry& a, const MetricEntry& b) {
  if (a.reduce == b.reduce && a.on_step == b.on_step && a.on_epoch == b.on_epoch) return;
  fail<DistributedError>("log",
                         "metric '",
                         a.name,
                         "' in ",
                         to_string(a.hook),
                         " is logged with different options on different ranks. Use the same.");
}

}  // namespace

void MetricTable::reduce(const std::function<std::vector<StateDict>(const StateDict&)>& exchange,
                         bool of_epoch_hooks,
                         std::int64_t& clock) {
  StateDict mine;
  save(kKey, mine);
  std::vector<MetricEntry> sums;
  std::int64_t loaders = loaders_;
  for (const auto& state : exchange(mine)) {
    const auto table = load(kKey, state);
    loaders = std::max(loaders, table.loaders_);
    for (const auto& entry : table.entries_) {
      if (!entry.on_epoch || entry.total.empty() || entry.of_epoch_hook != of_epoch_hooks) continue;
      const auto same = [&](const MetricEntry& other) { return same_metric(entry, other); };
      const auto it = std::find_if(sums.begin(), sums.end(), same);
      if (it == sums.end()) {
        sums.push_back(entry);
      } else {
        check_same_options(*it, entry);
        it->total.merge(entry.total, entry.reduce);
      }
    }
  }
  loaders_ = loaders;
  for (auto& sum : sums) {
    const auto same = [&](const MetricEntry& other) { return same_metric(sum, other); };
    const auto it = std::find_if(entries_.begin(), entries_.end(), same);
    if (it == entries_.end()) {
      entries_.push_back(std::move(sum));  // Of a rank that had data where this one had none.
      entries_.back().step = {};
      entries_.back().epoch = {};
      if (of_epoch_hooks) show_epoch(entries_.back(), clock);
      continue;
    }
    check_same_options(*it, sum);
    it->total = sum.total;
    it->committed = true;
    if (of_epoch_hooks) show_epoch(*it, clock);
  }
  note_step_loggers();
}

}  // namespace fulmen::detail

namespace fulmen {

StateDict MetricStore::merge_open_sums(const std::vector<StateDict>& of_ranks) {
  MetricStore store;
  store.load_state_dict(of_ranks.front());
  auto& table = store.table(MetricPhase::kTrain);
  if (table.has_ended()) return of_ranks.front();
  const auto tables_of_all = [&](const StateDict&) {
    std::vector<StateDict> tables;
    for (const auto& state : of_ranks) {
      tables.emplace_back();
      detail::MetricTable::load(to_string(MetricPhase::kTrain), state)
          .save(detail::kKey, tables.back());
    }
    return tables;
  };
  table.reduce(tables_of_all, false, store.clock_);
  return store.state_dict();
}

StateDict MetricStore::without_open_sums(const StateDict& state) {
  MetricStore store;
  store.load_state_dict(state);
  auto& table = store.table(MetricPhase::kTrain);
  if (table.has_ended()) return state;
  table.reset_totals();
  return store.state_dict();
}

}  // namespace fulmen
