#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "fulmen/core/module/callback.h"

namespace fulmen {

/// A function for each hook of Callback that is wanted; unset ones do nothing.
struct LambdaCallbackOptions {
  using Hook = std::function<void(TrainerContext&, ModuleBase&)>;
  using StageHook = std::function<void(TrainerContext&, ModuleBase&, Stage)>;
  using OptimizerHook = std::function<void(TrainerContext&, ModuleBase&, Optimizer&)>;
  using TrainBatchStart =
      std::function<void(TrainerContext&, ModuleBase&, BatchView, std::int64_t)>;
  using TrainBatchEnd =
      std::function<void(TrainerContext&, ModuleBase&, const StepOutput&, BatchView, std::int64_t)>;
  using BatchStart =
      std::function<void(TrainerContext&, ModuleBase&, BatchView, std::int64_t, std::int64_t)>;
  using BatchEnd = std::function<void(
      TrainerContext&, ModuleBase&, const StepOutput&, BatchView, std::int64_t, std::int64_t)>;
  using PredictBatchEnd = std::function<void(
      TrainerContext&, ModuleBase&, BatchView, BatchView, std::int64_t, std::int64_t)>;
  using StateHook = std::function<void(TrainerContext&, ModuleBase&, StateDict&)>;
  using LoadHook = std::function<void(TrainerContext&, ModuleBase&, const StateDict&)>;

  StageHook setup = {};
  StageHook teardown = {};
  Hook on_configure_sharded_model = {};
  Hook on_fit_start = {};
  Hook on_fit_end = {};
  Hook on_sanity_check_start = {};
  Hook on_sanity_check_end = {};
  Hook on_train_start = {};
  Hook on_train_end = {};
  Hook on_train_epoch_start = {};
  Hook on_train_epoch_end = {};
  TrainBatchStart on_train_batch_start = {};
  TrainBatchEnd on_train_batch_end = {};
  OptimizerHook on_before_zero_grad = {};
  std::function<void(TrainerContext&, ModuleBase&, const at::Tensor&)> on_before_backward = {};
  Hook on_after_backward = {};
  OptimizerHook on_before_optimizer_step = {};
  Hook on_validation_start = {};
  Hook on_validation_end = {};
  Hook on_validation_epoch_start = {};
  Hook on_validation_epoch_end = {};
  BatchStart on_validation_batch_start = {};
  BatchEnd on_validation_batch_end = {};
  Hook on_test_start = {};
  Hook on_test_end = {};
  Hook on_test_epoch_start = {};
  Hook on_test_epoch_end = {};
  BatchStart on_test_batch_start = {};
  BatchEnd on_test_batch_end = {};
  Hook on_predict_start = {};
  Hook on_predict_end = {};
  Hook on_predict_epoch_start = {};
  Hook on_predict_epoch_end = {};
  BatchStart on_predict_batch_start = {};
  PredictBatchEnd on_predict_batch_end = {};
  std::function<void(TrainerContext&, ModuleBase&, const std::exception&)> on_exception = {};
  std::function<void(TrainerContext&, ModuleBase&, std::string_view)> on_interrupt = {};
  StateHook on_save_checkpoint = {};
  LoadHook on_load_checkpoint = {};
};

/// A callback from functions, in the order of the hooks:
///   LambdaCallback::make({.on_train_epoch_end = [](TrainerContext& trainer, ModuleBase&) { ... }})
class LambdaCallback : public Callback {
 public:
  static std::shared_ptr<LambdaCallback> make(LambdaCallbackOptions options);

  void setup(Context&, Module&, Stage) override;
  void teardown(Context&, Module&, Stage) override;
  void on_configure_sharded_model(Context&, Module&) override;
  void on_fit_start(Context&, Module&) override;
  void on_fit_end(Context&, Module&) override;
  void on_sanity_check_start(Context&, Module&) override;
  void on_sanity_check_end(Context&, Module&) override;
  void on_train_start(Context&, Module&) override;
  void on_train_end(Context&, Module&) override;
  void on_train_epoch_start(Context&, Module&) override;
  void on_train_epoch_end(Context&, Module&) override;
  void on_train_batch_start(Context&, Module&, BatchView, std::int64_t) override;
  void on_train_batch_end(Context&, Module&, const StepOutput&, BatchView, std::int64_t) override;
  void on_before_zero_grad(Context&, Module&, Optimizer&) override;
  void on_before_backward(Context&, Module&, const at::Tensor&) override;
  void on_after_backward(Context&, Module&) override;
  void on_before_optimizer_step(Context&, Module&, Optimizer&) override;
  void on_validation_start(Context&, Module&) override;
  void on_validation_end(Context&, Module&) override;
  void on_validation_epoch_start(Context&, Module&) override;
  void on_validation_epoch_end(Context&, Module&) override;
  void on_validation_batch_start(Context&, Module&, BatchView, std::int64_t, std::int64_t) override;
  void on_validation_batch_end(
      Context&, Module&, const StepOutput&, BatchView, std::int64_t, std::int64_t) override;
  void on_test_start(Context&, Module&) override;
  void on_test_end(Context&, Module&) override;
  void on_test_epoch_start(Context&, Module&) override;
  void on_test_epoch_end(Context&, Module&) override;
  void on_test_batch_start(Context&, Module&, BatchView, std::int64_t, std::int64_t) override;
  void on_test_batch_end(
      Context&, Module&, const StepOutput&, BatchView, std::int64_t, std::int64_t) override;
  void on_predict_start(Context&, Module&) override;
  void on_predict_end(Context&, Module&) override;
  void on_predict_epoch_start(Context&, Module&) override;
  void on_predict_epoch_end(Context&, Module&) override;
  void on_predict_batch_start(Context&, Module&, BatchView, std::int64_t, std::int64_t) override;
  void on_predict_batch_end(
      Context&, Module&, BatchView, BatchView, std::int64_t, std::int64_t) override;
  void on_exception(Context&, Module&, const std::exception&) override;
  void on_interrupt(Context&, Module&, std::string_view) override;
  void on_save_checkpoint(Context&, Module&, StateDict&) override;
  void on_load_checkpoint(Context&, Module&, const StateDict&) override;

 private:
  explicit LambdaCallback(LambdaCallbackOptions options) : hooks_(std::move(options)) {}

  LambdaCallbackOptions hooks_;
};

}  // namespace fulmen
