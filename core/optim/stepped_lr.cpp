#include "fulmen/core/optim/stepped_lr.h"

#include <utility>

#include "fulmen/core/support/error.h"
#include "rates.h"

namespace fulmen {

SteppedLR::SteppedLR(std::string_view name, std::shared_ptr<Optimizer> optimizer)
    : name_(name), optimizer_(std::move(optimizer)) {
  if (optimizer_ == nullptr) fail<ConfigError>(name_, "there is no optimizer (null pointer).");
  const auto initial = optimizer_->initial_lrs();
  initial_lrs_.assign(initial.begin(), initial.end());
}

void SteppedLR::step(std::optional<double>) {
  ++step_;
  apply();
}

void SteppedLR::restart() {
  step_ = 0;
  apply();
}

void SteppedLR::apply() {
  for (std::size_t group = 0; group < optimizer_->group_count(); ++group) {
    const double lr = optimizer_->hyperparameter(group, "lr");
    const double next = next_lr(group, lr);
    if (next != lr) optimizer_->set_hyperparameter(group, "lr", next);
  }
}

StateDict SteppedLR::state_dict() const {
  StateDict state;
  state.values["scheduler"] = name_;
  state.values["step_count"] = step_;
  state.values["initial_lrs"] = detail::rates_to_json(initial_lrs_);
  state.values["lrs"] = detail::rates_to_json(*optimizer_, "lr");
  return state;
}

void SteppedLR::check_state(const StateDict& state) const {
  detail::check_scheduler_name(state.values, name_);
  const auto steps = require_int(state.values, "step_count", name_);
  if (steps < 0) fail<CheckpointError>(name_, "step_count is ", steps, "; it must not be below 0.");
  const auto groups = optimizer_->group_count();
  detail::read_rates(state.values, "initial_lrs", groups, name_);
  detail::read_rates(state.values, "lrs", groups, name_);
}

void SteppedLR::load_state_dict(const StateDict& state) {
  check_state(state);
  const auto groups = optimizer_->group_count();
  step_ = require_int(state.values, "step_count", name_);
  initial_lrs_ = detail::read_rates(state.values, "initial_lrs", groups, name_);
  detail::set_rates(*optimizer_, "lr", detail::read_rates(state.values, "lrs", groups, name_));
}

}  // namespace fulmen
