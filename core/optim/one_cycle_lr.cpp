#include "fulmen/core/optim/one_cycle_lr.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "fulmen/core/support/error.h"
#include "rates.h"

namespace fulmen {
namespace {

void check(const OneCycleLROptions& o) {
  const auto need = [](bool good, std::string_view option, std::string_view allowed, double value) {
    if (!good) fail<ConfigError>("OneCycleLR", option, " must be ", allowed, ", got ", value, ".");
  };
  need(o.max_lr > 0 && std::isfinite(o.max_lr), "max_lr", "above 0 and finite", o.max_lr);
  need(o.total_steps >= 1,
       "total_steps (or epochs * steps_per_epoch)",
       "at least 1",
       static_cast<double>(o.total_steps));
  need(o.pct_start >= 0 && o.pct_start <= 1, "pct_start", "in [0, 1]", o.pct_start);
  need(o.div_factor > 0, "div_factor", "above 0", o.div_factor);
  need(o.final_div_factor > 0, "final_div_factor", "above 0", o.final_div_factor);
}

std::string momentum_name(const Optimizer& optimizer) {
  const auto names = optimizer.hyperparameter_names(0);
  for (const char* name : {"momentum", "beta1"}) {
    if (std::find(names.begin(), names.end(), name) != names.end()) return name;
  }
  fail<ConfigError>("OneCycleLR",
                    optimizer.name(),
                    " has neither momentum nor beta1. Set cycle_momentum to false.");
}

}  // namespace

OneCycleLR::OneCycleLR(std::shared_ptr<Optimizer> given, OneCycleLROptions options)
    : SteppedLR("OneCycleLR", std::move(given)), options_(options) {
  if (options_.total_steps == 0) options_.total_steps = options_.epochs * options_.steps_per_epoch;
  check(options_);
  if (options_.cycle_momentum) momentum_name_ = momentum_name(*optimizer());
  add_phases();
}

std::shared_ptr<OneCycleLR> OneCycleLR::make(std::shared_ptr<Optimizer> optimizer,
                                             OneCycleLROptions options) {
  std::shared_ptr<OneCycleLR> made(new OneCycleLR(std::move(optimizer), options));
  made->restart();
  return made;
}

void OneCycleLR::add_phases() {
  const auto& o = options_;
  const auto total = static_cast<double>(o.total_steps);
  const double first = o.max_lr / o.div_factor;
  const double last = first / o.final_div_factor;
  const double low = o.base_momentum;
  const double high = o.max_momentum;
  phases_.push_back({o.pct_start * total - 1, first, o.max_lr, high, low});
  if (o.three_phase) {
    phases_.push_back({2 * o.pct_start * total - 2, o.max_lr, first, low, high});
    phases_.push_back({total - 1, first, last, high, high});
  } else {
    phases_.push_back({total - 1, o.max_lr, last, low, high});
  }
}

const OneCycleLR::Phase& OneCycleLR::phase(double& progress) const {
  const auto now = static_cast<double>(step_count());
  double start = 0;
  std::size_t i = 0;
  for (; i + 1 < phases_.size() && now > phases_[i].end_step; ++i) start = phases_[i].end_step;
  const double length = phases_[i].end_step - start;
  // The step after the last one that is used would be past the end: PyTorch's linear rate is
  // negative there.
  progress = length == 0 ? 1 : std::min((now - start) / length, 1.0);
  return phases_[i];
}

double OneCycleLR::anneal(double from, double to, double progress) const {
  if (options_.anneal_strategy == AnnealStrategy::kLinear) return (to - from) * progress + from;
  return to + (from - to) / 2.0 * (std::cos(std::numbers::pi * progress) + 1);
}

double OneCycleLR::next_lr(std::size_t, double) const {
  double progress = 0;
  const auto& now = phase(progress);
  return anneal(now.start_lr, now.end_lr, progress);
}

void OneCycleLR::apply() {
  SteppedLR::apply();
  if (momentum_name_.empty()) return;
  double progress = 0;
  const auto& now = phase(progress);
  const double momentum = anneal(now.start_momentum, now.end_momentum, progress);
  for (std::size_t group = 0; group < optimizer()->group_count(); ++group) {
    optimizer()->set_hyperparameter(group, momentum_name_, momentum);
  }
}

void OneCycleLR::step(std::optional<double> metric) {
  if (step_count() >= options_.total_steps) {
    fail<ConfigError>(name(),
                      "step ",
                      step_count() + 1,
                      " is beyond total_steps = ",
                      options_.total_steps,
                      ". Set total_steps to the steps of the whole run.");
  }
  SteppedLR::step(metric);
}

StateDict OneCycleLR::state_dict() const {
  auto state = SteppedLR::state_dict();
  if (!momentum_name_.empty()) {
    state.values["momenta"] = detail::rates_to_json(*optimizer(), momentum_name_);
  }
  return state;
}

void OneCycleLR::check_state(const StateDict& state) const {
  SteppedLR::check_state(state);
  if (!momentum_name_.empty()) {
    detail::read_rates(state.values, "momenta", optimizer()->group_count(), name());
  }
}

void OneCycleLR::load_state_dict(const StateDict& state) {
  SteppedLR::load_state_dict(state);
  if (momentum_name_.empty()) return;
  detail::set_rates(
      *optimizer(),
      momentum_name_,
      detail::read_rates(state.values, "momenta", optimizer()->group_count(), name()));
}

}  // namespace fulmen
