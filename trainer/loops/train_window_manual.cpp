// Manual optimization: the user's training_step calls backward and steps.
#include <torch/torch.h>

#include "fulmen/core/support/error.h"
#include "train_window.h"

namespace fulmen::detail {

void TrainWindow::run_manual_batch() {
  scaler_used_ = false;
  stepped_.assign(session_.optimizers.size(), false);
  run_training_step();
  if (scaler_used_) session_.scaler->update();
  if (!output_.loss.defined()) return;
  loss_is_usable();
  output_.loss = output_.loss.detach();
}

void TrainWindow::manual_backward(const at::Tensor& loss) {
  const auto running = session_.metrics.hook();
  at::Tensor gradient;
  if (session_.scaler) gradient = session_.scaler->scale(at::ones_like(loss).detach());
  session_.call(HookPoint::kOnBeforeBackward,
                &Callback::on_before_backward,
                &ModuleBase::on_before_backward,
                loss);
  session_.set_hook(HookPoint::kBackward);
  session_.strategy().backward(*session_.module, loss, gradient, GradSync::kNow);
  session_.call(
      HookPoint::kOnAfterBackward, &Callback::on_after_backward, &ModuleBase::on_after_backward);
  session_.set_hook(running);
}

void TrainWindow::unscale(std::size_t index) {
  auto& optimizer = *session_.optimizers[index].optimizer;
  // After a step there are new gradients, of the same scale: it is adapted at the end of the batch.
  if (stepped_[index]) session_.scaler->reopen(optimizer);
  stepped_[index] = false;
  scaler_used_ = true;
  if (!session_.scaler->found_inf(optimizer).defined()) session_.scaler->unscale(optimizer);
}

void TrainWindow::unscale_before_clipping(const Optimizer& optimizer) {
  if (!session_.scaler || !manual()) return;
  for (std::size_t i = 0; i < session_.optimizers.size(); ++i) {
    if (session_.optimizers[i].optimizer.get() == &optimizer) unscale(i);
  }
}

void TrainWindow::manual_step(std::size_t index, const Optimizer::Closure& closure) {
  auto& state = session_.state;
  auto& optimizer = *session_.optimizers[index].optimizer;
  const auto running = session_.metrics.hook();
  bool finite = true;
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
  const auto before_step = [&] {
    session_.call(HookPoint::kOnBeforeOptimizerStep,
                  &Callback::on_before_optimizer_step,
                  &ModuleBase::on_before_optimizer_step,
                  optimizer);
  };
  if (finite) {
    state.phase = BatchPhase::kUpdating;
    if (closure) {
      optimizer.step([&] {
        auto loss = closure();
        before_step();  // Gradients are there only now.
        return loss;
      });
    } else {
      before_step();
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
