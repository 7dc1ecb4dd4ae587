// Manual optimization: the user's training_step calls backward and steps.
#include <torch/torch.h>

#include "fulmen/core/support/error.h"
#include "train_window.h"

namespace fulmen::detail {

void TrainWindow::run_manual_batch() {
  scaler_used_ = false;
  stepped_.assign(session_.optimizers.size(), false);
  run_training_step();
  session_.agree_on_wishes();
  if (scaler_used_) session_.scaler->update();
  if (!output_.loss.defined()) return;
  loss_is_usable();
  output_.loss = output_.loss.detach();
}

/// The gradients of an optimizer become those of all ranks.
void TrainWindow::reduce_for(std::size_t index) {
  session_.strategy().reduce_gradients(session_.optimizers[index].optimizer->all_parameters());
}

void TrainWindow::manual_backward(const at::Tensor& loss) {
  const auto running = session_.metrics.hook();
  at::Tensor gradient;
  if (session_.scaler) gradient = session_.scaler->scale(at::ones_like(loss).detach());
  run_backward(loss, gradient, GradSync::kManual);
  session_.set_hook(running);
}

void TrainWindow::unscale(std::size_t index) {
  auto& optimizer = *session_.optimizers[index].optimizer;
  // After a step there are new gradients, of the same scale: it is adapted at the end of the batch.
  if (stepped_[index]) session_.scaler->reopen(optimizer);
  stepped_[index] = false;
  unscale_once(optimizer);
}

void TrainWindow::prepare_clipping(const Optimizer& optimizer) {
  if (!manual()) return;
  for (std::size_t i = 0; i < session_.optimizers.size(); ++i) {
    if (session_.optimizers[i].optimizer.get() != &optimizer) continue;
    reduce_for(i);
    if (session_.scaler) unscale(i);
  }
}

void TrainWindow::manual_step(std::size_t index, const Optimizer::Closure& closure) {
  auto& state = session_.state;
  auto& optimizer = *session_.optimizers[index].optimizer;
  const auto running = session_.metrics.hook();
  bool finite = true;
  if (!closure) reduce_for(index);
  if (session_.scaler) {
    if (closure) {
      fail<ConfigError>(session_.module->name(),
                        "step_optimizer(",
                        index,
                        ") got a closure, which makes new gradients ",
                        "after the old ones were unscaled. Leave it out, or use a precision other "
                        "than 16-mixed.");
    }
    unscale(index);
    stepped_[index] = true;
    finite = gradients_are_finite(optimizer);
  }
  if (finite) {
    state.phase = BatchPhase::kUpdating;
    if (closure) {
      optimizer.step([&] {
        auto loss = closure();
        reduce_for(index);
        call_before_step(optimizer);  // Gradients are there only now.
        return loss;
      });
    } else {
      call_before_step(optimizer);
      optimizer.step();
    }
    state.updated = true;
    ++state.optimizer_steps[index];
  } else {
    ++state.progress.skipped_steps;
  }
  session_.set_hook(running);
}

}  // namespace fulmen::detail
