#pragma once

#include <type_traits>

#include "fulmen/core/data/loader.h"
#include "fulmen/core/module/module_base.h"
#include "fulmen/core/support/error.h"

namespace fulmen {

namespace detail {
[[noreturn]] inline void fail_missing_step(const ModuleBase& module, std::string_view step) {
  fail<ConfigError>(module.name(),
                    step,
                    " is not overridden, and this run needs it. Override it with the signature of ",
                    "fulmen::LightningModule.");
}
}  // namespace detail

/// A model that knows its loss and its optimizers: derive from it, own it by shared_ptr, hand it to
/// a Trainer. BatchType is what its loaders yield (any type, see core/data/batch.h), PredictionType
/// what predict_step returns.
template <class BatchType = Batch, class PredictionType = at::Tensor>
class LightningModule : public ModuleBase {
 public:
  using batch_type = BatchType;
  using prediction_type = PredictionType;
  using ModuleBase::ModuleBase;

  /// Required by fit. Returns the loss of one micro-batch: backward, step and zero_grad are the
  /// trainer's.
  virtual StepOutput training_step(BatchType& /*batch*/, std::int64_t /*batch_idx*/) {
    detail::fail_missing_step(*this, "training_step");
  }
  virtual StepOutput validation_step(BatchType& /*batch*/,
                                     std::int64_t /*batch_idx*/,
                                     std::int64_t /*dataloader_idx*/) {
    detail::fail_missing_step(*this, "validation_step");
  }
  virtual StepOutput test_step(BatchType& /*batch*/,
                               std::int64_t /*batch_idx*/,
                               std::int64_t /*dataloader_idx*/) {
    detail::fail_missing_step(*this, "test_step");
  }
  virtual PredictionType predict_step(BatchType& /*batch*/,
                                      std::int64_t /*batch_idx*/,
                                      std::int64_t /*dataloader_idx*/) {
    detail::fail_missing_step(*this, "predict_step");
  }

  /// Used if the entry point got no loaders.
  virtual Loader<BatchType> train_dataloader() { return {}; }
  virtual Loaders<BatchType> val_dataloader() { return {}; }
  virtual Loaders<BatchType> test_dataloader() { return {}; }
  virtual Loaders<BatchType> predict_dataloader() { return {}; }

  virtual void on_before_batch_transfer(BatchType& /*batch*/, std::int64_t /*dataloader_idx*/) {}
  virtual void transfer_batch_to_device(BatchType& batch,
                                        c10::Device device,
                                        std::int64_t /*dataloader_idx*/) {
    BatchView(batch).to(device, Transfer::kNonBlocking);
  }
  virtual void on_after_batch_transfer(BatchType& /*batch*/, std::int64_t /*dataloader_idx*/) {}

  virtual BatchAction on_train_batch_start(BatchType& /*batch*/, std::int64_t /*batch_idx*/) {
    return BatchAction::kContinue;
  }
  virtual void on_train_batch_end(const StepOutput& /*outputs*/,
                                  BatchType& /*batch*/,
                                  std::int64_t /*batch_idx*/) {}
  virtual void on_validation_batch_start(BatchType&,
                                         std::int64_t /*batch_idx*/,
                                         std::int64_t /*dataloader_idx*/) {}
  virtual void on_validation_batch_end(const StepOutput&,
                                       BatchType&,
                                       std::int64_t /*batch_idx*/,
                                       std::int64_t /*dataloader_idx*/) {}
  virtual void on_test_batch_start(BatchType&,
                                   std::int64_t /*batch_idx*/,
                                   std::int64_t /*dataloader_idx*/) {}
  virtual void on_test_batch_end(const StepOutput&,
                                 BatchType&,
                                 std::int64_t /*batch_idx*/,
                                 std::int64_t /*dataloader_idx*/) {}
  virtual void on_predict_batch_start(BatchType&,
                                      std::int64_t /*batch_idx*/,
                                      std::int64_t /*dataloader_idx*/) {}
  virtual void on_predict_batch_end(const PredictionType&,
                                    BatchType&,
                                    std::int64_t /*batch_idx*/,
                                    std::int64_t /*dataloader_idx*/) {}

