#include "fulmen/core/optim/adagrad.h"

#include <ATen/ATen.h>

#include <utility>

#include "step_count.h"

namespace fulmen {
namespace {

using detail::OptimizerBase;
using detail::StateKind;

enum { kLr, kLrDecay, kWeightDecay, kInitialAccumulatorValue, kEps, kMaximize };
constexpr detail::HyperparameterSpec kHyperparameters[] = {
    {.name = "lr"},
    {.name = "lr_decay"},
    {.name = "weight_decay"},
    {.name = "initial_accumulator_value"},
    {.name = "eps"},
    {.name = "maximize", .flag = true},
};

enum { kStep, kSum };
constexpr detail::StateSpec kState[] = {
    {.name = "step", .kind = StateKind::kStep},
    {.name = "sum", .initial_value = kInitialAccumulatorValue},
};

constexpr detail::OptimizerKind kKind{"Adagrad", kHyperparameters, kState};

OptimizerBase::Values values_of(const AdagradOptions& o) {
  return {o.lr, o.lr_decay, o.weight_decay, o.initial_accumulator_value, o.eps, double(o.maximize)};
}

}  // namespace

Adagrad::Adagrad(std::vector<GroupInit> groups) : OptimizerBase(kKind, std::move(groups)) {}

std::shared_ptr<Adagrad> Adagrad::make(Parameters parameters, AdagradOptions options) {
  return std::shared_ptr<Adagrad>(new Adagrad({{std::move(parameters), values_of(options)}}));
}

std::shared_ptr<Adagrad> Adagrad::make(std::vector<AdagradGroup> groups, AdagradOptions options) {
  std::vector<GroupInit> merged;
  for (auto& g : groups) {
    merged.push_back(
        {.parameters = std::move(g.parameters),
         .values = values_of({.lr = g.lr.value_or(options.lr),
                              .lr_decay = g.lr_decay.value_or(options.lr_decay),
                              .weight_decay = g.weight_decay.value_or(options.weight_decay),
                              .initial_accumulator_value = g.initial_accumulator_value.value_or(
                                  options.initial_accumulator_value),
                              .eps = g.eps.value_or(options.eps),
                              .maximize = g.maximize.value_or(options.maximize)})});
  }
  return std::shared_ptr<Adagrad>(new Adagrad(std::move(merged)));
}

void Adagrad::update(const Values& v, Batch& batch) {
  detail::count_step(batch.state[kStep]);
  at::_fused_adagrad_(batch.parameters,
                      batch.gradients,
                      batch.state[kSum],
                      batch.state[kStep],
                      v[kLr],
                      v[kLrDecay],
                      v[kWeightDecay],
                      v[kEps],
                      v[kMaximize] != 0);
}

}  // namespace fulmen
