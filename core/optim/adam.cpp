#include "fulmen/core/optim/adam.h"

#include <ATen/ATen.h>

#include <utility>

#include "step_count.h"

namespace fulmen {
namespace {

using detail::HyperparameterSpec;
using detail::OptimizerBase;
using detail::OptimizerKind;
using detail::StateKind;
using detail::StateSpec;

enum { kLr, kBeta1, kBeta2, kEps, kWeightDecay, kAmsgrad, kMaximize };
constexpr HyperparameterSpec kHyperparameters[] = {
    {.name = "lr"},
    {.name = "beta1", .high = 1},
    {.name = "beta2", .high = 1},
    {.name = "eps"},
    {.name = "weight_decay"},
    {.name = "amsgrad", .flag = true},
    {.name = "maximize", .flag = true},
};

enum { kStep, kExpAvg, kExpAvgSq, kMaxExpAvgSq };
constexpr StateSpec kState[] = {
    {.name = "step", .kind = StateKind::kStep},
    {.name = "exp_avg"},
    {.name = "exp_avg_sq"},
    {.name = "max_exp_avg_sq", .used_if = kAmsgrad},
};

constexpr OptimizerKind kAdam{"Adam", kHyperparameters, kState};
constexpr OptimizerKind kAdamW{"AdamW", kHyperparameters, kState};

template <class Options>
OptimizerBase::Values values_of(const Options& o) {
  return {o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, double(o.amsgrad), double(o.maximize)};
}

template <class Group, class Options>
std::vector<OptimizerBase::GroupInit> merge(std::vector<Group>&& groups, const Options& options) {
  std::vector<OptimizerBase::GroupInit> result;
  for (auto& g : groups) {
    const Options merged{.lr = g.lr.value_or(options.lr),
                         .beta1 = g.beta1.value_or(options.beta1),
                         .beta2 = g.beta2.value_or(options.beta2),
                         .eps = g.eps.value_or(options.eps),
                         .weight_decay = g.weight_decay.value_or(options.weight_decay),
                         .amsgrad = g.amsgrad.value_or(options.amsgrad),
                         .maximize = g.maximize.value_or(options.maximize)};
    result.push_back({.parameters = std::move(g.parameters), .values = values_of(merged)});
  }
  return result;
}

// Both kernels have the same signature.
template <class Kernel, class Batch>
void run(Kernel kernel, const OptimizerBase::Values& v, Batch& b) {
  detail::count_step(b.state[kStep]);
  kernel(b.parameters,
         b.gradients,
         b.state[kExpAvg],
         b.state[kExpAvgSq],
         b.state[kMaxExpAvgSq],
         b.state[kStep],
         v[kLr],
         v[kBeta1],
         v[kBeta2],
         v[kWeightDecay],
         v[kEps],
         v[kAmsgrad] != 0,
         v[kMaximize] != 0);
}

}  // namespace

Adam::Adam(std::vector<GroupInit> groups) : OptimizerBase(kAdam, std::move(groups)) {}

std::shared_ptr<Adam> Adam::make(Parameters parameters, AdamOptions options) {
  return std::shared_ptr<Adam>(new Adam({{std::move(parameters), values_of(options)}}));
}

std::shared_ptr<Adam> Adam::make(std::vector<AdamGroup> groups, AdamOptions options) {
  return std::shared_ptr<Adam>(new Adam(merge(std::move(groups), options)));
}

void Adam::update(const Values& values, Batch& batch) {
  run([](auto&&... args) { at::_fused_adam_(args...); }, values, batch);
}

AdamW::AdamW(std::vector<GroupInit> groups) : OptimizerBase(kAdamW, std::move(groups)) {}

std::shared_ptr<AdamW> AdamW::make(Parameters parameters, AdamWOptions options) {
  return std::shared_ptr<AdamW>(new AdamW({{std::move(parameters), values_of(options)}}));
}

std::shared_ptr<AdamW> AdamW::make(std::vector<AdamWGroup> groups, AdamWOptions options) {
  return std::shared_ptr<AdamW>(new AdamW(merge(std::move(groups), options)));
}

void AdamW::update(const Values& values, Batch& batch) {
  run([](auto&&... args) { at::_fused_adamw_(args...); }, values, batch);
}

}  // namespace fulmen
