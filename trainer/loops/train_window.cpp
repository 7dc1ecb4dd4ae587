#include "train_window.h"

#include <torch/torch.h>

#include <cmath>

#include "fit_loop.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {

TrainWindow::TrainWindow(Session& session, FitLoop& loop) : session_(session), loop_(loop) {
  // Made once: a closure for each step would be an allocation for each step.
  for (std::size_t i = 0; i < session.optimizers.size(); ++i)
    closures_.emplace_back([this, i] { return closure(i); });
}

bool TrainWindow::next() {
  auto& state = session_.state;
  if (closed_ || state.epoch_done || session_.interruption() != nullptr) return false;
  loop_.mark_boundary();
  state.phase = BatchPhase::kBeforeUpdate;
  data_left_ = data_->next(batch_);
  if (!data_left_) {
    state.phase = BatchPhase::kBoundary;
    state.epoch_done = true;
    return false;
  }
  if (start_batch()) return true;
  if (session_.several_ranks() && manual()) {
    fail<ConfigError>(
        session_.module->name(),
        "on_train_batch_start returned kSkipEpoch under manual optimization on several ",
        "ranks, where the others would wait for this one. Return from training_step ",
        "without steps on all ranks.");
  }
  if (session_.several_ranks()) {
    // Others go on: this rank takes part with weight 0 to the end of the epoch.
    data_->cut();
    state.own_end = *data_->own_end();
    return true;
  }
  cut_epoch();
  return false;
}

void TrainWindow::cut_epoch() {
  auto& state = session_.state;
  data_left_ = false;
  session_.metrics.discard();
  // A window that is open takes its step with what it holds.
  if (state.window_open()) apply();
  session_.metrics.commit();
  if (state.updated) ++state.progress.global_step;
  close();
  loop_.step_schedulers(state.updated, true);
  state.epoch_done = state.epoch_cut = true;
  state.validation_pending =
      state.updated && loop_.validates_by_steps() && loop_.validation_is_due(true);
  state.phase = BatchPhase::kBoundary;
  if (state.updated) loop_.log_step();
}

bool TrainWindow::start_batch() {
  auto& state = session_.state;
  batch_idx_ = state.progress.batch_idx;
  state.updated = false;
  if (!state.window_open()) state.skip_update = false;
  output_ = {};
  if (!data_->idle()) session_.transfer(batch_.view(), 0);
  session_.metrics.set_batch(batch_.view());
  session_.call_callbacks(
      HookPoint::kOnTrainBatchStart, &Callback::on_train_batch_start, batch_.view(), batch_idx_);
  // Callbacks decide together with those of other ranks; the module has nothing to do with a batch
  // that it has seen.
  if (data_->idle()) return true;
  return session_.hook(HookPoint::kOnTrainBatchStart)
             .dispatch_train_batch_start(batch_.view(), batch_idx_) == BatchAction::kContinue;
}

bool TrainWindow::is_last() const {
  return session_.state.micro_batches + 1 >= session_.state.accumulate_grad_batches ||
         data_->at_last() || manual();
}

void TrainWindow::accumulate(GradSync sync) {
  run_micro_batch(sync);
}

void TrainWindow::step() {
  if (manual()) {
    run_manual_batch();
  } else if (session_.optimizers.empty()) {
    run_micro_batch(GradSync::kManual);
    session_.agree_on_wishes();
  } else {
    apply();
  }
  close();
}

void TrainWindow::close() {
  session_.state.close_window();
  closed_ = true;
}

