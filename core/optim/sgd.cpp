#include "fulmen/core/optim/sgd.h"

#include <ATen/ATen.h>

#include <utility>

#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

using detail::OptimizerBase;
using detail::StateKind;

enum { kLr, kMomentum, kDampening, kWeightDecay, kNesterov, kMaximize };
constexpr detail::HyperparameterSpec kHyperparameters[] = {
    {.name = "lr"},
    {.name = "momentum"},
    {.name = "dampening", .low = -detail::kUnbounded},
    {.name = "weight_decay"},
    {.name = "nesterov", .flag = true},
    {.name = "maximize", .flag = true},
};

constexpr detail::StateSpec kState[] = {
    {.name = "momentum_buffer", .kind = StateKind::kFirstGradient, .used_if = kMomentum},
};

constexpr detail::OptimizerKind kKind{"SGD", kHyperparameters, kState};

OptimizerBase::Values values_of(const SGDOptions& o) {
  return {o.lr, o.momentum, o.dampening, o.weight_decay, double(o.nesterov), double(o.maximize)};
}

}  // namespace

SGD::SGD(std::vector<GroupInit> groups) : OptimizerBase(kKind, std::move(groups)) {
  check_groups_together();
}

std::shared_ptr<SGD> SGD::make(Parameters parameters, SGDOptions options) {
  return std::shared_ptr<SGD>(new SGD({{std::move(parameters), values_of(options)}}));
}

std::shared_ptr<SGD> SGD::make(std::vector<SGDGroup> groups, SGDOptions options) {
  std::vector<GroupInit> merged;
  for (auto& g : groups) {
    merged.push_back(
        {.parameters = std::move(g.parameters),
         .values = values_of({.lr = g.lr.value_or(options.lr),
                              .momentum = g.momentum.value_or(options.momentum),
                              .dampening = g.dampening.value_or(options.dampening),
                              .weight_decay = g.weight_decay.value_or(options.weight_decay),
                              .nesterov = g.nesterov.value_or(options.nesterov),
                              .maximize = g.maximize.value_or(options.maximize)})});
  }
  return std::shared_ptr<SGD>(new SGD(std::move(merged)));
}

void SGD::check_values(const Values& values) const {
  if (values[kNesterov] != 0 && (values[kMomentum] == 0 || values[kDampening] != 0)) {
    fail<ConfigError>("SGD",
                      "nesterov needs a momentum above 0 and a dampening of 0, got momentum ",
                      values[kMomentum],
                      " and dampening ",
                      values[kDampening],
                      ".");
  }
}

void SGD::update(const Values& v, Batch& batch) {
  at::_fused_sgd_(batch.parameters,
                  batch.gradients,
                  batch.state[0],
                  v[kWeightDecay],
                  v[kMomentum],
                  v[kLr],
                  v[kDampening],
                  v[kNesterov] != 0,
                  v[kMaximize] != 0,
                  batch.first);
}

}  // namespace fulmen
