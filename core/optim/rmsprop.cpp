#include "fulmen/core/optim/rmsprop.h"

#include <ATen/ATen.h>

#include <utility>

#include "step_count.h"

namespace fulmen {
namespace {

using detail::OptimizerBase;
using detail::StateKind;

enum { kLr, kAlpha, kEps, kWeightDecay, kMomentum, kCentered, kMaximize };
constexpr detail::HyperparameterSpec kHyperparameters[] = {
    {.name = "lr"},
    {.name = "alpha"},
    {.name = "eps"},
    {.name = "weight_decay"},
    {.name = "momentum"},
    {.name = "centered", .flag = true},
    {.name = "maximize", .flag = true},
};

enum { kStep, kSquareAvg, kMomentumBuffer, kGradAvg };
constexpr detail::StateSpec kState[] = {
    {.name = "step", .kind = StateKind::kStep},
    {.name = "square_avg"},
    {.name = "momentum_buffer", .used_if = kMomentum},
    {.name = "grad_avg", .used_if = kCentered},
};

constexpr detail::OptimizerKind kKind{"RMSprop", kHyperparameters, kState};

OptimizerBase::Values values_of(const RMSpropOptions& o) {
  return {o.lr, o.alpha, o.eps, o.weight_decay, o.momentum, double(o.centered), double(o.maximize)};
}

}  // namespace

RMSprop::RMSprop(std::vector<GroupInit> groups) : OptimizerBase(kKind, std::move(groups)) {}

std::shared_ptr<RMSprop> RMSprop::make(Parameters parameters, RMSpropOptions options) {
  return std::shared_ptr<RMSprop>(new RMSprop({{std::move(parameters), values_of(options)}}));
}

std::shared_ptr<RMSprop> RMSprop::make(std::vector<RMSpropGroup> groups, RMSpropOptions options) {
  std::vector<GroupInit> merged;
  for (auto& g : groups) {
    merged.push_back(
        {.parameters = std::move(g.parameters),
         .values = values_of({.lr = g.lr.value_or(options.lr),
                              .alpha = g.alpha.value_or(options.alpha),
                              .eps = g.eps.value_or(options.eps),
                              .weight_decay = g.weight_decay.value_or(options.weight_decay),
                              .momentum = g.momentum.value_or(options.momentum),
                              .centered = g.centered.value_or(options.centered),
                              .maximize = g.maximize.value_or(options.maximize)})});
  }
  return std::shared_ptr<RMSprop>(new RMSprop(std::move(merged)));
}

void RMSprop::update(const Values& v, Batch& batch) {
  detail::count_step(batch.state[kStep]);
  auto& square_avg = batch.state[kSquareAvg];
  std::vector<at::Tensor>
      made;  // Gradients changed by the options; the user's own stay as they are.
  if (v[kMaximize] != 0) made = at::_foreach_neg(batch.gradients);
  if (v[kWeightDecay] != 0) {
    made =
        at::_foreach_add(made.empty() ? batch.gradients : made, batch.parameters, v[kWeightDecay]);
  }
  const auto& gradients = made.empty() ? batch.gradients : made;

  at::_foreach_mul_(square_avg, v[kAlpha]);
  at::_foreach_addcmul_(square_avg, gradients, gradients, 1 - v[kAlpha]);
  std::vector<at::Tensor> divisor;
  if (v[kCentered] != 0) {
    auto& grad_avg = batch.state[kGradAvg];
    at::_foreach_lerp_(grad_avg, gradients, 1 - v[kAlpha]);
    divisor = at::_foreach_addcmul(square_avg, grad_avg, grad_avg, -1);
    at::_foreach_sqrt_(divisor);
  } else {
    divisor = at::_foreach_sqrt(square_avg);
  }
  at::_foreach_add_(divisor, v[kEps]);

  if (v[kMomentum] == 0) {
    at::_foreach_addcdiv_(batch.parameters, gradients, divisor, -v[kLr]);
    return;
  }
  auto& buffer = batch.state[kMomentumBuffer];
  at::_foreach_mul_(buffer, v[kMomentum]);
  at::_foreach_addcdiv_(buffer, gradients, divisor, 1);
  at::_foreach_add_(batch.parameters, buffer, -v[kLr]);
}

}  // namespace fulmen
