#include "fulmen/core/distributed/differentiable.h"

#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/torch.h>

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/distributed/shared_weights.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What one half does with a tensor: forward of one function, backward of its partner.
using Half = at::Tensor (*)(const at::Tensor&, std::int64_t dim, const ProcessGroup&);

struct Exchange : torch::CustomClassHolder {
  Exchange(Half backward_half, std::int64_t dim_, ProcessGroup group_)
      : backward(backward_half), dim(dim_), group(std::move(group_)) {}
  Half backward;
  std::int64_t dim;
  ProcessGroup group;
};

// An exchange in backward records nothing. Where a second derivative would have to pass it, an
// error is due, not a gradient with a term missing.
at::Tensor refuse_second_derivative(const at::Tensor& gradient, const at::Tensor& result) {
  if (!at::GradMode::is_enabled() || !gradient.requires_grad()) return result;
  const auto refusal = std::make_shared<torch::autograd::DelayedError>(
      "Fulmen's differentiable collectives have no second derivative.", 1);
  auto output = (*refusal)({result.detach().requires_grad_()});
  return output[0];
}

struct ExchangeFunction : torch::autograd::Function<ExchangeFunction> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& tensor,
                            Half forward_half,
                            const c10::intrusive_ptr<Exchange>& exchange) {
    context->saved_data["exchange"] = c10::IValue::make_capsule(exchange);
    return forward_half(tensor, exchange->dim, exchange->group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto exchange =
        c10::static_intrusive_pointer_cast<Exchange>(context->saved_data["exchange"].toCapsule());
    at::Tensor result;
    {
      const at::NoGradGuard no_grad;
      result = exchange->backward(gradients[0], exchange->dim, exchange->group);
    }
    return {refuse_second_derivative(gradients[0], result), {}, {}};
  }
};

// A half gives its argument itself or new memory, and never a view: autograd lets a leaf keep a
// gradient that nobody else holds, and cannot see that another leaf's gradient is the same memory.

at::Tensor identity(const at::Tensor& tensor, std::int64_t, const ProcessGroup&) {
  return tensor;
}

at::Tensor sum(const at::Tensor& tensor, std::int64_t, const ProcessGroup& group) {
  auto result = tensor.detach().clone(at::MemoryFormat::Contiguous);
  all_reduce(result, ReduceOp::kSum, group);
  return result;
}

at::Tensor part(const at::Tensor& tensor, std::int64_t dim, const ProcessGroup& group) {
  const auto size = tensor.size(dim) / group.size();
  return tensor.detach().narrow(dim, group.rank() * size, size).clone(at::MemoryFormat::Contiguous);
}

at::Tensor joined(const at::Tensor& tensor, std::int64_t dim, const ProcessGroup& group) {
  return at::cat(all_gather(tensor, group).unbind(0), dim);
}

at::Tensor summed_part(const at::Tensor& tensor, std::int64_t dim, const ProcessGroup& group) {
  const auto parts = at::stack(tensor.detach().chunk(group.size(), dim));
  return reduce_scatter(parts, ReduceOp::kSum, group);
}

// Step 1: to the next rank, -1: to the previous one. Zeros where nothing comes.
at::Tensor shifted(const at::Tensor& tensor, int step, const ProcessGroup& group) {
  const int to = group.rank() + step;
  const int from = group.rank() - step;
  const auto inside = [&](int rank) { return rank >= 0 && rank < group.size(); };
  auto received = at::zeros(tensor.sizes(), tensor.options());
  const int tag = step > 0 ? 1 : 2;
  Work sending;
  if (inside(to)) sending = send_async(tensor, to, group, tag);
  if (inside(from)) receive_async(received, from, group, tag).wait();
  sending.wait();
  return received;
}

at::Tensor to_next(const at::Tensor& tensor, std::int64_t, const ProcessGroup& group) {
  return shifted(tensor, 1, group);
}

at::Tensor to_previous(const at::Tensor& tensor, std::int64_t, const ProcessGroup& group) {
  return shifted(tensor, -1, group);
}

at::Tensor run(const at::Tensor& tensor,
               std::int64_t dim,
               const ProcessGroup& group,
               Half forward,
               Half backward) {
  if (group.size() == 1) return tensor;
  return ExchangeFunction::apply(
      tensor, forward, c10::make_intrusive<Exchange>(backward, dim, group));
}

std::int64_t checked_dim(const char* what, const at::Tensor& tensor, std::int64_t dim) {
  if (dim < -tensor.dim() || dim >= tensor.dim()) {
    fail<ConfigError>(what, "there is no dim ", dim, " in a tensor of shape ", tensor.sizes(), ".");
  }
  return dim < 0 ? dim + tensor.dim() : dim;
}

std::int64_t divisible_dim(const char* what,
                           const at::Tensor& tensor,
                           std::int64_t dim,
                           const ProcessGroup& group) {
  const auto checked = checked_dim(what, tensor, dim);
  if (tensor.size(checked) % group.size() != 0) {
    fail<ConfigError>(what,
                      "dim ",
                      dim,
                      " of a tensor of shape ",
                      tensor.sizes(),
                      " cannot be split into ",
                      group.size(),
                      " equal parts for the group ",
                      group.describe(),
                      ".");
  }
  return checked;
}

}  // namespace

at::Tensor copy_to_group(const at::Tensor& tensor, const ProcessGroup& group) {
  for (const auto& [axis, placement] : placement_marks(tensor)) {
    if (placement.kind != Placement::Kind::kShared) continue;
    fail<ConfigError>("copy_to_group",
                      "a parameter of shape ",
                      tensor.sizes(),
                      " is marked as shared over \"",
                      axis,
                      "\", so the strategy sums its gradient already, and here it would be summed ",
                      "a second time. Leave out one of the two.");
  }
  return run(tensor, 0, group, identity, sum);
}

at::Tensor reduce_from_group(const at::Tensor& tensor, const ProcessGroup& group) {
  return run(tensor, 0, group, sum, identity);
}

at::Tensor scatter_to_group(const at::Tensor& tensor, int64_t dim, const ProcessGroup& group) {
  return run(tensor, divisible_dim("scatter_to_group", tensor, dim, group), group, part, joined);
}

at::Tensor gather_from_group(const at::Tensor& tensor, int64_t dim, const ProcessGroup& group) {
  return run(tensor, checked_dim("gather_from_group", tensor, dim), group, joined, part);
}

at::Tensor gather_to_group(const at::Tensor& tensor, int64_t dim, const ProcessGroup& group) {
  return run(tensor, checked_dim("gather_to_group", tensor, dim), group, joined, summed_part);
}

at::Tensor reduce_scatter_from_group(const at::Tensor& tensor,
                                     int64_t dim,
                                     const ProcessGroup& group) {
  const auto checked = divisible_dim("reduce_scatter_from_group", tensor, dim, group);
  return run(tensor, checked, group, summed_part, joined);
}

at::Tensor shift_to_next(const at::Tensor& tensor, const ProcessGroup& group) {
  if (group.size() == 1) return at::zeros_like(tensor);
  return run(tensor, 0, group, to_next, to_previous);
}

at::Tensor shift_to_previous(const at::Tensor& tensor, const ProcessGroup& group) {
  if (group.size() == 1) return at::zeros_like(tensor);
  return run(tensor, 0, group, to_previous, to_next);
}

}  // namespace fulmen
