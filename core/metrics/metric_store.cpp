#include "fulmen/core/metrics/metric_store.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/metrics/metric_table.h"
#include "fulmen/core/support/error.h"

namespace fulmen {

using detail::MetricEntry;
using detail::MetricTable;
using detail::MetricValue;

namespace {

constexpr std::string_view kWhere = "metrics of the checkpoint";
constexpr std::array kSavedPhases = {
    MetricPhase::kTrain, MetricPhase::kValidate, MetricPhase::kTest};

/// Names with the values they stand for; all are read at once.
class Reading {
 public:
  void add(const std::string& name, const MetricEntry::Shown& shown) {
    const auto [at, is_new] = newest_.try_emplace(name, &shown);
    if (!is_new && at->second->stamp < shown.stamp) at->second = &shown;
  }
  std::map<std::string, double> read() const {
    std::vector<const MetricValue*> values;
    for (const auto& [name, shown] : newest_) values.push_back(&shown->value);
    const std::vector<double> numbers = detail::read_values(values);
    std::map<std::string, double> result;
    auto number = numbers.begin();
    for (const auto& [name, shown] : newest_) result.emplace_hint(result.end(), name, *number++);
    return result;
  }

 private:
  std::map<std::string_view, const MetricEntry::Shown*> newest_;
};

}  // namespace

std::string_view to_string(MetricPhase phase) {
  constexpr std::array<std::string_view, 4> kNames = {"train", "sanity_check", "validate", "test"};
  return kNames[static_cast<std::size_t>(phase)];
}

MetricStore::MetricStore(CpuTensors cpu_tensors) : cpu_tensors_(cpu_tensors) {
  for (auto& table : tables_) table = std::make_unique<MetricTable>();
}

MetricStore::~MetricStore() = default;

void MetricStore::begin_run() {
  for (auto& table : tables_) *table = MetricTable();
  phases_.clear();
  current_ = nullptr;
  clock_ = 0;
  hook_ = HookPoint::kOutside;
}

void MetricStore::begin_phase(MetricPhase phase) {
  phases_.push_back(phase);
  current_ = &table(phase);
  if (phase != MetricPhase::kTrain) current_->reset_totals();
}

void MetricStore::begin_epoch() {
  if (current_ != nullptr) current_->begin_epoch();
}

void MetricStore::end_epoch() {
  if (current_ != nullptr) current_->end_epoch(clock_);
}

void MetricStore::reduce_epoch(const Exchange& exchange) {
  if (current_ != nullptr) current_->reduce(exchange, false, clock_);
}

void MetricStore::reduce_epoch_hooks(const Exchange& exchange) {
  if (current_ != nullptr) current_->reduce(exchange, true, clock_);
}

void MetricStore::end_phase() {
  if (phases_.empty()) return;
  if (phases_.back() == MetricPhase::kSanityCheck) *current_ = MetricTable();
  phases_.pop_back();
  current_ = phases_.empty() ? nullptr : &table(phases_.back());
}

void MetricStore::set_batch(BatchView batch,
                            std::int64_t dataloader_idx,
                            std::int64_t dataloader_count) {
  if (current_ != nullptr) current_->start_batch(batch, dataloader_idx, dataloader_count);
}

void MetricStore::log(std::string_view name, const at::Tensor& value, const LogOptions& options) {
  MetricValue copy;
  if (cpu_tensors_ == CpuTensors::kKeep || !detail::read_cpu_scalar(value, copy.number)) {
    copy = detail::copy_value(name, value);
  }
  record(name, copy, options);
}

void MetricStore::log(std::string_view name, double value, const LogOptions& options) {
  record(name, MetricValue{.number = value}, options);
}

void MetricStore::record(std::string_view name,
                         const MetricValue& value,
                         const LogOptions& options) {
  if (current_ == nullptr) detail::refuse_hook(hook_, name);
  const std::size_t place = current_->find_or_add(hook_, name, options);
  MetricEntry& entry = current_->entry(place);
  const double weight = current_->weight(entry, options);
  if (entry.of_epoch_hook) {
    current_->apply(entry, value, weight, clock_);
  } else {
    current_->push(place, value, weight);
  }
}

void MetricStore::commit() {
  if (current_ != nullptr) current_->commit(clock_);
}

void MetricStore::discard() {
  if (current_ != nullptr) current_->discard();
}

std::map<std::string, double> MetricStore::step_metrics(MetricPhase phase) const {
  Reading reading;
  for (const MetricEntry& entry : table(phase).entries()) {
    if (entry.logger && table(phase).is_newest_step(entry))
      reading.add(entry.step_name, entry.step);
  }
  return reading.read();
}

std::map<std::string, double> MetricStore::epoch_metrics(MetricPhase phase) const {
  Reading reading;
  for (const MetricEntry& entry : table(phase).entries()) {
    if (entry.logger && table(phase).is_of_this_epoch(entry))
      reading.add(entry.epoch_name, entry.epoch);
  }
  return reading.read();
}

std::vector<std::map<std::string, double>> MetricStore::dataloader_results(
    MetricPhase phase) const {
  std::vector<std::map<std::string, double>> results;
  for (std::int64_t loader = 0; loader < table(phase).loaders(); ++loader) {
    Reading reading;
    for (const MetricEntry& entry : table(phase).entries()) {
      if (!table(phase).is_of_this_epoch(entry)) continue;
      if (entry.loader != detail::kNoLoader && entry.loader != loader) continue;
      reading.add(entry.plain_name, entry.epoch);
      reading.add(entry.epoch_name, entry.epoch);
    }
    results.push_back(reading.read());
  }
  return results;
}

template <class Visitor>
void MetricStore::visit_published(Dictionary which, const Visitor& visit) const {
  const bool callback = which == Dictionary::kCallback;
  for (const MetricPhase phase : {MetricPhase::kTrain,
                                  MetricPhase::kSanityCheck,
                                  MetricPhase::kValidate,
                                  MetricPhase::kTest}) {
    const bool steps = !callback || phase == MetricPhase::kTrain;
    for (const MetricEntry& entry : table(phase).entries()) {
      if (which == Dictionary::kProgressBar && !entry.prog_bar) continue;
      if (which == Dictionary::kLogged && !entry.logger) continue;
      if (steps && entry.step.stamp > 0) {
        visit(entry.step_name, entry.step);
        if (callback) visit(entry.plain_name, entry.step);
      }
      if (entry.epoch.stamp > 0) {
        visit(entry.epoch_name, entry.epoch);
        if (callback) visit(entry.plain_name, entry.epoch);
      }
    }
  }
}

std::map<std::string, double> MetricStore::dictionary(Dictionary which) const {
  Reading reading;
  visit_published(which, [&](const std::string& name, const MetricEntry::Shown& shown) {
    reading.add(name, shown);
  });
  return reading.read();
}

std::map<std::string, double> MetricStore::callback_metrics() const {
  return dictionary(Dictionary::kCallback);
}
std::map<std::string, double> MetricStore::progress_bar_metrics() const {
  return dictionary(Dictionary::kProgressBar);
}
std::map<std::string, double> MetricStore::logged_metrics() const {
  return dictionary(Dictionary::kLogged);
}

std::optional<double> MetricStore::metric(std::string_view name) const {
  const MetricEntry::Shown* newest = nullptr;
  visit_published(Dictionary::kCallback,
                  [&](const std::string& shown_name, const MetricEntry::Shown& shown) {
                    if (shown_name == name && (newest == nullptr || newest->stamp < shown.stamp))
                      newest = &shown;
                  });
  if (newest == nullptr) return std::nullopt;
  const MetricValue* const value = &newest->value;
  return detail::read_values({&value, 1}).front();
}

bool MetricStore::has_step_logger_metrics(MetricPhase phase) const {
  return table(phase).has_step_logger_metrics();
}

StateDict MetricStore::state_dict() const {
  StateDict state;
  for (const MetricPhase phase : kSavedPhases) table(phase).save(to_string(phase), state);
  if (!state.empty()) state.values["clock"] = clock_;
  return state;
}

void MetricStore::load_state_dict(const StateDict& state) {
  std::array<MetricTable, kSavedPhases.size()> loaded;
  for (std::size_t i = 0; i < loaded.size(); ++i)
    loaded[i] = MetricTable::load(to_string(kSavedPhases[i]), state);
  const std::int64_t clock = state.empty() ? 0 : require_int(state.values, "clock", kWhere);

  clock_ = clock;
  for (std::size_t i = 0; i < loaded.size(); ++i) table(kSavedPhases[i]) = std::move(loaded[i]);
  table(MetricPhase::kSanityCheck) = MetricTable();
}

}  // namespace fulmen
