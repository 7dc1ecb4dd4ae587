#pragma once

#include <torch/nn/module.h>

#include <boost/json/object.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/core/data/batch.h"
#include "fulmen/core/metrics/log_options.h"
#include "fulmen/core/module/step_output.h"
#include "fulmen/core/module/trainer_context.h"
#include "fulmen/core/optim/clip_algorithm.h"
#include "fulmen/core/optim/optimizer_config.h"
#include "fulmen/core/support/state_dict.h"

namespace fulmen {

/// What on_train_batch_start answers.
enum class BatchAction {
  kContinue,
  kSkipEpoch,  ///< Leave out this batch and the rest of the epoch. Validation and epoch-end hooks
               ///< still run.
};

enum class OptimizationMode { kAutomatic, kManual };

/// What manual optimization and the default hooks need of the trainer.
class ManualOptimization {
 public:
  /// Backward of the loss with all its hooks and the precision's scale.
  virtual void manual_backward(const at::Tensor& loss) = 0;
  /// One update of optimizer i in manual optimization, with hooks.
  virtual void manual_step(std::size_t optimizer, const Optimizer::Closure& closure) = 0;
  /// What ModuleBase::optimizer_step does by default: the closure, then the update unless there is
  /// nothing to apply.
  virtual void automatic_step(Optimizer& optimizer, const Optimizer::Closure& closure) = 0;
  virtual at::Tensor clip_gradients(Optimizer& optimizer,
                                    std::optional<double> value,
                                    ClipAlgorithm algorithm) = 0;

 protected:
  ~ManualOptimization() = default;
};

/// The face of a user's model that trainer, callbacks and strategies know; users derive from
/// LightningModule<Batch>. Hooks have Lightning's names and order (docs/hooks.md). All run on the
/// trainer's thread.
class ModuleBase : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  /// Callbacks that come with the model; one of the same state_key in the trainer is replaced.
  virtual std::vector<std::shared_ptr<Callback>> configure_callbacks() { return {}; }
  virtual void prepare_data() {}
  virtual void setup(Stage) {}
  virtual void teardown(Stage) {}
  /// Builds layers that need the strategy: called once per strategy and mesh, inside its
  /// model_sharded_context(), before weights are restored and optimizers exist. register_module
  /// here is the normal way.
  virtual void configure_sharded_model() {}
  /// Required by fit.
  virtual OptimizerConfigs configure_optimizers();
  virtual OptimizationMode optimization_mode() const { return OptimizationMode::kAutomatic; }

  virtual void on_fit_start() {}
  virtual void on_fit_end() {}
  virtual void on_train_start() {}
  virtual void on_train_end() {}
  virtual void on_train_epoch_start() {}
  virtual void on_train_epoch_end() {}
  virtual void on_validation_start() {}
  virtual void on_validation_end() {}
  virtual void on_validation_epoch_start() {}
  virtual void on_validation_epoch_end() {}
  virtual void on_test_start() {}
  virtual void on_test_end() {}
  virtual void on_test_epoch_start() {}
  virtual void on_test_epoch_end() {}
  virtual void on_predict_start() {}
  virtual void on_predict_end() {}
  virtual void on_predict_epoch_start() {}
  virtual void on_predict_epoch_end() {}

  /// Evaluation sets eval(), and afterwards every submodule gets back the mode it had.
  virtual void on_validation_model_eval() { eval(); }
  virtual void on_test_model_eval() { eval(); }
  virtual void on_predict_model_eval() { eval(); }
  /// After the modes were given back.
  virtual void on_validation_model_train() {}
  virtual void on_test_model_train() {}
  /// Before a validation in fit, unless a window of micro-batches is open. Default: drops all
  /// gradients, but not in manual optimization.
  virtual void on_validation_model_zero_grad();

  /// `loss` as training_step returned it: neither divided nor scaled.
  virtual void on_before_backward(const at::Tensor& /*loss*/) {}
  virtual void on_after_backward() {}
  /// Automatic optimization's backward; `gradient` is the weight and scale of this micro-batch
  /// (undefined: 1).
  virtual void backward(const at::Tensor& loss, const at::Tensor& gradient);
  virtual void on_before_zero_grad(Optimizer&) {}
  virtual void optimizer_zero_grad(std::int64_t epoch,
                                   std::int64_t batch_idx,
                                   Optimizer& optimizer);
  virtual void on_before_optimizer_step(Optimizer&) {}
  virtual void configure_gradient_clipping(Optimizer& optimizer,
                                           std::optional<double> value,
                                           ClipAlgorithm algorithm);
  /// Must call the closure, directly or through the default.
  virtual void optimizer_step(std::int64_t epoch,
                              std::int64_t batch_idx,
                              Optimizer& optimizer,
                              const Optimizer::Closure& closure);
  virtual void lr_scheduler_step(LRScheduler& scheduler, std::optional<double> metric);

