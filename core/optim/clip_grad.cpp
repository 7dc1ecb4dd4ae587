#include "fulmen/core/optim/clip_grad.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <map>
#include <string>
#include <unordered_set>
#include <utility>

#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

using Lists = std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>>;

// The foreach operations are fast only on lists of one device and dtype.
Lists by_device_and_dtype(std::span<const at::Tensor> tensors) {
  Lists lists;
  for (const auto& tensor : tensors)
    lists[{tensor.device().str(), tensor.scalar_type()}].push_back(tensor);
  return lists;
}

bool is_narrow(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

// As an absolute value or an infinity norm, the maximum of a list must keep NaN: max does.
at::Tensor combine(const std::vector<at::Tensor>& norms, double norm_type) {
  const auto all = at::stack(norms);
  return std::isinf(norm_type) ? all.max() : at::linalg_vector_norm(all, norm_type);
}

}  // namespace

std::vector<at::Tensor> gradients_of(std::span<const at::Tensor> parameters) {
  std::vector<at::Tensor> gradients;
  std::unordered_set<const void*> seen;
  for (const auto& parameter : parameters) {
    if (!parameter.defined() || !parameter.grad().defined()) continue;
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) gradients.push_back(parameter.grad());
  }
  return gradients;
}

at::Tensor grad_norm(std::span<const at::Tensor> gradients, double norm_type) {
  if (!(norm_type > 0)) {
    fail<ConfigError>(
        "grad_norm", "norm_type must be above 0 (infinity is allowed), got ", norm_type, ".");
  }
  if (gradients.empty()) return at::zeros({}, at::kFloat);
  const at::NoGradGuard no_grad;
  auto dtype = at::kFloat;
  for (const auto& gradient : gradients) {
    if (gradient.scalar_type() == at::kDouble) dtype = at::kDouble;
  }
  const auto device = gradients.front().device();
  std::vector<at::Tensor> norms;
  for (const auto& [key, list] : by_device_and_dtype(gradients)) {
    const auto wide = is_narrow(key.second) ? std::optional(at::kFloat) : std::nullopt;
    for (const auto& norm : at::_foreach_norm(list, norm_type, wide))
      norms.push_back(norm.to(device, dtype));
  }
  return combine(norms, norm_type);
}

void scale_to_norm(std::span<const at::Tensor> gradients, double max_norm, const at::Tensor& norm) {
  if (!(max_norm >= 0)) {
    fail<ConfigError>("clip_grad_norm", "max_norm must be at least 0, got ", max_norm, ".");
  }
  const at::NoGradGuard no_grad;
  // Always multiplied, also by 1: to ask whether it is needed would wait for the device.
  const auto factor = at::clamp_max(max_norm / (norm + 1e-6), 1.0);
  for (const auto& [key, list] : by_device_and_dtype(gradients)) {
    at::_foreach_mul_(list, factor.to(list.front().device()));
  }
}

at::Tensor clip_grad_norm(std::span<const at::Tensor> parameters,
                          double max_norm,
                          double norm_type) {
  const auto gradients = gradients_of(parameters);
  auto norm = grad_norm(gradients, norm_type);
  scale_to_norm(gradients, max_norm, norm);
  return norm;
}

void clip_grad_value(std::span<const at::Tensor> parameters, double clip_value) {
  if (!(clip_value >= 0)) {
    fail<ConfigError>("clip_grad_value", "clip_value must be at least 0, got ", clip_value, ".");
  }
  const at::NoGradGuard no_grad;
  for (const auto& [key, list] : by_device_and_dtype(gradients_of(parameters))) {
    at::_foreach_clamp_min_(list, -clip_value);
    at::_foreach_clamp_max_(list, clip_value);
  }
}

}  // namespace fulmen
