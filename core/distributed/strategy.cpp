#include "fulmen/core/distributed/strategy.h"

#include <torch/torch.h>

#include "fulmen/core/module/module_base.h"
#include "fulmen/core/optim/clip_grad.h"

namespace fulmen {

std::unique_ptr<ShardedContext> Strategy::model_sharded_context(ModuleBase&) {
  return std::make_unique<ShardedContext>(mesh());
}

void Strategy::run_window(Window& window) {
  while (window.next()) {
    if (window.is_last()) {
      window.step();
    } else {
      window.accumulate(GradSync::kDefer);
    }
    window.end_batch();
  }
}

void Strategy::backward(ModuleBase& module,
                        const at::Tensor& loss,
                        const at::Tensor& gradient,
                        GradSync) {
  module.backward(loss, gradient);
}

at::Tensor Strategy::clip_grad_norm(std::span<const at::Tensor> parameters, double max_norm) {
  return fulmen::clip_grad_norm(parameters, max_norm);
}

void Strategy::clip_grad_value(std::span<const at::Tensor> parameters, double clip_value) {
  fulmen::clip_grad_value(parameters, clip_value);
}

at::Tensor Strategy::reduce(const at::Tensor& value, ReduceOp op) {
  auto result = value.detach().clone();
  all_reduce(result, op, mesh().world()->all());
  return result;
}

void Strategy::barrier(std::string_view name) {
  fulmen::barrier(name, mesh().world()->all());
}

}  // namespace fulmen
