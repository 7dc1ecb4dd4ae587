#include "fulmen/callbacks/lambda_callback.h"

#include <utility>

namespace fulmen {
namespace {

template <class Function, class... Arguments>
void call(const Function& function, Arguments&&... arguments) {
  if (function) function(std::forward<Arguments>(arguments)...);
}

}  // namespace

std::shared_ptr<LambdaCallback> LambdaCallback::make(LambdaCallbackOptions options) {
  return std::shared_ptr<LambdaCallback>(new LambdaCallback(std::move(options)));
}

void LambdaCallback::setup(Context& context, Module& module, Stage stage) {
  call(hooks_.setup, context, module, stage);
}

void LambdaCallback::teardown(Context& context, Module& module, Stage stage) {
  call(hooks_.teardown, context, module, stage);
}

void LambdaCallback::on_configure_sharded_model(Context& context, Module& module) {
  call(hooks_.on_configure_sharded_model, context, module);
}

void LambdaCallback::on_fit_start(Context& context, Module& module) {
  call(hooks_.on_fit_start, context, module);
}

void LambdaCallback::on_fit_end(Context& context, Module& module) {
  call(hooks_.on_fit_end, context, module);
}

void LambdaCallback::on_sanity_check_start(Context& context, Module& module) {
  call(hooks_.on_sanity_check_start, context, module);
}

void LambdaCallback::on_sanity_check_end(Context& context, Module& module) {
  call(hooks_.on_sanity_check_end, context, module);
}

void LambdaCallback::on_train_start(Context& context, Module& module) {
  call(hooks_.on_train_start, context, module);
}

void LambdaCallback::on_train_end(Context& context, Module& module) {
  call(hooks_.on_train_end, context, module);
}

void LambdaCallback::on_train_epoch_start(Context& context, Module& module) {
  call(hooks_.on_train_epoch_start, context, module);
}

void LambdaCallback::on_train_epoch_end(Context& context, Module& module) {
  call(hooks_.on_train_epoch_end, context, module);
}

void LambdaCallback::on_train_batch_start(Context& context,
                                          Module& module,
                                          BatchView batch,
                                          std::int64_t i) {
  call(hooks_.on_train_batch_start, context, module, batch, i);
}

void LambdaCallback::on_train_batch_end(
    Context& context, Module& module, const StepOutput& outputs, BatchView batch, std::int64_t i) {
  call(hooks_.on_train_batch_end, context, module, outputs, batch, i);
}

void LambdaCallback::on_before_zero_grad(Context& context, Module& module, Optimizer& optimizer) {
  call(hooks_.on_before_zero_grad, context, module, optimizer);
}

void LambdaCallback::on_before_backward(Context& context, Module& module, const at::Tensor& loss) {
  call(hooks_.on_before_backward, context, module, loss);
}

void LambdaCallback::on_after_backward(Context& context, Module& module) {
  call(hooks_.on_after_backward, context, module);
}

void LambdaCallback::on_before_optimizer_step(Context& context,
                                              Module& module,
                                              Optimizer& optimizer) {
  call(hooks_.on_before_optimizer_step, context, module, optimizer);
}

void LambdaCallback::on_validation_start(Context& context, Module& module) {
  call(hooks_.on_validation_start, context, module);
}

void LambdaCallback::on_validation_end(Context& context, Module& module) {
  call(hooks_.on_validation_end, context, module);
}

void LambdaCallback::on_validation_epoch_start(Context& context, Module& module) {
  call(hooks_.on_validation_epoch_start, context, module);
}

void LambdaCallback::on_validation_epoch_end(Context& context, Module& module) {
  call(hooks_.on_validation_epoch_end, context, module);
}

void LambdaCallback::on_validation_batch_start(
    Context& context, Module& module, BatchView batch, std::int64_t i, std::int64_t loader) {
  call(hooks_.on_validation_batch_start, context, module, batch, i, loader);
}

void LambdaCallback::on_validation_batch_end(Context& context,
                                             Module& module,
                                             const StepOutput& outputs,
                                             BatchView batch,
                                             std::int64_t i,
                                             std::int64_t loader) {
  call(hooks_.on_validation_batch_end, context, module, outputs, batch, i, loader);
}

void LambdaCallback::on_test_start(Context& context, Module& module) {
  call(hooks_.on_test_start, context, module);
}

void LambdaCallback::on_test_end(Context& context, Module& module) {
  call(hooks_.on_test_end, context, module);
}

void LambdaCallback::on_test_epoch_start(Context& context, Module& module) {
  call(hooks_.on_test_epoch_start, context, module);
}

void LambdaCallback::on_test_epoch_end(Context& context, Module& module) {
  call(hooks_.on_test_epoch_end, context, module);
}

void LambdaCallback::on_test_batch_start(
    Context& context, Module& module, BatchView batch, std::int64_t i, std::int64_t loader) {
  call(hooks_.on_test_batch_start, context, module, batch, i, loader);
}

void LambdaCallback::on_test_batch_end(Context& context,
                                       Module& module,
                                       const StepOutput& outputs,
                                       BatchView batch,
                                       std::int64_t i,
                                       std::int64_t loader) {
  call(hooks_.on_test_batch_end, context, module, outputs, batch, i, loader);
}

void LambdaCallback::on_predict_start(Context& context, Module& module) {
  call(hooks_.on_predict_start, context, module);
}

void LambdaCallback::on_predict_end(Context& context, Module& module) {
  call(hooks_.on_predict_end, context, module);
}

void LambdaCallback::on_predict_epoch_start(Context& context, Module& module) {
  call(hooks_.on_predict_epoch_start, context, module);
}

void LambdaCallback::on_predict_epoch_end(Context& context, Module& module) {
  call(hooks_.on_predict_epoch_end, context, module);
}

void LambdaCallback::on_predict_batch_start(
    Context& context, Module& module, BatchView batch, std::int64_t i, std::int64_t loader) {
  call(hooks_.on_predict_batch_start, context, module, batch, i, loader);
}

void LambdaCallback::on_predict_batch_end(Context& context,
                                          Module& module,
                                          BatchView prediction,
                                          BatchView batch,
                                          std::int64_t i,
                                          std::int64_t loader) {
  call(hooks_.on_predict_batch_end, context, module, prediction, batch, i, loader);
}

void LambdaCallback::on_exception(Context& context, Module& module, const std::exception& error) {
  call(hooks_.on_exception, context, module, error);
}

void LambdaCallback::on_interrupt(Context& context, Module& module, std::string_view reason) {
  call(hooks_.on_interrupt, context, module, reason);
}

void LambdaCallback::on_save_checkpoint(Context& context, Module& module, StateDict& extra) {
  call(hooks_.on_save_checkpoint, context, module, extra);
}

void LambdaCallback::on_load_checkpoint(Context& context, Module& module, const StateDict& extra) {
  call(hooks_.on_load_checkpoint, context, module, extra);
}

}  // namespace fulmen
