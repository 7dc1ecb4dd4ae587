#include "evaluation_loop.h"

#include <torch/torch.h>

namespace fulmen::detail {

struct EvaluationLoop::Hooks {
  using OnCallback = void (Callback::*)(TrainerContext&, ModuleBase&);
  using OnModule = void (ModuleBase::*)();
  struct Pair {
    HookPoint point;
    OnCallback callback;
    OnModule module;
  };
  HookPoint eval_point;
  OnModule model_eval;
  HookPoint train_point;
  OnModule model_train;
  Pair start, epoch_start, epoch_end, end;
  HookPoint step_point, batch_start_point, batch_end_point;
  void (Callback::*batch_start)(
      TrainerContext&, ModuleBase&, BatchView, std::int64_t, std::int64_t);
  void (Callback::*batch_end)(
      TrainerContext&, ModuleBase&, const StepOutput&, BatchView, std::int64_t, std::int64_t);
  StepOutput (ModuleBase::*step)(BatchView, std::int64_t, std::int64_t);
  BatchLimit TrainerOptions::*limit;
  const char* limit_name;
};

const EvaluationLoop::Hooks& EvaluationLoop::hooks() const {
  static const Hooks kValidation = {
      .eval_point = HookPoint::kOnValidationModelEval,
      .model_eval = &ModuleBase::on_validation_model_eval,
      .train_point = HookPoint::kOnValidationModelTrain,
      .model_train = &ModuleBase::on_validation_model_train,
      .start = {HookPoint::kOnValidationStart,
                &Callback::on_validation_start,
                &ModuleBase::on_validation_start},
      .epoch_start = {HookPoint::kOnValidationEpochStart,
                      &Callback::on_validation_epoch_start,
                      &ModuleBase::on_validation_epoch_start},
      .epoch_end = {HookPoint::kOnValidationEpochEnd,
                    &Callback::on_validation_epoch_end,
                    &ModuleBase::on_validation_epoch_end},
      .end = {HookPoint::kOnValidationEnd,
              &Callback::on_validation_end,
              &ModuleBase::on_validation_end},
      .step_point = HookPoint::kValidationStep,
      .batch_start_point = HookPoint::kOnValidationBatchStart,
      .batch_end_point = HookPoint::kOnValidationBatchEnd,
      .batch_start = &Callback::on_validation_batch_start,
      .batch_end = &Callback::on_validation_batch_end,
      .step = &ModuleBase::dispatch_validation_step,
      .limit = &TrainerOptions::limit_val_batches,
      .limit_name = "limit_val_batches",
  };
  static const Hooks kTest = {
      .eval_point = HookPoint::kOnTestModelEval,
      .model_eval = &ModuleBase::on_test_model_eval,
      .train_point = HookPoint::kOnTestModelTrain,
      .model_train = &ModuleBase::on_test_model_train,
      .start = {HookPoint::kOnTestStart, &Callback::on_test_start, &ModuleBase::on_test_start},
      .epoch_start = {HookPoint::kOnTestEpochStart,
                      &Callback::on_test_epoch_start,
                      &ModuleBase::on_test_epoch_start},
      .epoch_end = {HookPoint::kOnTestEpochEnd,
                    &Callback::on_test_epoch_end,
                    &ModuleBase::on_test_epoch_end},
      .end = {HookPoint::kOnTestEnd, &Callback::on_test_end, &ModuleBase::on_test_end},
      .step_point = HookPoint::kTestStep,
      .batch_start_point = HookPoint::kOnTestBatchStart,
      .batch_end_point = HookPoint::kOnTestBatchEnd,
      .batch_start = &Callback::on_test_batch_start,
      .batch_end = &Callback::on_test_batch_end,
      .step = &ModuleBase::dispatch_test_step,
      .limit = &TrainerOptions::limit_test_batches,
      .limit_name = "limit_test_batches",
  };
  return stage_ == Stage::kTest ? kTest : kValidation;
}

EvaluationLoop::EvaluationLoop(Session& session,
                               std::vector<std::shared_ptr<BatchSource>> sources,
                               Stage stage)
    : session_(session), sources_(std::move(sources)), stage_(stage) {}

MetricPhase EvaluationLoop::phase() const {
  if (stage_ == Stage::kTest) return MetricPhase::kTest;
  return session_.sanity_checking() ? MetricPhase::kSanityCheck : MetricPhase::kValidate;
}

BatchLimit EvaluationLoop::limit() const {
  const auto& options = session_.options;
  const bool overfits = stage_ == Stage::kValidate && options.overfit_batches;
  return session_.dev_run_or(overfits ? *options.overfit_batches : options.*hooks().limit);
}

BatchLimit EvaluationLoop::few_batches(const LimitedSource& whole) const {
  // Never more than the validations that follow will use.
  const auto usual = whole.size();
  return batches(usual ? std::min(*usual, *few_) : *few_);
}

void EvaluationLoop::run() {
  const auto& hook = hooks();
  auto& metrics = session_.metrics;
  const auto hook_before = metrics.hook();
  auto loaders = limited_sources();
  session_.strategy().synchronize_buffers(*session_.module);
  {
    ModeGuard modes(*session_.module);
    (session_.hook(hook.eval_point).*hook.model_eval)();
    // Gradients are off; in a fit the outputs may still meet those of training, so they are not
    // inference tensors.
    c10::InferenceMode inference(session_.evaluates_in_inference_mode());
    at::NoGradGuard no_grad;
    metrics.begin_phase(phase());
    session_.call(hook.start.point, hook.start.callback, hook.start.module);
    metrics.begin_epoch();
    session_.call(hook.epoch_start.point, hook.epoch_start.callback, hook.epoch_start.module);
    metrics.commit();
    if (!run_batches(loaders)) {
      metrics.discard();
      metrics.end_phase();
      return;
    }
    session_.end_metrics_epoch();
    session_.call(hook.epoch_end.point, hook.epoch_end.callback, hook.epoch_end.module);
    session_.commit_epoch_hooks();
    finish();
    metrics.end_phase();
  }
  (session_.hook(hook.train_point).*hook.model_train)();
  session_.set_hook(hook_before);
}

void EvaluationLoop::finish() {
  const auto& end = hooks().end;
  if (!session_.sanity_checking()) {
    const auto step = session_.stage() == Stage::kFit ? session_.logged_step()
                                                      : session_.state.progress.global_step;
    session_.send_to_loggers(session_.metrics.epoch_metrics(phase()), step);
  }
  if (on_complete_) on_complete_();
  session_.call_checkpoints_last(
      end.point, end.callback, [&](ModuleBase& module) { (module.*end.module)(); });
}

std::string EvaluationLoop::loader_name(std::size_t i) const {
  return (stage_ == Stage::kTest ? "the test loader " : "the validation loader ") +
         std::to_string(i);
}

std::vector<LimitedSource> EvaluationLoop::limited_sources() {
  std::vector<LimitedSource> loaders;
  auto& sizes = session_.plan_.eval_batches;
  sizes.clear();
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const auto what = loader_name(i);
    session_.prepare_source(*sources_[i], what);
    const LimitedSource whole(*sources_[i], limit(), what, hooks().limit_name, Lookahead::kNo);
    // With more ranks than samples some have nothing to do.
    if (!session_.several_ranks()) whole.require_batches();
    loaders.emplace_back(*sources_[i],
                         few_ ? few_batches(whole) : limit(),
                         what,
                         hooks().limit_name,
                         Lookahead::kNo);
    sizes.push_back(loaders.back().size());
  }
  return loaders;
}

