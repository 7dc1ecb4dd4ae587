#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

namespace fulmen::testing {

/// Parameters and buffers by name, float64.
struct Net : torch::nn::Module {
  at::Tensor parameter(const std::string& name, const at::Tensor& value) {
    return register_parameter(name, value.to(torch::kDouble));
  }
  at::Tensor add_buffer(const std::string& name, const at::Tensor& value) {
    return register_buffer(name, value);
  }
};

inline at::Tensor with_gradient(Net& net, const std::string& name, std::vector<double> gradient) {
  const auto size = static_cast<std::int64_t>(gradient.size());
  auto parameter = net.parameter(name, torch::zeros({size}));
  parameter.mutable_grad() = torch::tensor(gradient, torch::kDouble);
  return parameter;
}

}  // namespace fulmen::testing
