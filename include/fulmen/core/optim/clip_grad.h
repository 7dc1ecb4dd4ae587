#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace fulmen {

/// The gradients that are defined, each parameter once however often it stands in the list (tied).
std::vector<at::Tensor> gradients_of(std::span<const at::Tensor> parameters);

/// Norm of all gradients taken as one vector: a scalar on the device of the first one, float32 or
/// wider. `norm_type` is above 0; infinity gives the largest magnitude. NaN in a gradient gives
/// NaN. No gradient gives 0. Throws ConfigError for another norm_type.
at::Tensor grad_norm(std::span<const at::Tensor> gradients, double norm_type = 2.0);

/// Multiplies the gradients by max_norm / (norm + 1e-6) if that is below 1, on the device: nothing
/// is read back.
void scale_to_norm(std::span<const at::Tensor> gradients, double max_norm, const at::Tensor& norm);

/// Clips the joint norm of the gradients of `parameters`, as in PyTorch. Returns the norm before
/// that, as a tensor that is read only when somebody needs it. Throws ConfigError if max_norm is
/// negative or not a number.
at::Tensor clip_grad_norm(std::span<const at::Tensor> parameters,
                          double max_norm,
                          double norm_type = 2.0);

/// Clamps each element of the gradients to [-clip_value, clip_value].
/// Throws ConfigError if clip_value is negative or not a number.
void clip_grad_value(std::span<const at::Tensor> parameters, double clip_value);

}  // namespace fulmen
