#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/distributed/placed_parameters.h"
#include "fulmen/core/optim/clip_grad.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

/// Sum or maximum over a group. Gloo's maximum may lose NaN, so it rides beside as a flag.
at::Tensor over_group(const at::Tensor& part, ReduceOp op, const ProcessGroup& group) {
  const auto is_nan = part.isnan();
  auto pair = op == ReduceOp::kMax
                  ? at::stack({part.masked_fill(is_nan, 0), is_nan.to(part.scalar_type())})
                  : part.clone();
  all_reduce(pair, op, group);
  if (op != ReduceOp::kMax) return pair;
  return pair[0].masked_fill(pair[1] > 0, std::numeric_limits<double>::quiet_NaN());
}

}  // namespace

bool PlacedParameters::has_own_parts() const {
  return std::ranges::any_of(own_sets_, [](const auto& axes) { return !axes.empty(); });
}

at::Tensor PlacedParameters::grad_norm(std::span<const at::Tensor> parameters,
                                       double norm_type) const {
  // All sets of own axes are visited, whatever parameters and gradients this rank has, so that all
  // ranks make the same calls.
  std::vector<std::vector<at::Tensor>> lists(own_sets_.size());
  auto dtype = at::kFloat;
  for (const auto& parameter : parameters) {
    const auto it = index_.find(parameter.unsafeGetTensorImpl());
    if (it == index_.end()) {
      fail<ConfigError>("grad_norm",
                        "a tensor of shape ",
                        parameter.sizes(),
                        " is no parameter of the module that was set up. Register it before.");
    }
    lists[own_set_of_[it->second]].push_back(parameter);
    if (parameter.scalar_type() == at::kDouble) dtype = at::kDouble;
  }
  if (!has_own_parts()) return fulmen::grad_norm(gradients_of(parameters), norm_type);

  const at::NoGradGuard no_grad;
  const bool is_largest = std::isinf(norm_type);
  const auto device = parameters_.front().tensor.device();
  auto total = at::zeros({}, at::dtype(at::kDouble).device(device));
  for (std::size_t i = 0; i < lists.size(); ++i) {
    auto part = fulmen::grad_norm(gradients_of(lists[i]), norm_type).to(device, at::kDouble);
    if (!is_largest) part = part.pow(norm_type);
    if (!own_sets_[i].empty()) {
      part = over_group(
          part, is_largest ? ReduceOp::kMax : ReduceOp::kSum, mesh_->group(own_sets_[i]));
    }
    total = is_largest ? at::maximum(total, part) : total + part;
  }
  return (is_largest ? total : total.pow(1 / norm_type)).to(dtype);
}

}  // namespace fulmen
