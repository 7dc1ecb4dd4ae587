#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "fulmen/core/optim/optimizer.h"

namespace torch {
template <typename Key, typename Value>
class OrderedDict;
namespace nn {
class Module;
}
}  // namespace torch

namespace fulmen {

/// What an optimizer steps, made from whatever is at hand: a module, a holder or pointer of one,
/// tensors, or named tensors. A tensor that stands there twice (tied) is kept once, under its first
/// name. Of a module only the parameters that require a gradient are taken; a list is taken as it
/// is.
class Parameters {
 public:
  // Implicit on purpose: AdamW::make(*this, {.lr = 1e-3}).
  Parameters(const torch::nn::Module& module);                             // NOLINT
  Parameters(const torch::OrderedDict<std::string, at::Tensor>& tensors);  // NOLINT
  Parameters(const std::vector<at::Tensor>& tensors);                      // NOLINT
  Parameters(std::initializer_list<at::Tensor> tensors);
  Parameters(std::vector<NamedParameter> parameters);  // NOLINT
  /// A ModuleHolder (torch::nn::Linear, ...) or a shared_ptr to a module.
  template <class Pointer>
  requires requires(const Pointer& pointer) {
    { *pointer } -> std::convertible_to<const torch::nn::Module&>;
  }
  Parameters(const Pointer& pointer)  // NOLINT
      : Parameters(static_cast<const torch::nn::Module&>(*pointer)) {}

  const std::vector<NamedParameter>& named() const { return parameters_; }

 private:
  void add(std::string name, const at::Tensor& tensor);
  void drop_repeated();

  std::vector<NamedParameter> parameters_;
};

}  // namespace fulmen
