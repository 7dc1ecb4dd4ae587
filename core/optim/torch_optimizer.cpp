#include "fulmen/core/optim/torch_optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>

#include <map>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include "fulmen/core/support/error.h"
#include "group_state.h"
#include "torch_codecs.h"

namespace fulmen {
namespace {

TorchOptimizerCodec choose_codec(const torch::optim::Optimizer* optimizer,
                                 TorchOptimizerCodec given) {
  if (optimizer == nullptr)
    fail<ConfigError>("TorchOptimizer", "there is no optimizer (null pointer).");
  if (!given.save && !given.load) {
    if (auto known = detail::known_codec(*optimizer)) return *std::move(known);
  }
  if (!given.save || !given.load || given.name.empty()) {
    fail<ConfigError>("TorchOptimizer",
                      "the class ",
                      typeid(*optimizer).name(),
                      " is not one of LibTorch's own. Give a codec with name, save and load.");
  }
  if (given.hyperparameters.empty()) {
    given.hyperparameters.push_back(
        {.name = "lr",
         .get = [](const torch::optim::OptimizerOptions& options) { return options.get_lr(); },
         .set = [](torch::optim::OptimizerOptions& options,
                   double value) { options.set_lr(value); }});
  }
  return given;
}

}  // namespace

TorchOptimizer::TorchOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer,
                               TorchOptimizerCodec codec)
    : optimizer_(std::move(optimizer)), codec_(std::move(codec)) {
  drop_repeated();
  for (const auto& group : optimizer_->param_groups()) {
    auto& named = groups_.emplace_back();
    for (const auto& tensor : group.params()) named.push_back({.name = {}, .tensor = tensor});
  }
  if (groups_.empty())
    fail<ConfigError>(name(), "there are no parameter groups. Give at least one.");
  needs_closure_ = dynamic_cast<torch::optim::LBFGS*>(optimizer_.get()) != nullptr;
  state_from_start_ = !optimizer_->state().empty();
}

TorchOptimizer::~TorchOptimizer() = default;

std::shared_ptr<TorchOptimizer> TorchOptimizer::make(
    std::unique_ptr<torch::optim::Optimizer> optimizer, TorchOptimizerCodec codec) {
  auto chosen = choose_codec(optimizer.get(), std::move(codec));
  return std::shared_ptr<TorchOptimizer>(
      new TorchOptimizer(std::move(optimizer), std::move(chosen)));
}

// torch::optim steps a tensor as often as it is listed.
void TorchOptimizer::drop_repeated() {
  std::unordered_set<const void*> seen;
  for (auto& group : optimizer_->param_groups()) {
    std::erase_if(group.params(), [&](const at::Tensor& tensor) {
      return !seen.insert(tensor.unsafeGetTensorImpl()).second;
    });
  }
}

std::span<const NamedParameter> TorchOptimizer::parameters(std::size_t group) const {
  if (group >= groups_.size()) {
    fail<ConfigError>(name(), "there is no group ", group, "; it has ", groups_.size(), ".");
  }
  return groups_[group];
}

std::vector<std::string> TorchOptimizer::hyperparameter_names(std::size_t) const {
  std::vector<std::string> names;
  for (const auto& item : codec_.hyperparameters) names.push_back(item.name);
  return names;
}

const TorchOptimizerCodec::Hyperparameter& TorchOptimizer::find(std::size_t group,
                                                                std::string_view key) const {
  parameters(group);
  std::string known;
  for (const auto& item : codec_.hyperparameters) {
    if (item.name == key) return item;
    known += " " + item.name;
  }
  fail<ConfigError>(name(), "there is no hyperparameter ", key, ". Known are:", known, ".");
}

double TorchOptimizer::hyperparameter(std::size_t group, std::string_view key) const {
  const auto& item = find(group, key);
  return item.get(std::as_const(optimizer_->param_groups()[group]).options());
}

void TorchOptimizer::set_hyperparameter(std::size_t group, std::string_view key, double value) {
  const auto& item = find(group, key);
  item.set(optimizer_->param_groups()[group].options(), value);
}

at::Tensor TorchOptimizer::step(const Closure& closure) {
  has_state_ = true;
  if (!closure) {
    if (needs_closure_) {
      fail<ConfigError>(
          name(),
          "step() needs a closure that clears gradients, runs backward and returns the loss.");
    }
    optimizer_->step();
    return {};
  }
  at::Tensor last;
  optimizer_->step([&] {
    const at::AutoGradMode with_grad(true);
    return last = closure();
  });
  return last;
}

