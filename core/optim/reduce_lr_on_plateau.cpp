#include "fulmen/core/optim/reduce_lr_on_plateau.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "fulmen/core/support/error.h"
#include "rates.h"

namespace fulmen {
namespace {

constexpr const char* kName = "ReduceLROnPlateau";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check(const ReduceLROnPlateauOptions& o) {
  const auto need = [](bool good, std::string_view option, std::string_view allowed, double value) {
    if (!good) fail<ConfigError>(kName, option, " must be ", allowed, ", got ", value, ".");
  };
  need(o.factor > 0 && o.factor < 1, "factor", "in (0, 1)", o.factor);
  need(o.patience >= 0, "patience", "at least 0", static_cast<double>(o.patience));
  need(o.cooldown >= 0, "cooldown", "at least 0", static_cast<double>(o.cooldown));
  need(o.threshold >= 0, "threshold", "at least 0", o.threshold);
  need(o.min_lr >= 0, "min_lr", "at least 0", o.min_lr);
  need(o.eps >= 0, "eps", "at least 0", o.eps);
}

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(std::shared_ptr<Optimizer> optimizer,
                                     ReduceLROnPlateauOptions options)
    : optimizer_(std::move(optimizer)),
      options_(options),
      best_(options.mode == PlateauMode::kMin ? kInfinity : -kInfinity) {
  if (optimizer_ == nullptr) fail<ConfigError>(kName, "there is no optimizer (null pointer).");
  check(options);
}

std::shared_ptr<ReduceLROnPlateau> ReduceLROnPlateau::make(std::shared_ptr<Optimizer> optimizer,
                                                           ReduceLROnPlateauOptions options) {
  return std::shared_ptr<ReduceLROnPlateau>(new ReduceLROnPlateau(std::move(optimizer), options));
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool relative = options_.threshold_mode == ThresholdMode::kRel;
  if (options_.mode == PlateauMode::kMin) {
    return metric < (relative ? best_ * (1 - options_.threshold) : best_ - options_.threshold);
  }
  return metric > (relative ? best_ * (options_.threshold + 1) : best_ + options_.threshold);
}

void ReduceLROnPlateau::step(std::optional<double> metric) {
  if (!metric) fail<ConfigError>(kName, "step() needs the metric that it watches. Set monitor.");
  ++step_;
  if (is_better(*metric)) {
    best_ = *metric;
    bad_steps_ = 0;
  } else {
    ++bad_steps_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    bad_steps_ = 0;
  }
  if (bad_steps_ > options_.patience) {
    reduce();
    cooldown_left_ = options_.cooldown;
    bad_steps_ = 0;
  }
}

void ReduceLROnPlateau::reduce() {
  for (std::size_t group = 0; group < optimizer_->group_count(); ++group) {
    const double lr = optimizer_->hyperparameter(group, "lr");
    const double reduced = std::max(lr * options_.factor, options_.min_lr);
    if (lr - reduced > options_.eps) optimizer_->set_hyperparameter(group, "lr", reduced);
  }
}

StateDict ReduceLROnPlateau::state_dict() const {
  StateDict state;
  state.values["scheduler"] = kName;
  state.values["step_count"] = step_;
  state.values["best"] = double_to_json(best_);
  state.values["bad_steps"] = bad_steps_;
  state.values["cooldown_left"] = cooldown_left_;
  state.values["lrs"] = detail::rates_to_json(*optimizer_, "lr");
  return state;
}

void ReduceLROnPlateau::load_state_dict(const StateDict& state) {
  const auto& values = state.values;
  detail::check_scheduler_name(values, kName);
  const auto step = require_int(values, "step_count", kName);
  const auto best = require_double(values, "best", kName);
  const auto bad_steps = require_int(values, "bad_steps", kName);
  const auto cooldown_left = require_int(values, "cooldown_left", kName);
  const auto rates = detail::read_rates(values, "lrs", optimizer_->group_count(), kName);
  step_ = step;
  best_ = best;
  bad_steps_ = bad_steps;
  cooldown_left_ = cooldown_left;
  detail::set_rates(*optimizer_, "lr", rates);
}

}  // namespace fulmen
