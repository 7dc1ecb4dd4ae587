#include "fulmen/core/optim/composed_lr.h"

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

using Schedulers = std::vector<std::shared_ptr<SteppedLR>>;

void check_schedulers(const Schedulers& schedulers,
                      const Optimizer& optimizer,
                      std::string_view where) {
  if (schedulers.empty()) fail<ConfigError>(where, "schedulers is empty. Give at least one.");
  for (std::size_t i = 0; i < schedulers.size(); ++i) {
    if (schedulers[i] == nullptr) fail<ConfigError>(where, "scheduler ", i, " is null.");
    if (schedulers[i]->optimizer().get() != &optimizer) {
      fail<ConfigError>(where,
                        "scheduler ",
                        i,
                        " (",
                        schedulers[i]->name(),
                        ") belongs to another optimizer. All must have the same.");
    }
  }
}

void save_schedulers(const Schedulers& schedulers, StateDict& state) {
  boost::json::array saved;
  for (const auto& scheduler : schedulers) saved.push_back(scheduler->state_dict().values);
  state.values["schedulers"] = std::move(saved);
}

std::vector<StateDict> read_schedulers(const Schedulers& schedulers,
                                       const StateDict& state,
                                       std::string_view where) {
  const auto& saved = require_array(state.values, "schedulers", where);
  if (saved.size() != schedulers.size()) {
    fail<CheckpointError>(where,
                          "the state has ",
                          saved.size(),
                          " schedulers, this one has ",
                          schedulers.size(),
                          ".");
  }
  std::vector<StateDict> states;
  for (const auto& value : saved) {
    if (!value.is_object())
      fail<CheckpointError>(where, "an entry of schedulers is not an object.");
    states.push_back({.values = value.get_object(), .tensors = {}});
  }
  return states;
}

void check_saved(const Schedulers& schedulers, const StateDict& state, std::string_view where) {
  const auto states = read_schedulers(schedulers, state, where);
  for (std::size_t i = 0; i < states.size(); ++i) schedulers[i]->check_state(states[i]);
}

void load_schedulers(const Schedulers& schedulers, const StateDict& state, std::string_view where) {
  const auto states = read_schedulers(schedulers, state, where);
  for (std::size_t i = 0; i < states.size(); ++i) schedulers[i]->load_state_dict(states[i]);
}

}  // namespace

SequentialLR::SequentialLR(std::shared_ptr<Optimizer> given, SequentialLROptions options)
    : SteppedLR("SequentialLR", std::move(given)), options_(std::move(options)) {
  const auto& [schedulers, milestones] = options_;
  check_schedulers(schedulers, *optimizer(), name());
  if (milestones.size() + 1 != schedulers.size()) {
    fail<ConfigError>(name(),
                      "there are ",
                      milestones.size(),
                      " milestones for ",
                      schedulers.size(),
                      " schedulers. One fewer than schedulers is needed.");
  }
  for (std::size_t i = 0; i < milestones.size(); ++i) {
    if (milestones[i] >= 1 && (i == 0 || milestones[i] > milestones[i - 1])) continue;
    fail<ConfigError>(name(),
                      "milestone ",
                      i,
                      " is ",
                      milestones[i],
                      ". Milestones must be at least 1 and rise.");
  }
}

std::shared_ptr<SequentialLR> SequentialLR::make(std::shared_ptr<Optimizer> optimizer,
                                                 SequentialLROptions options) {
  std::shared_ptr<SequentialLR> made(new SequentialLR(std::move(optimizer), std::move(options)));
  made->restart();
  return made;
}

void SequentialLR::start_scheduler(std::size_t index) {
  for (std::size_t group = 0; group < optimizer()->group_count(); ++group) {
    optimizer()->set_hyperparameter(group, "lr", initial_lr(group));
  }
  options_.schedulers[index]->restart();
}

void SequentialLR::restart() {
  set_step_count(0);
  start_scheduler(0);
}

void SequentialLR::step(std::optional<double>) {
  set_step_count(step_count() + 1);
  const auto& milestones = options_.milestones;
  const auto next = std::upper_bound(milestones.begin(), milestones.end(), step_count());
  const auto index = static_cast<std::size_t>(next - milestones.begin());
  if (index > 0 && milestones[index - 1] == step_count()) {
    start_scheduler(index);
  } else {
    options_.schedulers[index]->step();
  }
}

StateDict SequentialLR::state_dict() const {
  auto state = SteppedLR::state_dict();
  save_schedulers(options_.schedulers, state);
  return state;
}

void SequentialLR::check_state(const StateDict& state) const {
  SteppedLR::check_state(state);
  check_saved(options_.schedulers, state, name());
}

void SequentialLR::load_state_dict(const StateDict& state) {
  check_state(state);
  load_schedulers(options_.schedulers, state, name());
  SteppedLR::load_state_dict(state);
}

ChainedScheduler::ChainedScheduler(std::shared_ptr<Optimizer> given,
                                   ChainedSchedulerOptions options)
    : SteppedLR("ChainedScheduler", std::move(given)), options_(std::move(options)) {
  check_schedulers(options_.schedulers, *optimizer(), name());
}

std::shared_ptr<ChainedScheduler> ChainedScheduler::make(std::shared_ptr<Optimizer> optimizer,
                                                         ChainedSchedulerOptions options) {
  // Its schedulers have put their step 0 in place already, each on top of the others.
  return std::shared_ptr<ChainedScheduler>(
      new ChainedScheduler(std::move(optimizer), std::move(options)));
}

void ChainedScheduler::restart() {
  set_step_count(0);
  for (const auto& scheduler : options_.schedulers) scheduler->restart();
}

void ChainedScheduler::step(std::optional<double>) {
  set_step_count(step_count() + 1);
  for (const auto& scheduler : options_.schedulers) scheduler->step();
}

StateDict ChainedScheduler::state_dict() const {
  auto state = SteppedLR::state_dict();
  save_schedulers(options_.schedulers, state);
  return state;
}

void ChainedScheduler::check_state(const StateDict& state) const {
  SteppedLR::check_state(state);
  check_saved(options_.schedulers, state, name());
}

void ChainedScheduler::load_state_dict(const StateDict& state) {
  check_state(state);
  load_schedulers(options_.schedulers, state, name());
  SteppedLR::load_state_dict(state);
}

}  // namespace fulmen
