#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <utility>

#include "fulmen/core/distributed/placement.h"
#include "fulmen/fwd.h"

namespace fulmen {

/// Marks of a parameter stay with the tensor (not with its address), also through to(dtype) and
/// set_data(), until the tensor dies. They may be made anywhere before or inside
/// configure_sharded_model(); the strategy reads them when that hook has returned. Thread-safe.
/// Throws ConfigError for an undefined tensor, or one with another mark for that axis.
void mark_placement(const at::Tensor& parameter, std::string_view axis, Placement placement);
/// The parameter is the same weight on all ranks of the model-like axis, and each rank's gradient
/// is a term of its sum: strategies sum it over the axis.
void mark_as_shared(const at::Tensor& parameter, std::string_view axis);
/// All parameters of the module and its children, as they are now.
void mark_as_shared(const torch::nn::Module& module, std::string_view axis);
/// Throws ConfigError if there is no mark.
void unmark(const at::Tensor& parameter, std::string_view axis);
PlacementMarks placement_marks(const at::Tensor& parameter);

/// Lets two layers of this rank have one parameter: `target`, a registered parameter of `owner`
/// (for example *decoder and decoder->weight), becomes `source`. From then on it is one parameter
/// everywhere: one update, one term in the norm, one entry in a checkpoint.
/// It has the marks of both, and requires a gradient if `source` does.
/// Throws ConfigError unless `target` is a direct parameter of `owner` with the shape, dtype and
/// device of `source`, and if their marks contradict.
/// (Not named tie: an unqualified call would find std::tie, and do nothing.)
void tie_weights(const at::Tensor& source, at::Tensor& target, torch::nn::Module& owner);

/// A holder for a module whose parameters are shared over an axis:
///   SharedModel<torch::nn::Conv2d> conv{"model", torch::nn::Conv2dOptions(1, 8, 3)};
///   register_module("conv", conv.holder());
///   conv->forward(x);
/// M is a torch module holder (TORCH_MODULE) or std::shared_ptr of a module class.
template <class M>
class SharedModel {
 public:
  /// Makes the module from the arguments.
  template <class... Args>
  explicit SharedModel(std::string_view axis, Args&&... args)
      : SharedModel(axis, M(std::forward<Args>(args)...)) {}
  SharedModel(std::string_view axis, M module) : module_(std::move(module)) {
    mark_as_shared(*module_, axis);
  }
  const M& holder() const { return module_; }
  auto* operator->() { return module_.operator->(); }
  auto& operator*() { return *module_; }

 private:
  M module_;
};

}  // namespace fulmen
