#include "fulmen/core/optim/lr_schedulers.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

void check(bool good,
           std::string_view where,
           std::string_view option,
           std::string_view allowed,
           double value) {
  if (!good) fail<ConfigError>(where, option, " must be ", allowed, ", got ", value, ".");
}

void check_count(std::int64_t count, std::string_view where, std::string_view option) {
  check(count >= 1, where, option, "at least 1", static_cast<double>(count));
}

void check_gamma(double gamma, std::string_view where) {
  check(gamma > 0 && std::isfinite(gamma), where, "gamma", "above 0 and finite", gamma);
}

std::vector<LRFunction> functions_of(LambdaLROptions&& options,
                                     const Optimizer& optimizer,
                                     std::string_view where) {
  auto functions = std::move(options.lr_lambdas);
  if (options.lr_lambda) {
    if (!functions.empty()) fail<ConfigError>(where, "give lr_lambda or lr_lambdas, not both.");
    functions.assign(optimizer.group_count(), options.lr_lambda);
  }
  if (functions.size() != optimizer.group_count()) {
    fail<ConfigError>(where,
                      "there are ",
                      functions.size(),
                      " functions in lr_lambdas for ",
                      optimizer.group_count(),
                      " groups. Give one for each, or lr_lambda for all.");
  }
  for (const auto& function : functions) {
    if (!function) fail<ConfigError>(where, "a function in lr_lambdas is empty.");
  }
  return functions;
}

// Made, checked and put at step 0.
template <class Scheduler>
std::shared_ptr<Scheduler> started(Scheduler* scheduler) {
  std::shared_ptr<Scheduler> owner(scheduler);
  owner->restart();
  return owner;
}

}  // namespace

StepLR::StepLR(std::shared_ptr<Optimizer> optimizer, StepLROptions options)
    : SteppedLR("StepLR", std::move(optimizer)), options_(options) {
  check_count(options.step_size, name(), "step_size");
  check_gamma(options.gamma, name());
}

std::shared_ptr<StepLR> StepLR::make(std::shared_ptr<Optimizer> optimizer, StepLROptions options) {
  return started(new StepLR(std::move(optimizer), options));
}

double StepLR::next_lr(std::size_t, double lr) const {
  return step_count() == 0 || step_count() % options_.step_size != 0 ? lr : lr * options_.gamma;
}

MultiStepLR::MultiStepLR(std::shared_ptr<Optimizer> optimizer, MultiStepLROptions options)
    : SteppedLR("MultiStepLR", std::move(optimizer)), options_(std::move(options)) {
  check_gamma(options_.gamma, name());
}

std::shared_ptr<MultiStepLR> MultiStepLR::make(std::shared_ptr<Optimizer> optimizer,
                                               MultiStepLROptions options) {
  return started(new MultiStepLR(std::move(optimizer), std::move(options)));
}

double MultiStepLR::next_lr(std::size_t, double lr) const {
  const auto hits =
      std::count(options_.milestones.begin(), options_.milestones.end(), step_count());
  return hits == 0 ? lr : lr * std::pow(options_.gamma, static_cast<double>(hits));
}

ExponentialLR::ExponentialLR(std::shared_ptr<Optimizer> optimizer, ExponentialLROptions options)
    : SteppedLR("ExponentialLR", std::move(optimizer)), options_(options) {
  check_gamma(options.gamma, name());
}

std::shared_ptr<ExponentialLR> ExponentialLR::make(std::shared_ptr<Optimizer> optimizer,
                                                   ExponentialLROptions options) {
  return started(new ExponentialLR(std::move(optimizer), options));
}

double ExponentialLR::next_lr(std::size_t, double lr) const {
  return step_count() == 0 ? lr : lr * options_.gamma;
}

ConstantLR::ConstantLR(std::shared_ptr<Optimizer> optimizer, ConstantLROptions options)
    : SteppedLR("ConstantLR", std::move(optimizer)), options_(options) {
  check(options.factor > 0 && options.factor <= 1, name(), "factor", "in (0, 1]", options.factor);
  check_count(options.total_iters, name(), "total_iters");
}

std::shared_ptr<ConstantLR> ConstantLR::make(std::shared_ptr<Optimizer> optimizer,
                                             ConstantLROptions options) {
  return started(new ConstantLR(std::move(optimizer), options));
}

double ConstantLR::next_lr(std::size_t, double lr) const {
  if (step_count() == 0) return lr * options_.factor;
  return step_count() == options_.total_iters ? lr * (1.0 / options_.factor) : lr;
}

