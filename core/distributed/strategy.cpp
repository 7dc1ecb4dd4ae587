#include "fulmen/core/distributed/strategy.h"

#include <torch/torch.h>

#include <vector>

#include "fulmen/core/module/module_base.h"
#include "fulmen/core/optim/clip_grad.h"

namespace fulmen {

std::unique_ptr<ShardedContext> Strategy::model_sharded_context(ModuleBase&) {
  return std::make_unique<ShardedContext>();
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

void Strategy::finish_gradients(std::span<const at::Tensor> gradients, const WindowWeight& weight) {
  if (gradients.empty()) return;
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> list(gradients.begin(), gradients.end());
  if (!weight.tensor.defined()) {
    at::_foreach_div_(list, weight.number);
    return;
  }
  auto total = weight.tensor + weight.number;
  for (auto& gradient : list) gradient.div_(total);
}

at::Tensor Strategy::clip_grad_norm(std::span<const at::Tensor> parameters, double max_norm) {
  return fulmen::clip_grad_norm(parameters, max_norm);
}

void Strategy::clip_grad_value(std::span<const at::Tensor> parameters, double clip_value) {
  fulmen::clip_grad_value(parameters, clip_value);
}

}  // namespace fulmen