  /// `extra` is the module's to fill and comes back on load, before the weights.
  virtual void on_save_checkpoint(StateDict& /*extra*/) {}
  virtual void on_load_checkpoint(const StateDict& /*extra*/) {}

  /// Records a scalar: a number or a tensor of one element, which is not read from the device
  /// before somebody asks. Throws ConfigError in hooks where Lightning forbids it, and outside a
  /// run.
  void log(std::string_view name, const at::Tensor& value, const LogOptions& options = {});
  void log(std::string_view name, double value, const LogOptions& options = {});
  void log_dict(const TensorMap& values, const LogOptions& options = {});

  /// Manual optimization.
  void manual_backward(const at::Tensor& loss);
  void step_optimizer(std::size_t index, const Optimizer::Closure& closure = {});
  Optimizer& optimizer(std::size_t index = 0);
  LRScheduler& lr_scheduler(std::size_t optimizer = 0, std::size_t index = 0);
  /// Only parameters of optimizer `index` require gradients until untoggle_optimizer.
  void toggle_optimizer(std::size_t index);
  void untoggle_optimizer();
  /// Clips the gradients of one optimizer, after unscaling them. Returns the norm before that as a
  /// tensor that nobody has read yet; undefined for kValue or without a value.
  at::Tensor clip_gradients(Optimizer& optimizer,
                            std::optional<double> value,
                            ClipAlgorithm algorithm = ClipAlgorithm::kNorm);

  /// Throws ConfigError outside a run.
  TrainerContext& trainer() const;
  bool has_trainer() const { return context_ != nullptr; }
  std::int64_t current_epoch() const { return trainer().progress().epoch; }
  std::int64_t global_step() const { return trainer().progress().global_step; }
  c10::Device device() const { return device_; }
  /// Sent to the loggers at the start of fit and stored in checkpoints.
  boost::json::object hyperparameters = {};

  // The typed face, erased: implemented by LightningModule<Batch>, called by the trainer.
  virtual const std::type_info& dispatch_batch_type() const = 0;
  virtual StepOutput dispatch_training_step(BatchView batch, std::int64_t batch_idx) = 0;
  virtual StepOutput dispatch_validation_step(BatchView batch,
                                              std::int64_t batch_idx,
                                              std::int64_t dataloader_idx) = 0;
  virtual StepOutput dispatch_test_step(BatchView batch,
                                        std::int64_t batch_idx,
                                        std::int64_t dataloader_idx) = 0;
  virtual AnyBatch dispatch_predict_step(BatchView batch,
                                         std::int64_t batch_idx,
                                         std::int64_t dataloader_idx) = 0;
  virtual BatchAction dispatch_train_batch_start(BatchView batch, std::int64_t batch_idx) = 0;
  virtual void dispatch_train_batch_end(const StepOutput& outputs,
                                        BatchView batch,
                                        std::int64_t batch_idx) = 0;
  virtual void dispatch_eval_batch_start(Stage stage,
                                         BatchView batch,
                                         std::int64_t batch_idx,
                                         std::int64_t dataloader_idx) = 0;
  virtual void dispatch_eval_batch_end(Stage stage,
                                       const StepOutput& outputs,
                                       BatchView batch,
                                       std::int64_t batch_idx,
                                       std::int64_t dataloader_idx) = 0;
  virtual void dispatch_predict_batch_end(BatchView prediction,
                                          BatchView batch,
                                          std::int64_t batch_idx,
                                          std::int64_t dataloader_idx) = 0;
  virtual void dispatch_before_batch_transfer(BatchView batch, std::int64_t dataloader_idx) = 0;
  virtual void dispatch_transfer_batch(BatchView batch,
                                       c10::Device device,
                                       std::int64_t dataloader_idx) = 0;
  virtual void dispatch_after_batch_transfer(BatchView batch, std::int64_t dataloader_idx) = 0;
  virtual std::shared_ptr<BatchSource> dispatch_train_dataloader() = 0;
  /// Stage kFit is kValidate here.
  virtual std::vector<std::shared_ptr<BatchSource>> dispatch_eval_dataloaders(Stage stage) = 0;

  /// Set by the trainer for the length of a run.
  void attach(TrainerContext* context, ManualOptimization* manual);
  void set_device(c10::Device device) { device_ = device; }
  /// For which strategy and mesh configure_sharded_model() has run; empty: for none.
  const std::string& configured_for() const { return configured_for_; }
  void set_configured_for(std::string key) { configured_for_ = std::move(key); }

 private:
  ManualOptimization& manual() const;

  TrainerContext* context_ = nullptr;
  ManualOptimization* manual_ = nullptr;
  c10::Device device_ = c10::Device(c10::kCPU);
  std::string configured_for_;
  std::vector<at::Tensor> toggled_;  ///< What toggle_optimizer() keeps from requiring gradients.
};

}  // namespace fulmen
