#include "fulmen/core/optim/optimizer_base.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "fulmen/core/support/error.h"
#include "group_state.h"

namespace fulmen::detail {
namespace {

// Names that occur twice say nothing (parameters of two modules, each under its own names):
// positions stand for them.
template <class Groups>
void drop_ambiguous_names(Groups& groups) {
  std::map<std::string, int> count;
  for (const auto& group : groups) {
    for (const auto& parameter : group.parameters) ++count[parameter.name];
  }
  for (auto& group : groups) {
    for (auto& parameter : group.parameters) {
      if (count[parameter.name] > 1) parameter.name.clear();
    }
  }
}

// The fused kernels walk memory in order, so a gradient must be laid out as its parameter is.
bool same_layout(const at::Tensor& gradient, const at::Tensor& parameter) {
  return (gradient.is_contiguous() && parameter.is_contiguous()) ||
         gradient.strides() == parameter.strides();
}

// The kernels read the step count where the parameter is.
at::TensorOptions step_options(const at::Tensor& parameter) {
  return at::TensorOptions(at::kFloat).device(parameter.device());
}

}  // namespace

OptimizerBase::OptimizerBase(const OptimizerKind& kind, std::vector<GroupInit> groups)
    : kind_(kind) {
  TORCH_INTERNAL_ASSERT(kind.hyperparameters.size() <= kMaxHyperparameters);
  TORCH_INTERNAL_ASSERT(kind.state.size() <= kMaxState);
  for (auto& init : groups) {
    Group group;
    group.parameters = init.parameters.named();
    group.values = init.values;
    for (std::size_t i = 0; i < kind.hyperparameters.size(); ++i) check_value(i, group.values[i]);
    groups_.push_back(std::move(group));
  }
  if (groups_.empty())
    fail<ConfigError>(name(), "there are no parameter groups. Give at least one.");
  drop_ambiguous_names(groups_);
  check_parameters();
}

void OptimizerBase::check_parameters() {
  std::unordered_map<const void*, std::string> seen;
  std::set<std::string> names;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    auto& group = groups_[g];
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const auto& [given, tensor] = group.parameters[i];
      const auto key = parameter_key(group.parameters[i], g, i);
      if (!tensor.defined()) fail<ConfigError>(name(), "parameter ", key, " is undefined.");
      if (!tensor.is_leaf()) {
        fail<ConfigError>(name(),
                          "parameter ",
                          key,
                          " is the result of an operation. Only leaf tensors can be optimized.");
      }
      if (!tensor.is_floating_point()) {
        fail<ConfigError>(name(),
                          "parameter ",
                          key,
                          " has dtype ",
                          tensor.scalar_type(),
                          ". Real floating point is allowed; wrap torch::optim's optimizer in a "
                          "TorchOptimizer for others.");
      }
      if (!tensor.is_non_overlapping_and_dense()) {
        fail<ConfigError>(name(),
                          "parameter ",
                          key,
                          " has gaps or overlaps in memory (sizes ",
                          tensor.sizes(),
                          ", strides ",
                          tensor.strides(),
                          "). Make it contiguous.");
      }
      if (const auto [at, fresh] = seen.emplace(tensor.unsafeGetTensorImpl(), key); !fresh) {
        fail<ConfigError>(name(),
                          "parameters ",
                          at->second,
                          " and ",
                          key,
                          " are one tensor in two groups. Leave it out of one of them.");
      }
      if (!names.insert(key).second) {
        fail<ConfigError>(name(), "two parameters have the name ", key, ". Names must differ.");
      }
    }
    group.entries.assign(group.parameters.size(), {});
    group.stale = true;
  }
}

const OptimizerBase::Group& OptimizerBase::group_at(std::size_t group) const {
  if (group >= groups_.size()) {
    fail<ConfigError>(name(), "there is no group ", group, "; it has ", groups_.size(), ".");
  }
  return groups_[group];
}

std::span<const NamedParameter> OptimizerBase::parameters(std::size_t group) const {
  return group_at(group).parameters;
}

std::vector<std::string> OptimizerBase::hyperparameter_names(std::size_t) const {
  std::vector<std::string> names;
  for (const auto& spec : kind_.hyperparameters) names.emplace_back(spec.name);
  return names;
}

std::size_t OptimizerBase::find_hyperparameter(std::string_view key) const {
  std::string known;
  for (std::size_t i = 0; i < kind_.hyperparameters.size(); ++i) {
    if (kind_.hyperparameters[i].name == key) return i;
  }
  for (const auto& spec : kind_.hyperparameters) known += " " + std::string(spec.name);
  fail<ConfigError>(name(), "there is no hyperparameter ", key, ". Known are:", known, ".");
}

void OptimizerBase::check_value(std::size_t index, double value) const {
  const auto& spec = kind_.hyperparameters[index];
  if (spec.flag) {
    if (value == 0 || value == 1) return;
    fail<ConfigError>(name(), spec.name, " must be 0 or 1, got ", value, ".");
  }
  if (value >= spec.low && value < spec.high) return;
  if (spec.high == kUnbounded) {
    fail<ConfigError>(
        name(), spec.name, " must be at least ", spec.low, " and finite, got ", value, ".");
  }
  fail<ConfigError>(
      name(), spec.name, " must be in [", spec.low, ", ", spec.high, "), got ", value, ".");
}

void OptimizerBase::check_values(const Values&) const {}

void OptimizerBase::check_groups_together() const {
  for (const auto& group : groups_) check_values(group.values);
}

double OptimizerBase::hyperparameter(std::size_t group, std::string_view key) const {
  return group_at(group).values[find_hyperparameter(key)];
}