 private:
  static BatchType& typed(BatchView batch) { return *batch.get_if<BatchType>(); }
  const std::type_info& dispatch_batch_type() const final { return typeid(BatchType); }
  StepOutput dispatch_training_step(BatchView batch, std::int64_t batch_idx) final {
    return training_step(typed(batch), batch_idx);
  }
  StepOutput dispatch_validation_step(BatchView batch,
                                      std::int64_t batch_idx,
                                      std::int64_t dataloader_idx) final {
    return validation_step(typed(batch), batch_idx, dataloader_idx);
  }
  StepOutput dispatch_test_step(BatchView batch,
                                std::int64_t batch_idx,
                                std::int64_t dataloader_idx) final {
    return test_step(typed(batch), batch_idx, dataloader_idx);
  }
  AnyBatch dispatch_predict_step(BatchView batch,
                                 std::int64_t batch_idx,
                                 std::int64_t dataloader_idx) final {
    return AnyBatch(predict_step(typed(batch), batch_idx, dataloader_idx));
  }
  BatchAction dispatch_train_batch_start(BatchView batch, std::int64_t batch_idx) final {
    return on_train_batch_start(typed(batch), batch_idx);
  }
  void dispatch_train_batch_end(const StepOutput& outputs,
                                BatchView batch,
                                std::int64_t batch_idx) final {
    on_train_batch_end(outputs, typed(batch), batch_idx);
  }
  void dispatch_eval_batch_start(Stage stage,
                                 BatchView batch,
                                 std::int64_t batch_idx,
                                 std::int64_t dataloader_idx) final {
    if (stage == Stage::kTest) return on_test_batch_start(typed(batch), batch_idx, dataloader_idx);
    if (stage == Stage::kPredict)
      return on_predict_batch_start(typed(batch), batch_idx, dataloader_idx);
    on_validation_batch_start(typed(batch), batch_idx, dataloader_idx);
  }
  void dispatch_eval_batch_end(Stage stage,
                               const StepOutput& outputs,
                               BatchView batch,
                               std::int64_t batch_idx,
                               std::int64_t dataloader_idx) final {
    if (stage == Stage::kTest)
      return on_test_batch_end(outputs, typed(batch), batch_idx, dataloader_idx);
    on_validation_batch_end(outputs, typed(batch), batch_idx, dataloader_idx);
  }
  void dispatch_predict_batch_end(BatchView prediction,
                                  BatchView batch,
                                  std::int64_t batch_idx,
                                  std::int64_t dataloader_idx) final {
    on_predict_batch_end(
        *prediction.get_if<PredictionType>(), typed(batch), batch_idx, dataloader_idx);
  }
  void dispatch_before_batch_transfer(BatchView batch, std::int64_t dataloader_idx) final {
    on_before_batch_transfer(typed(batch), dataloader_idx);
  }
  void dispatch_transfer_batch(BatchView batch,
                               c10::Device device,
                               std::int64_t dataloader_idx) final {
    transfer_batch_to_device(typed(batch), device, dataloader_idx);
  }
  void dispatch_after_batch_transfer(BatchView batch, std::int64_t dataloader_idx) final {
    on_after_batch_transfer(typed(batch), dataloader_idx);
  }
  std::shared_ptr<BatchSource> dispatch_train_dataloader() final {
    return train_dataloader().source();
  }
  std::vector<std::shared_ptr<BatchSource>> dispatch_eval_dataloaders(Stage stage) final {
    if (stage == Stage::kTest) return test_dataloader().sources();
    if (stage == Stage::kPredict) return predict_dataloader().sources();
    return val_dataloader().sources();
  }
};

}  // namespace fulmen
