#include "fulmen/core/module/module_base.h"

#include <torch/torch.h>

#include <set>

#include "fulmen/core/support/error.h"

namespace fulmen {

OptimizerConfigs ModuleBase::configure_optimizers() {
  fail<ConfigError>(
      name(),
      "configure_optimizers is not overridden, and fit needs it. Return an optimizer, for ",
      "example fulmen::AdamW::make(*this, {.lr = 1e-3}), or {} if nothing is to be optimized.");
}

void ModuleBase::on_validation_model_zero_grad() {
  // In manual optimization the user decides when gradients are done with.
  if (optimization_mode() == OptimizationMode::kAutomatic) zero_grad();
}

void ModuleBase::backward(const at::Tensor& loss, const at::Tensor& gradient) {
  loss.backward(gradient);
}

void ModuleBase::optimizer_zero_grad(std::int64_t, std::int64_t, Optimizer& optimizer) {
  optimizer.zero_grad();
}

void ModuleBase::configure_gradient_clipping(Optimizer& optimizer,
                                             std::optional<double> value,
                                             ClipAlgorithm algorithm) {
  clip_gradients(optimizer, value, algorithm);
}

void ModuleBase::optimizer_step(std::int64_t,
                                std::int64_t,
                                Optimizer& optimizer,
                                const Optimizer::Closure& closure) {
  manual().automatic_step(optimizer, closure);
}

void ModuleBase::lr_scheduler_step(LRScheduler& scheduler, std::optional<double> metric) {
  scheduler.step(metric);
}

void ModuleBase::log(std::string_view name, const at::Tensor& value, const LogOptions& options) {
  trainer().log_value(name, value, options);
}

void ModuleBase::log(std::string_view name, double value, const LogOptions& options) {
  trainer().log_value(name, value, options);
}

void ModuleBase::log_dict(const TensorMap& values, const LogOptions& options) {
  for (const auto& [name, value] : values) trainer().log_value(name, value, options);
}

void ModuleBase::manual_backward(const at::Tensor& loss) {
  manual().manual_backward(loss);
}

void ModuleBase::step_optimizer(std::size_t index, const Optimizer::Closure& closure) {
  manual().manual_step(index, closure);
}

Optimizer& ModuleBase::optimizer(std::size_t index) {
  auto configs = trainer().optimizer_configs();
  if (index >= configs.size()) {
    fail<ConfigError>(name(),
                      "optimizer ",
                      index,
                      " does not exist: configure_optimizers returned ",
                      configs.size(),
                      ".");
  }
  return *configs[index].optimizer;
}

LRScheduler& ModuleBase::lr_scheduler(std::size_t optimizer, std::size_t index) {
  auto configs = trainer().optimizer_configs();
  if (optimizer >= configs.size() || index >= configs[optimizer].schedulers.size()) {
    fail<ConfigError>(name(),
                      "scheduler ",
                      index,
                      " of optimizer ",
                      optimizer,
                      " does not exist: configure_optimizers did not return it.");
  }
  return *configs[optimizer].schedulers[index].scheduler;
}

void ModuleBase::toggle_optimizer(std::size_t index) {
  if (!toggled_.empty()) {
    fail<ConfigError>(name(),
                      "toggle_optimizer(",
                      index,
                      ") was called while another optimizer is toggled. Call ",
                      "untoggle_optimizer() first.");
  }
  std::set<at::TensorImpl*> own;
  for (const auto& tensor : optimizer(index).all_parameters())
    own.insert(tensor.unsafeGetTensorImpl());
  for (const auto& config : trainer().optimizer_configs()) {
    for (const auto& tensor : config.optimizer->all_parameters()) {
      if (own.contains(tensor.unsafeGetTensorImpl()) || !tensor.requires_grad()) continue;
      toggled_.push_back(tensor);
      tensor.set_requires_grad(false);
    }
  }
}

void ModuleBase::untoggle_optimizer() {
  for (const auto& tensor : toggled_) tensor.set_requires_grad(true);
  toggled_.clear();
}

at::Tensor ModuleBase::clip_gradients(Optimizer& optimizer,
                                      std::optional<double> value,
                                      ClipAlgorithm algorithm) {
  return manual().clip_gradients(optimizer, value, algorithm);
}

TrainerContext& ModuleBase::trainer() const {
  if (context_ == nullptr) {
    fail<ConfigError>(name(),
                      "no trainer runs this module. log(), optimizer() and their kin work in hooks "
                      "of a run only.");
  }
  return *context_;
}

ManualOptimization& ModuleBase::manual() const {
  trainer();
  return *manual_;
}

void ModuleBase::attach(TrainerContext* context, ManualOptimization* manual) {
  context_ = context;
  manual_ = manual;
  if (context == nullptr) untoggle_optimizer();
}

}  // namespace fulmen