void TrainWindow::apply() {
  auto& state = session_.state;
  evaluated_ = false;
  scaler_used_ = false;
  had_loss_ = false;
  for (std::size_t i = 0; i < session_.optimizers.size(); ++i) {
    closure_called_ = false;
    auto& optimizer = *session_.optimizers[i].optimizer;
    session_.hook(HookPoint::kOptimizerStep)
        .optimizer_step(state.progress.epoch, batch_idx_, optimizer, closures_[i]);
    if (!closure_called_) {
      fail<ConfigError>(session_.module->name(),
                        "optimizer_step did not call its closure, so the batch was not trained ",
                        "on. Call it, or ModuleBase::optimizer_step, which does.");
    }
    // An override may step the optimizer itself.
    const bool stepped =
        watched_.defined() && static_cast<std::int64_t>(watched_._version()) != watched_version_;
    watched_.reset();
    if (stepped && !state.skip_update) state.updated = true;
    if (state.updated) ++state.optimizer_steps[i];
  }
  if (session_.scaler) scaler_used_ ? session_.scaler->update() : session_.scaler->new_window();
  if (state.skip_update && had_loss_) ++state.progress.skipped_steps;
}

at::Tensor TrainWindow::closure(std::size_t optimizer) {
  auto& state = session_.state;
  auto& chosen = *session_.optimizers[optimizer].optimizer;
  const bool again = closure_called_;
  closure_called_ = true;
  at::Tensor loss = output_.loss;
  if (optimizer == 0) {
    // LBFGS evaluates the same micro-batch several times: what the last one logs counts.
    if (chosen.reevaluates()) again ? session_.metrics.discard() : session_.metrics.commit();
    if (again) state.close_window();
    reduced_ = false;
    if (data_left_ && (again || !evaluated_)) loss = run_micro_batch(GradSync::kNow);
    evaluated_ = true;
    if (state.losses == 0 && chosen.reevaluates()) {
      fail<TrainingError>(session_.module->name(),
                          "training_step returned no loss in batch ",
                          batch_idx_,
                          ", but ",
                          chosen.name(),
                          " evaluates it several times and needs one each time.");
    }
    if (!reduced_) reduce_window();
    if (!state.skip_update) check_scaled_gradients();
  }
  if (state.skip_update) {
    drop_gradients();
    session_.set_hook(HookPoint::kOptimizerStep);
    return loss;
  }
  call_before_step(chosen);
  session_.hook(HookPoint::kConfigureGradientClipping)
      .configure_gradient_clipping(
          chosen, session_.options.gradient_clip_val, session_.options.gradient_clip_algorithm);
  session_.set_hook(HookPoint::kOptimizerStep);
  if (!again) watch(chosen);
  state.phase = BatchPhase::kUpdating;
  return loss;
}

void TrainWindow::call_before_step(Optimizer& optimizer) {
  session_.call(HookPoint::kOnBeforeOptimizerStep,
                &Callback::on_before_optimizer_step,
                &ModuleBase::on_before_optimizer_step,
                optimizer);
}

void TrainWindow::drop_gradients() const {
  for (const auto& [name, parameter] : session_.distinct_parameters())
    parameter.mutable_grad().reset();
}

void TrainWindow::watch(const Optimizer& optimizer) {
  for (std::size_t group = 0; group < optimizer.group_count(); ++group) {
    for (const auto& parameter : optimizer.parameters(group)) {
      if (!parameter.tensor.grad().defined()) continue;
      watched_ = parameter.tensor;
      watched_version_ = static_cast<std::int64_t>(watched_._version());
      return;
    }
  }
}

void TrainWindow::run_training_step() {
  auto& module = session_.hook(HookPoint::kTrainingStep);
  output_ = session_.in_precision(
      [&] { return module.dispatch_training_step(batch_.view(), batch_idx_); });
}

at::Tensor TrainWindow::run_micro_batch(GradSync sync) {
  auto& state = session_.state;
  if (!data_->idle()) run_training_step();
  if (state.micro_batches++ == 0) zero_gradients();
  if (!output_.loss.defined()) return {};
  check_loss();
  if (!loss_is_usable()) {
    state.skip_update = true;
    ++state.losses;  // The window had a loss; it is the update that is left out.
    // Ranks that share the sample wait for this one's part in the collectives of backward.
    if (session_.strategy().mesh().model_group().size() > 1) run_backward(output_.loss, {}, sync);
    output_.loss = output_.loss.detach();
    return output_.loss;
  }
  if (!output_.loss.requires_grad())
    return output_.loss;  // Without optimizers nothing needs its gradient.
  const auto gradient = seed();
  add_weight();
  run_backward(output_.loss, gradient, sync);
  output_.loss = output_.loss.detach();
  return output_.loss;
}

