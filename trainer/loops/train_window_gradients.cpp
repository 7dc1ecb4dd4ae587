// From the loss of a micro-batch to the gradients of a step: weights, backward, reduction.
#include <torch/torch.h>

#include <cmath>

#include "fulmen/core/support/error.h"
#include "train_window.h"

namespace fulmen::detail {

void TrainWindow::run_backward(const at::Tensor& loss, const at::Tensor& gradient, GradSync sync) {
  session_.call(HookPoint::kOnBeforeBackward,
                &Callback::on_before_backward,
                &ModuleBase::on_before_backward,
                loss);
  session_.set_hook(HookPoint::kBackward);
  session_.strategy().backward(*session_.module, loss, gradient, sync);
  if (sync == GradSync::kNow) reduce_window();  // Before anybody reads gradients.
  session_.call(
      HookPoint::kOnAfterBackward, &Callback::on_after_backward, &ModuleBase::on_after_backward);
}

at::Tensor TrainWindow::seed() const {
  const auto& loss = output_.loss;
  at::Tensor seed;
  if (divides()) {  // One weight alone cancels out.
    if (output_.weight_tensor.defined()) {
      seed = output_.weight_tensor.detach().reshape(loss.sizes()).to(loss.options());
    } else if (output_.weight) {
      seed = at::full_like(loss, *output_.weight).detach();
    } else if (const auto weight = default_weight(); weight != 1) {
      seed = at::full_like(loss, weight).detach();
    }
  }
  if (!session_.scaler) return seed;
  return session_.scaler->scale(seed.defined() ? seed : at::ones_like(loss).detach());
}

double TrainWindow::default_weight() const {
  const bool rows = session_.options.window_weighting == WindowWeighting::kRows;
  return rows ? static_cast<double>(batch_.view().rows()) : data_->weight();
}

void TrainWindow::add_weight() {
  auto& state = session_.state;
  ++state.losses;
  if (output_.weight_tensor.defined()) {
    auto weight =
        output_.weight_tensor.detach().reshape({}).to(output_.loss.scalar_type()).to(at::kDouble);
    state.weight.tensor = state.weight.tensor.defined() ? state.weight.tensor + weight : weight;
    return;
  }
  double weight = 0;
  if (output_.weight) {
    weight = *output_.weight;
    if (!(weight > 0) || !std::isfinite(weight)) {
      fail<TrainingError>(session_.module->name(),
                          "training_step returned the weight ",
                          weight,
                          " in batch ",
                          batch_idx_,
                          "; a weight is greater than 0 and finite.");
    }
  } else {
    weight = default_weight();
  }
  // Rounded as the seed of backward was: the sum below the fraction is of the weights above it.
  if (divides() && weight != 1)
    weight = at::scalar_tensor(weight, output_.loss.scalar_type()).item<double>();
  state.weight.number += weight;
}

bool TrainWindow::divides() const {
  return session_.state.accumulate_grad_batches > 1 || session_.several_ranks();
}

void TrainWindow::reduce_window() {
  auto& state = session_.state;
  reduced_ = true;
  auto vote = session_.wishes();
  vote.has_loss = state.losses > 0 && !state.skip_update;
  vote.skip = state.skip_update;
  if (vote.has_loss && divides()) {
    vote.weight = state.weight;
  } else if (vote.has_loss) {
    vote.weight.number = 1;
  }
  const auto verdict = session_.strategy().finish_gradients(session_.parameter_tensors(), vote);
  had_loss_ = verdict.has_loss || verdict.skip;
  if (verdict.skip || !verdict.has_loss) state.skip_update = true;
  session_.obey(verdict);
}

void TrainWindow::check_scaled_gradients() {
  auto& state = session_.state;
  if (!session_.scaler) return;
  for (auto& config : session_.optimizers) {
    if (!gradients_are_finite(*config.optimizer)) state.skip_update = true;
  }
}

void TrainWindow::unscale_once(const Optimizer& optimizer) {
  scaler_used_ = true;
  if (session_.scaler->found_inf(optimizer).defined()) return;
  session_.scaler->unscale(optimizer);
  auto found = session_.scaler->found_inf(optimizer);  // The scaler's own, changed in place.
  session_.strategy().synchronize_found_inf(found);
}

bool TrainWindow::gradients_are_finite(const Optimizer& optimizer) {
  unscale_once(optimizer);
  const auto found = session_.scaler->found_inf(optimizer);
  return !found.defined() || found.item<float>() == 0;
}

}  // namespace fulmen::detail
