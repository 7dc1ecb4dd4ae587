#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>
#include <utility>

#include "fulmen/core/optim/optimizer_base.h"
#include "fulmen/core/support/error.h"
#include "group_state.h"

namespace fulmen::detail {
namespace {

std::size_t find_state(std::span<const StateSpec> specs, std::string_view name) {
  std::size_t index = 0;
  while (index < specs.size() && specs[index].name != name) ++index;
  return index;
}

std::string tensor_problem(const std::string& name,
                           const at::Tensor& tensor,
                           const at::Tensor& parameter,
                           StateKind kind) {
  if (!tensor.defined()) return sentence(name, " is undefined");
  const bool scalar = kind == StateKind::kStep;
  const auto dtype = scalar ? at::kFloat : parameter.scalar_type();
  const auto shape = scalar ? at::IntArrayRef{} : parameter.sizes();
  std::string problem;
  if (tensor.sizes() != shape) {
    problem = sentence(name, " has shape ", tensor.sizes(), " where ", shape, " is needed");
  }
  if (tensor.scalar_type() != dtype) {
    problem += sentence(problem.empty() ? name : ", and",
                        " has dtype ",
                        tensor.scalar_type(),
                        " where ",
                        dtype,
                        " is needed");
  }
  return problem;
}

}  // namespace

StateDict OptimizerBase::state_dict() const {
  StateDict result{.values = groups_to_json(*this), .tensors = {}};
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const auto& group = groups_[g];
    for (std::size_t i = 0; i < group.entries.size(); ++i) {
      const auto key = parameter_key(group.parameters[i], g, i);
      for (std::size_t s = 0; s < kind_.state.size(); ++s) {
        const auto& tensor = group.entries[i].state[s];
        if (tensor.defined())
          result.tensors.emplace(sentence(key, "/", kind_.state[s].name), tensor);
      }
    }
  }
  return result;
}

void OptimizerBase::check_state(const StateDict& state, std::vector<std::string>& problems) const {
  std::vector<std::string> found;
  check_groups(*this, state.values, found);
  const bool groups_fit = found.empty();
  for (std::size_t g = 0; groups_fit && g < groups_.size(); ++g) {
    for (const auto& [key, value] : saved_hyperparameters(state.values, g)) {
      try {
        check_value(find_hyperparameter(key), value);
      } catch (const ConfigError& error) {
        found.push_back(sentence("group ", g, ": ", error.what()));
      }
    }
  }
  check_tensors(state, found);
  for (const auto& problem : found) problems.push_back(sentence(name(), ": ", problem));
}

void OptimizerBase::check_tensors(const StateDict& state,
                                  std::vector<std::string>& problems) const {
  const auto places = places_by_key(*this);
  std::map<std::string, std::vector<bool>, std::less<>> present;
  for (const auto& [tensor_name, tensor] : state.tensors) {
    const auto [key, part] = split_tensor_name(tensor_name);
    const auto place = places.find(key);
    const auto s = find_state(kind_.state, part);
    if (place == places.end() || s == kind_.state.size()) {
      problems.push_back(sentence("unexpected tensor ", tensor_name));
      continue;
    }
    const auto& parameter = groups_[place->second.group].parameters[place->second.index].tensor;
    auto problem = tensor_problem(tensor_name, tensor, parameter, kind_.state[s].kind);
    if (!problem.empty()) problems.push_back(std::move(problem));
    auto& seen = present[std::string(key)];
    seen.resize(kind_.state.size());
    seen[s] = true;
  }
  std::vector<std::string> misfits;
  check_groups(*this, state.values, misfits);
  for (const auto& [key, seen] : present) {
    const auto group = places.find(key)->second.group;
    // Which tensors are needed depends on the saved options (amsgrad, ...); if unreadable, on the
    // present ones.
    const auto values = misfits.empty() ? merged_values(state, group) : groups_[group].values;
    for (std::size_t s = 0; s < seen.size(); ++s) {
      const auto& spec = kind_.state[s];
      if (seen[s] || spec.kind == StateKind::kFirstGradient || !used(spec, values)) continue;
      problems.push_back(sentence("missing tensor ", key, "/", spec.name));
    }
  }
}

OptimizerBase::Values OptimizerBase::merged_values(const StateDict& state,
                                                   std::size_t group) const {
  auto values = groups_[group].values;
  for (const auto& [key, value] : saved_hyperparameters(state.values, group)) {
    values[find_hyperparameter(key)] = value;
  }
  return values;
}

std::vector<std::vector<OptimizerBase::State>> OptimizerBase::read_tensors(
    const StateDict& state) const {
  const auto places = places_by_key(*this);
  std::vector<std::vector<State>> result;
  for (const auto& group : groups_) result.emplace_back(group.entries.size());
  for (const auto& [tensor_name, tensor] : state.tensors) {
    const auto [key, part] = split_tensor_name(tensor_name);
    const auto place = places.find(key)->second;
    const auto s = find_state(kind_.state, part);
    const auto& parameter = groups_[place.group].parameters[place.index].tensor;
    auto target = kind_.state[s].kind == StateKind::kStep
                      ? at::empty({}, at::TensorOptions(at::kFloat).device(parameter.device()))
                      : at::empty_like(parameter, at::TensorOptions().requires_grad(false));
    result[place.group][place.index][s] = target.copy_(tensor);
  }
  return result;
}

void OptimizerBase::load_state_dict(const StateDict& state) {
  std::vector<std::string> problems;
  check_state(state, problems);
  fail_if_any(name(), problems);
  const at::NoGradGuard no_grad;
  auto tensors = read_tensors(state);
  std::vector<Values> values;
  for (std::size_t g = 0; g < groups_.size(); ++g) values.push_back(merged_values(state, g));
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    auto& group = groups_[g];
    group.values = values[g];
    for (std::size_t i = 0; i < group.entries.size(); ++i)
      group.entries[i].state = std::move(tensors[g][i]);
    group.batches.clear();
    group.stale = true;
  }
}

}  // namespace fulmen::detail
