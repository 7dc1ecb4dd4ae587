#pragma once

#include <memory>
#include <vector>

#include "fulmen/core/data/loader.h"
#include "fulmen/core/module/module_base.h"

namespace fulmen {

/// The face of a DataModule that the trainer knows.
class DataModuleBase {
 public:
  virtual ~DataModuleBase() = default;
  /// Downloads and the like: once per node, before setup.
  virtual void prepare_data() {}
  virtual void setup(Stage) {}
  virtual void teardown(Stage) {}
  virtual void on_exception(const std::exception&) {}
  virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict&) {}

  virtual const std::type_info& dispatch_batch_type() const = 0;
  virtual std::shared_ptr<BatchSource> dispatch_train_dataloader() = 0;
  virtual std::vector<std::shared_ptr<BatchSource>> dispatch_eval_dataloaders(Stage stage) = 0;
  virtual void dispatch_before_batch_transfer(BatchView batch, std::int64_t dataloader_idx) = 0;
  virtual void dispatch_transfer_batch(BatchView batch,
                                       c10::Device device,
                                       std::int64_t dataloader_idx) = 0;
  virtual void dispatch_after_batch_transfer(BatchView batch, std::int64_t dataloader_idx) = 0;

  /// Set by the trainer for the length of a run.
  void attach(ModuleBase* module) { module_ = module; }

 protected:
  ModuleBase* module() const { return module_; }

 private:
  ModuleBase* module_ = nullptr;
};

/// Data and how it is prepared, apart from the model: hand it to the trainer in place of loaders.
template <class BatchType = Batch>
class DataModule : public DataModuleBase {
 public:
  using batch_type = BatchType;

  virtual Loader<BatchType> train_dataloader() { return {}; }
  virtual Loaders<BatchType> val_dataloader() { return {}; }
  virtual Loaders<BatchType> test_dataloader() { return {}; }
  virtual Loaders<BatchType> predict_dataloader() { return {}; }

  /// An override here wins over the module's hook of the same name: the default calls that.
  virtual void on_before_batch_transfer(BatchType& batch, std::int64_t dataloader_idx) {
    module()->dispatch_before_batch_transfer(BatchView(batch), dataloader_idx);
  }
  virtual void transfer_batch_to_device(BatchType& batch,
                                        c10::Device device,
                                        std::int64_t dataloader_idx) {
    module()->dispatch_transfer_batch(BatchView(batch), device, dataloader_idx);
  }
  virtual void on_after_batch_transfer(BatchType& batch, std::int64_t dataloader_idx) {
    module()->dispatch_after_batch_transfer(BatchView(batch), dataloader_idx);
  }

 private:
  static BatchType& typed(BatchView batch) { return *batch.get_if<BatchType>(); }
  const std::type_info& dispatch_batch_type() const final { return typeid(BatchType); }
  std::shared_ptr<BatchSource> dispatch_train_dataloader() final {
    return train_dataloader().source();
  }
  std::vector<std::shared_ptr<BatchSource>> dispatch_eval_dataloaders(Stage stage) final {
    if (stage == Stage::kTest) return test_dataloader().sources();
    if (stage == Stage::kPredict) return predict_dataloader().sources();
    return val_dataloader().sources();
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
};

}  // namespace fulmen