void OptimizerBase::set_hyperparameter(std::size_t group, std::string_view key, double value) {
  group_at(group);
  const auto index = find_hyperparameter(key);
  check_value(index, value);
  auto& target = groups_[group];
  const bool switched = (target.values[index] == 0) != (value == 0);
  target.values[index] = value;
  if (switched) complete_states(target);
}

bool OptimizerBase::used(const StateSpec& spec, const Values& values) const {
  return spec.used_if < 0 || values[static_cast<std::size_t>(spec.used_if)] != 0;
}

void OptimizerBase::ensure_state(Group& group, std::size_t index) {
  const auto& parameter = group.parameters[index].tensor;
  auto& state = group.entries[index].state;
  for (std::size_t s = 0; s < kind_.state.size(); ++s) {
    const auto& spec = kind_.state[s];
    if (state[s].defined() || !used(spec, group.values)) continue;
    if (spec.kind == StateKind::kStep) {
      state[s] = at::zeros({}, step_options(parameter));
    } else if (spec.kind == StateKind::kLikeParameter) {
      const double initial =
          spec.initial_value < 0 ? 0 : group.values[static_cast<std::size_t>(spec.initial_value)];
      state[s] = at::full_like(parameter, initial, at::TensorOptions().requires_grad(false));
    }
  }
}

// An option that was switched on (amsgrad, momentum) needs its tensors for all parameters that have
// state already.
void OptimizerBase::complete_states(Group& group) {
  const at::NoGradGuard no_grad;
  group.stale = true;
  for (std::size_t i = 0; i < group.entries.size(); ++i) {
    for (const auto& tensor : group.entries[i].state) {
      if (!tensor.defined()) continue;
      ensure_state(group, i);
      break;
    }
  }
}

bool OptimizerBase::is_first(const Group& group, const Entry& entry) const {
  for (std::size_t s = 0; s < kind_.state.size(); ++s) {
    const auto& spec = kind_.state[s];
    if (spec.kind == StateKind::kFirstGradient && used(spec, group.values))
      return !entry.state[s].defined();
  }
  return false;
}

void OptimizerBase::build_batches(Group& group) {
  std::map<std::tuple<std::string, at::ScalarType, bool>, std::size_t> index;
  group.batches.clear();
  for (std::size_t i = 0; i < group.entries.size(); ++i) {
    const auto& parameter = group.parameters[i].tensor;
    auto& entry = group.entries[i];
    entry.active = parameter.grad().defined();
    if (!entry.active) continue;
    const bool first = is_first(group, entry);
    ensure_state(group, i);
    const auto [at, added] = index.try_emplace(
        {parameter.device().str(), parameter.scalar_type(), first}, group.batches.size());
    if (added) group.batches.emplace_back().first = first;
    auto& batch = group.batches[at->second];
    entry.batch = at->second;
    entry.slot = batch.parameters.size();
    batch.parameters.push_back(parameter);
    for (std::size_t s = 0; s < kind_.state.size(); ++s) {
      if (!used(kind_.state[s], group.values)) continue;
      if (!entry.state[s].defined()) entry.state[s] = at::zeros_like(parameter);
      batch.state[s].push_back(entry.state[s]);
    }
  }
  for (auto& batch : group.batches) batch.gradients.resize(batch.parameters.size());
}

// False if other parameters have gradients than the batches were built for.
bool OptimizerBase::collect_gradients(Group& group) const {
  for (std::size_t i = 0; i < group.entries.size(); ++i) {
    const auto& parameter = group.parameters[i].tensor;
    const auto& gradient = parameter.grad();
    const auto& entry = group.entries[i];
    if (gradient.defined() != entry.active) return false;
    if (!entry.active) continue;
    if (gradient.layout() != at::kStrided) fail_gradient(group, i);
    auto& target = group.batches[entry.batch].gradients[entry.slot];
    target =
        same_layout(gradient, parameter) ? gradient : at::empty_like(parameter).copy_(gradient);
  }
  return true;
}

void OptimizerBase::fail_gradient(const Group& group, std::size_t index) const {
  const auto g = static_cast<std::size_t>(&group - groups_.data());
  fail<TrainingError>(
      name(),
      "the gradient of ",
      parameter_key(group.parameters[index], g, index),
      " is not dense. Use dense gradients (sparse = false), or torch::optim's optimizer "
      "in a TorchOptimizer.");
}

at::Tensor OptimizerBase::step(const Closure& closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  for (auto& group : groups_) {
    if (group.stale || !collect_gradients(group)) {
      build_batches(group);
      group.stale = false;
      collect_gradients(group);
    }
    for (auto& batch : group.batches) {
      update(group.values, batch);
      group.stale |= batch.first;
      for (auto& gradient : batch.gradients) gradient.reset();
      // The fused kernels leave the versions as they were, and backward could not see that a graph
      // is stale.
      for (auto& parameter : batch.parameters) parameter.unsafeGetTensorImpl()->bump_version();
    }
  }
  return loss;
}

void OptimizerBase::bind(const std::function<void(NamedParameter&)>& bind) {
  for (const auto& group : groups_) {
    for (const auto& entry : group.entries) {
      for (const auto& tensor : entry.state) {
        if (tensor.defined()) {
          fail<ConfigError>(name(),
                            "parameters cannot be bound after the first step or a load of state.");
        }
      }
    }
  }
  for (auto& group : groups_) {
    for (auto& parameter : group.parameters) bind(parameter);
    group.batches.clear();
  }
  check_parameters();
}

}  // namespace fulmen::detail