void TrainWindow::zero_gradients() {
  const auto& progress = session_.state.progress;
  for (auto& config : session_.optimizers) {
    session_.call(HookPoint::kOnBeforeZeroGrad,
                  &Callback::on_before_zero_grad,
                  &ModuleBase::on_before_zero_grad,
                  *config.optimizer);
    session_.hook(HookPoint::kOptimizerZeroGrad)
        .optimizer_zero_grad(progress.epoch, batch_idx_, *config.optimizer);
  }
}

void TrainWindow::check_loss() const {
  const auto& loss = output_.loss;
  const auto& name = session_.module->name();
  if (loss.numel() != 1) {
    fail<TrainingError>(name,
                        "training_step returned a loss of shape ",
                        loss.sizes(),
                        " in batch ",
                        batch_idx_,
                        "; a loss is a scalar. Reduce it, for example with .mean().");
  }
  if (output_.weight_tensor.defined() && output_.weight_tensor.numel() != 1) {
    fail<TrainingError>(name,
                        "training_step returned a weight of shape ",
                        output_.weight_tensor.sizes(),
                        " in batch ",
                        batch_idx_,
                        "; a weight is one number for the micro-batch, for example its tokens.");
  }
  if (!loss.requires_grad() && !session_.optimizers.empty()) {
    fail<TrainingError>(name,
                        "training_step returned a loss without a graph in batch ",
                        batch_idx_,
                        ": nothing it depends on requires a gradient. Do not detach() it or "
                        "compute it under no_grad; ",
                        "return {} to leave out a batch.");
  }
}

bool TrainWindow::loss_is_usable() {
  if (session_.options.nonfinite_loss == NonFiniteLoss::kIgnore) return true;
  // This reads the loss, and so waits for the device: it is off by default.
  const double value = output_.loss.item<double>();
  if (std::isfinite(value)) return true;
  if (session_.options.nonfinite_loss == NonFiniteLoss::kSkipStep) return false;
  fail<TrainingError>(session_.module->name(),
                      "the loss is ",
                      value,
                      " in batch ",
                      batch_idx_,
                      " of epoch ",
                      session_.state.progress.epoch,
                      " (step ",
                      session_.state.progress.global_step,
                      "). Nothing was updated by it. Lower the learning rate, clip gradients, or "
                      "look at the batch; ",
                      ".nonfinite_loss = NonFiniteLoss::kSkipStep leaves such updates out.");
}

void TrainWindow::end_batch() {
  auto& state = session_.state;
  auto& progress = state.progress;
  session_.metrics.commit();
  if (state.updated) ++progress.global_step;
  const bool last = data_->at_last();
  loop_.step_schedulers(state.updated, last);
  ++progress.batch_idx;
  ++progress.total_batches;
  if (last) state.epoch_done = true;
  state.validation_pending = loop_.validation_is_due(state.updated);
  state.phase = BatchPhase::kBoundary;

  const auto module_part = [this](ModuleBase& module) {
    if (!data_->idle()) module.dispatch_train_batch_end(output_, batch_.view(), batch_idx_);
    session_.metrics.commit();
  };
  session_.call_checkpoints_last(HookPoint::kOnTrainBatchEnd,
                                 &Callback::on_train_batch_end,
                                 module_part,
                                 output_,
                                 batch_.view(),
                                 batch_idx_);
  session_.set_hook(HookPoint::kOutside);
  if (state.updated) loop_.log_step();
  if (last || !session_.several_ranks()) batch_.reset();  // An idle rank shows its last one again.
  if (state.validation_pending && session_.interruption() == nullptr) loop_.run_validation();
}

}  // namespace fulmen::detail
