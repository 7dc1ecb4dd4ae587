#include "fulmen/core/optim/parameters.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "fulmen/core/support/error.h"

namespace fulmen {

Parameters::Parameters(const torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad()) add(item.key(), item.value());
  }
  drop_repeated();
}

Parameters::Parameters(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  for (const auto& item : tensors) add(item.key(), item.value());
  drop_repeated();
}

Parameters::Parameters(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) add({}, tensor);
  drop_repeated();
}

Parameters::Parameters(std::initializer_list<at::Tensor> tensors)
    : Parameters(std::vector<at::Tensor>(tensors)) {}

Parameters::Parameters(std::vector<NamedParameter> parameters) {
  for (auto& parameter : parameters) add(std::move(parameter.name), parameter.tensor);
  drop_repeated();
}

void Parameters::add(std::string name, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    fail<ConfigError>("Parameters",
                      "tensor ",
                      parameters_.size(),
                      " ",
                      name,
                      " is undefined. Give the optimizer tensors that exist.");
  }
  parameters_.push_back({.name = std::move(name), .tensor = tensor});
}

void Parameters::drop_repeated() {
  std::unordered_set<const void*> seen;
  std::erase_if(parameters_, [&](const NamedParameter& parameter) {
    return !seen.insert(parameter.tensor.unsafeGetTensorImpl()).second;
  });
}

}  // namespace fulmen