bool EvaluationLoop::run_batches(std::vector<LimitedSource>& loaders) {
  AnyBatch batch;
  for (std::size_t i = 0; i < loaders.size(); ++i) {
    auto& loader = loaders[i];
    const StopAtExit stop{loader};
    const auto order = session_.options.overfit_batches ? 0 : session_.state.progress.epoch;
    loader.start({.epoch = order, .batches_to_skip = 0});
    session_.check_same_order(loader, loader_name(i));
    for (std::int64_t batch_idx = 0; loader.next(batch); ++batch_idx) {
      session_.transfer(batch.view(), static_cast<std::int64_t>(i));
      run_batch(batch.view(), batch_idx, static_cast<std::int64_t>(i));
      batch.reset();
      if (session_.interruption() != nullptr) return false;
    }
  }
  return true;
}

void EvaluationLoop::run_batch(BatchView batch,
                               std::int64_t batch_idx,
                               std::int64_t dataloader_idx) {
  const auto& hook = hooks();
  auto& metrics = session_.metrics;
  metrics.set_batch(batch, dataloader_idx, static_cast<std::int64_t>(sources_.size()));
  session_.call_callbacks(
      hook.batch_start_point, hook.batch_start, batch, batch_idx, dataloader_idx);
  session_.hook(hook.batch_start_point)
      .dispatch_eval_batch_start(stage_, batch, batch_idx, dataloader_idx);
  auto& module = session_.hook(hook.step_point);
  const auto output =
      session_.in_precision([&] { return (module.*hook.step)(batch, batch_idx, dataloader_idx); });
  session_.call_callbacks(
      hook.batch_end_point, hook.batch_end, output, batch, batch_idx, dataloader_idx);
  session_.hook(hook.batch_end_point)
      .dispatch_eval_batch_end(stage_, output, batch, batch_idx, dataloader_idx);
  metrics.commit();
  if (session_.sanity_checking() || !metrics.has_step_logger_metrics(phase())) return;
  session_.send_to_loggers(metrics.step_metrics(phase()), batch_idx);
}

ModeGuard::ModeGuard(torch::nn::Module& module)
    : root_(module), root_training_(module.is_training()) {
  for (const auto& child : module.modules(/*include_self=*/false))
    children_.emplace_back(child, child->is_training());
}

ModeGuard::~ModeGuard() {
  // train() of a module reaches its children too, so outer ones come first and inner ones have the
  // last word.
  root_.train(root_training_);
  for (auto& [child, training] : children_) child->train(training);
}

}  // namespace fulmen::detail