void TorchOptimizer::bind(const std::function<void(NamedParameter&)>& bind) {
  if (has_state_) {
    fail<ConfigError>(name(),
                      "parameters cannot be bound after the first step or a load of state.");
  }
  std::unordered_set<std::string> names;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::size_t i = 0; i < groups_[g].size(); ++i) {
      auto changed = groups_[g][i];
      bind(changed);
      if (!changed.tensor.defined())
        fail<ConfigError>(name(), "parameter ", changed.name, " is undefined.");
      if (!names.insert(detail::parameter_key(changed, g, i)).second) {
        fail<ConfigError>(
            name(), "two parameters have the name ", changed.name, ". Names must differ.");
      }
      if (!changed.tensor.is_same(groups_[g][i].tensor)) replace(g, i, changed.tensor);
      groups_[g][i] = std::move(changed);
    }
  }
}

void TorchOptimizer::replace(std::size_t group, std::size_t index, const at::Tensor& tensor) {
  auto& target = optimizer_->param_groups()[group];
  auto& state = optimizer_->state();
  const bool had_state = state.erase(target.params()[index].unsafeGetTensorImpl()) > 0;
  target.params()[index] = tensor;
  if (!had_state || dynamic_cast<torch::optim::Adagrad*>(optimizer_.get()) == nullptr) return;
  // Adagrad makes its sums in the constructor and expects to find them.
  const auto& options = static_cast<const torch::optim::AdagradOptions&>(target.options());
  const at::NoGradGuard no_grad;
  auto fresh = std::make_unique<torch::optim::AdagradParamState>();
  fresh->step(0);
  fresh->sum(at::full_like(
      tensor, options.initial_accumulator_value(), at::TensorOptions().requires_grad(false)));
  state[tensor.unsafeGetTensorImpl()] = std::move(fresh);
}

StateDict TorchOptimizer::state_dict() const {
  StateDict result{.values = detail::groups_to_json(*this), .tensors = {}};
  const at::NoGradGuard no_grad;
  const auto& states = std::as_const(*optimizer_).state();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::size_t i = 0; i < groups_[g].size(); ++i) {
      const auto found = states.find(groups_[g][i].tensor.unsafeGetTensorImpl());
      if (found == states.end()) continue;
      const auto key = detail::parameter_key(groups_[g][i], g, i);
      for (auto& [name, tensor] : codec_.save(*found->second))
        result.tensors.emplace(key + "/" + name, tensor);
    }
  }
  return result;
}

std::vector<std::vector<TensorMap>> TorchOptimizer::sort_tensors(
    const StateDict& state, std::vector<std::string>& problems) const {
  std::vector<std::vector<TensorMap>> sorted;
  for (const auto& group : groups_) sorted.emplace_back(group.size());
  const auto places = detail::places_by_key(*this);
  for (const auto& [tensor_name, tensor] : state.tensors) {
    const auto [key, part] = detail::split_tensor_name(tensor_name);
    const auto place = places.find(key);
    if (place == places.end() || part.empty() || !tensor.defined()) {
      problems.push_back(detail::sentence("unexpected tensor ", tensor_name));
      continue;
    }
    sorted[place->second.group][place->second.index].emplace(part, tensor);
  }
  return sorted;
}

void TorchOptimizer::check_state(const StateDict& state, std::vector<std::string>& problems) const {
  std::vector<std::string> found;
  detail::check_groups(*this, state.values, found);
  const auto sorted = sort_tensors(state, found);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::size_t i = 0; i < groups_[g].size(); ++i) {
      const auto key = detail::parameter_key(groups_[g][i], g, i);
      const auto& tensors = sorted[g][i];
      if (tensors.empty()) {
        if (state_from_start_) found.push_back(detail::sentence("missing state of ", key));
        continue;
      }
      std::vector<std::string> own;
      if (codec_.check) codec_.check(groups_[g], i, tensors, own);
      try {
        if (own.empty()) codec_.load(tensors);
      } catch (const std::exception& error) {
        own.emplace_back(error.what());
      }
      for (const auto& problem : own) found.push_back(detail::sentence(key, ": ", problem));
    }
  }
  for (const auto& problem : found) problems.push_back(detail::sentence(name(), ": ", problem));
}

void TorchOptimizer::load_state_dict(const StateDict& state) {
  std::vector<std::string> problems;
  check_state(state, problems);
  detail::fail_if_any(name(), problems);
  const at::NoGradGuard no_grad;
  std::map<void*, std::unique_ptr<torch::optim::OptimizerParamState>> loaded;
  auto sorted = sort_tensors(state, problems);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::size_t i = 0; i < groups_[g].size(); ++i) {
      if (sorted[g][i].empty()) continue;
      const auto& parameter = groups_[g][i].tensor;
      for (auto& [name, tensor] : sorted[g][i]) {
        tensor = tensor.to(
            parameter.device(), tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
      }
      loaded[parameter.unsafeGetTensorImpl()] = codec_.load(sorted[g][i]);
    }
  }
  auto& states = optimizer_->state();
  states.clear();
  for (auto& [parameter, value] : loaded) states[parameter] = std::move(value);
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const auto& [key, value] : detail::saved_hyperparameters(state.values, g)) {
      set_hyperparameter(g, key, value);
    }
  }
  has_state_ = true;
}

}  // namespace fulmen
