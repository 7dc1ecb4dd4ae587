#include "fulmen/core/optim/optimizer.h"

namespace fulmen {

void Optimizer::zero_grad() {
  for (std::size_t group = 0; group < group_count(); ++group) {
    for (const auto& parameter : parameters(group)) {
      if (parameter.tensor.grad().defined()) parameter.tensor.mutable_grad().reset();
    }
  }
}

std::vector<at::Tensor> Optimizer::all_parameters() const {
  std::vector<at::Tensor> tensors;
  for (std::size_t group = 0; group < group_count(); ++group) {
    for (const auto& parameter : parameters(group)) tensors.push_back(parameter.tensor);
  }
  return tensors;
}

std::span<const double> Optimizer::initial_lrs() {
  if (initial_lrs_.empty()) {
    for (std::size_t group = 0; group < group_count(); ++group) {
      initial_lrs_.push_back(hyperparameter(group, "lr"));
    }
  }
  return initial_lrs_;
}

}  // namespace fulmen