LinearLR::LinearLR(std::shared_ptr<Optimizer> optimizer, LinearLROptions options)
    : SteppedLR("LinearLR", std::move(optimizer)), options_(options) {
  const auto& o = options;
  check(o.start_factor > 0 && o.start_factor <= 1,
        name(),
        "start_factor",
        "in (0, 1]",
        o.start_factor);
  check(o.end_factor >= 0 && o.end_factor <= 1, name(), "end_factor", "in [0, 1]", o.end_factor);
  check_count(o.total_iters, name(), "total_iters");
}

std::shared_ptr<LinearLR> LinearLR::make(std::shared_ptr<Optimizer> optimizer,
                                         LinearLROptions options) {
  return started(new LinearLR(std::move(optimizer), options));
}

double LinearLR::next_lr(std::size_t, double lr) const {
  if (step_count() == 0) return lr * options_.start_factor;
  if (step_count() > options_.total_iters) return lr;
  const double rise = options_.end_factor - options_.start_factor;
  const auto total = static_cast<double>(options_.total_iters);
  const auto before = static_cast<double>(step_count() - 1);
  return lr * (1.0 + rise / (total * options_.start_factor + before * rise));
}

PolynomialLR::PolynomialLR(std::shared_ptr<Optimizer> optimizer, PolynomialLROptions options)
    : SteppedLR("PolynomialLR", std::move(optimizer)), options_(options) {
  check_count(options.total_iters, name(), "total_iters");
}

std::shared_ptr<PolynomialLR> PolynomialLR::make(std::shared_ptr<Optimizer> optimizer,
                                                 PolynomialLROptions options) {
  return started(new PolynomialLR(std::move(optimizer), options));
}

double PolynomialLR::next_lr(std::size_t, double lr) const {
  if (step_count() == 0 || step_count() > options_.total_iters) return lr;
  const auto total = static_cast<double>(options_.total_iters);
  const auto now = static_cast<double>(step_count());
  return lr * std::pow((1.0 - now / total) / (1.0 - (now - 1) / total), options_.power);
}

CosineAnnealingLR::CosineAnnealingLR(std::shared_ptr<Optimizer> optimizer,
                                     CosineAnnealingLROptions options)
    : SteppedLR("CosineAnnealingLR", std::move(optimizer)), options_(options) {
  check_count(options.t_max, name(), "t_max");
  check(options.eta_min >= 0 && std::isfinite(options.eta_min),
        name(),
        "eta_min",
        "at least 0 and finite",
        options.eta_min);
}

std::shared_ptr<CosineAnnealingLR> CosineAnnealingLR::make(std::shared_ptr<Optimizer> optimizer,
                                                           CosineAnnealingLROptions options) {
  return started(new CosineAnnealingLR(std::move(optimizer), options));
}

double CosineAnnealingLR::next_lr(std::size_t group, double lr) const {
  if (step_count() == 0) return lr;
  const auto t_max = static_cast<double>(options_.t_max);
  const auto now = static_cast<double>(step_count());
  constexpr double kPi = std::numbers::pi;
  // One step after the bottom the ratio below would be over zero.
  if ((step_count() - 1 - options_.t_max) % (2 * options_.t_max) == 0) {
    return lr + (initial_lr(group) - options_.eta_min) * (1 - std::cos(kPi / t_max)) / 2;
  }
  const double ratio = (1 + std::cos(kPi * now / t_max)) / (1 + std::cos(kPi * (now - 1) / t_max));
  return ratio * (lr - options_.eta_min) + options_.eta_min;
}

LambdaLR::LambdaLR(std::shared_ptr<Optimizer> given, LambdaLROptions options)
    : SteppedLR("LambdaLR", std::move(given)),
      functions_(functions_of(std::move(options), *optimizer(), name())) {}

std::shared_ptr<LambdaLR> LambdaLR::make(std::shared_ptr<Optimizer> optimizer,
                                         LambdaLROptions options) {
  return started(new LambdaLR(std::move(optimizer), std::move(options)));
}

double LambdaLR::next_lr(std::size_t group, double) const {
  return initial_lr(group) * functions_[group](step_count());
}

MultiplicativeLR::MultiplicativeLR(std::shared_ptr<Optimizer> given, LambdaLROptions options)
    : SteppedLR("MultiplicativeLR", std::move(given)),
      functions_(functions_of(std::move(options), *optimizer(), name())) {}

std::shared_ptr<MultiplicativeLR> MultiplicativeLR::make(std::shared_ptr<Optimizer> optimizer,
                                                         LambdaLROptions options) {
  return started(new MultiplicativeLR(std::move(optimizer), std::move(options)));
}

double MultiplicativeLR::next_lr(std::size_t group, double lr) const {
  return step_count() == 0 ? lr : lr * functions_[group](step_count());
}

}  // namespace fulmen
