#include "tests/trainer/hook_recorder.h"

#include <torch/torch.h>

#include <stdexcept>

#include "tests/trainer/recording_callback.h"
#include "tests/trainer/recording_checkpoint.h"

namespace fulmen {
namespace {

Loader<Batch> ones(Index batches) {
  return DataLoader(tensor_dataset({torch::ones({2 * batches, 4})}), {.batch_size = 2});
}

Loaders<Batch> ones(const std::vector<Index>& batches) {
  std::vector<Loader<Batch>> loaders;
  for (auto count : batches) loaders.push_back(ones(count));
  return loaders;
}

class RecordingModule final : public LightningModule<> {
 public:
  RecordingModule(Events& events, const HookCase& hook_case) : events_(events), case_(hook_case) {
    layer_ = register_module("layer", torch::nn::Linear(4, 1));
    if (case_.manual_optimizers > 1) second_ = register_module("second", torch::nn::Linear(4, 1));
  }
  OptimizationMode optimization_mode() const override {
    return case_.manual_optimizers > 0 ? OptimizationMode::kManual : OptimizationMode::kAutomatic;
  }
  std::vector<std::shared_ptr<Callback>> configure_callbacks() override {
    record("configure_callbacks");
    return {};
  }
  void prepare_data() override { record("prepare_data"); }
  void setup(Stage stage) override { record("setup", stage); }
  void teardown(Stage stage) override { record("teardown", stage); }
  void configure_sharded_model() override { record("configure_sharded_model"); }
  OptimizerConfigs configure_optimizers() override;
  StepOutput training_step(Batch& batch, Index i) override;
  StepOutput validation_step(Batch& batch, Index i, Index) override {
    record("validation_step", i);
    log("val_loss", loss(batch, layer_));
    return {};
  }
  StepOutput test_step(Batch& batch, Index i, Index) override {
    record("test_step", i);
    log("test_loss", loss(batch, layer_));
    return {};
  }
  at::Tensor predict_step(Batch& batch, Index i, Index) override {
    record("predict_step", i);
    return layer_->forward(batch.tensors[0]);
  }

  void on_fit_start() override { record("on_fit_start"); }
  void on_fit_end() override { record("on_fit_end"); }
  void on_train_start() override { record("on_train_start"); }
  void on_train_end() override { record("on_train_end"); }
  void on_train_epoch_start() override { record("on_train_epoch_start"); }
  void on_train_epoch_end() override { record("on_train_epoch_end"); }
  void on_validation_start() override { record("on_validation_start"); }
  void on_validation_end() override { record("on_validation_end"); }
  void on_validation_epoch_start() override { record("on_validation_epoch_start"); }
  void on_validation_epoch_end() override { record("on_validation_epoch_end"); }
  void on_test_start() override { record("on_test_start"); }
  void on_test_end() override { record("on_test_end"); }
  void on_test_epoch_start() override { record("on_test_epoch_start"); }
  void on_test_epoch_end() override { record("on_test_epoch_end"); }
  void on_predict_start() override { record("on_predict_start"); }
  void on_predict_end() override { record("on_predict_end"); }
  void on_predict_epoch_start() override { record("on_predict_epoch_start"); }
  void on_predict_epoch_end() override { record("on_predict_epoch_end"); }
  void on_after_backward() override { record("on_after_backward"); }
  void on_before_backward(const at::Tensor&) override { record("on_before_backward"); }
  void on_before_zero_grad(Optimizer&) override { record("on_before_zero_grad"); }
  void on_before_optimizer_step(Optimizer&) override { record("on_before_optimizer_step"); }
  void on_validation_model_eval() override {
    record("on_validation_model_eval");
    LightningModule::on_validation_model_eval();
  }
  void on_validation_model_train() override {
    record("on_validation_model_train");
    LightningModule::on_validation_model_train();
  }
  void on_validation_model_zero_grad() override {
    record("on_validation_model_zero_grad");
    LightningModule::on_validation_model_zero_grad();
  }
  void on_test_model_eval() override {
    record("on_test_model_eval");
    LightningModule::on_test_model_eval();
  }
  void on_test_model_train() override {
    record("on_test_model_train");
    LightningModule::on_test_model_train();
  }
  void on_predict_model_eval() override {
    record("on_predict_model_eval");
    LightningModule::on_predict_model_eval();
  }
  void backward(const at::Tensor& value, const at::Tensor& gradient) override {
    record("backward");
    LightningModule::backward(value, gradient);
  }
  void optimizer_zero_grad(Index epoch, Index i, Optimizer& o) override {
    record("optimizer_zero_grad");
    LightningModule::optimizer_zero_grad(epoch, i, o);
  }
  void configure_gradient_clipping(Optimizer& o,
                                   std::optional<double> value,
                                   ClipAlgorithm algorithm) override {
    record("configure_gradient_clipping");
    LightningModule::configure_gradient_clipping(o, value, algorithm);
  }
  void optimizer_step(Index epoch,
                      Index i,
                      Optimizer& o,
                      const Optimizer::Closure& closure) override {
    record("optimizer_step");
    LightningModule::optimizer_step(epoch, i, o, closure);
  }
  void lr_scheduler_step(LRScheduler& scheduler, std::optional<double> metric) override {
    record("lr_scheduler_step");
    LightningModule::lr_scheduler_step(scheduler, metric);
  }
  void transfer_batch_to_device(Batch& batch, c10::Device target, Index loader) override {
    record("transfer_batch_to_device");
    LightningModule::transfer_batch_to_device(batch, target, loader);
  }
  void on_save_checkpoint(StateDict&) override { record("on_save_checkpoint"); }
  void on_load_checkpoint(const StateDict&) override { record("on_load_checkpoint"); }
  void on_before_batch_transfer(Batch&, Index) override { record("on_before_batch_transfer"); }
  void on_after_batch_transfer(Batch&, Index) override { record("on_after_batch_transfer"); }
  BatchAction on_train_batch_start(Batch&, Index i) override {
    record("on_train_batch_start", i);
    return i == case_.skip_at ? BatchAction::kSkipEpoch : BatchAction::kContinue;
  }
  void on_train_batch_end(const StepOutput&, Batch&, Index i) override {
    record("on_train_batch_end", i);
  }
  void on_validation_batch_start(Batch&, Index i, Index) override {
    record("on_validation_batch_start", i);
  }
  void on_validation_batch_end(const StepOutput&, Batch&, Index i, Index) override {
    record("on_validation_batch_end", i);
  }
  void on_test_batch_start(Batch&, Index i, Index) override { record("on_test_batch_start", i); }
  void on_test_batch_end(const StepOutput&, Batch&, Index i, Index) override {
    record("on_test_batch_end", i);
  }
  void on_predict_batch_start(Batch&, Index i, Index) override {
    record("on_predict_batch_start", i);
  }
  void on_predict_batch_end(const at::Tensor&, Batch&, Index i, Index) override {
    record("on_predict_batch_end", i);
  }
  Loader<Batch> train_dataloader() override {
    record("train_dataloader");
    return ones(case_.train_batches);
  }
  Loaders<Batch> val_dataloader() override {
    record("val_dataloader");
    return ones(case_.val_batches);
  }
  Loaders<Batch> test_dataloader() override {
    record("test_dataloader");
    return ones(case_.val_batches);
  }
  Loaders<Batch> predict_dataloader() override {
    record("predict_dataloader");
    return ones(case_.val_batches);
  }

 private:
  template <class... Arguments>
  void record(const char* hook, Arguments... arguments) {
    events_.add("module", hook, arguments...);
  }
  static at::Tensor loss(Batch& batch, torch::nn::Linear& layer) {
    return layer->forward(batch.tensors[0]).square().mean();
  }

  Events& events_;
  const HookCase& case_;
  torch::nn::Linear layer_{nullptr}, second_{nullptr};
};

OptimizerConfigs RecordingModule::configure_optimizers() {
  record("configure_optimizers");
  const auto recorded = [&](std::shared_ptr<Optimizer> inner, std::optional<Index> index = {}) {
    return std::make_shared<RecordingOptimizer>(events_, std::move(inner), index);
  };
  if (case_.lbfgs) {
    return recorded(TorchOptimizer::make(std::make_unique<torch::optim::LBFGS>(
        layer_->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(2))));
  }
  if (second_) {
    return {{.optimizer = recorded(SGD::make(layer_, {.lr = 0.01}), 0)},
            {.optimizer = recorded(SGD::make(second_, {.lr = 0.01}), 1)}};
  }
  const auto sgd = recorded(SGD::make(layer_, {.lr = 0.01}));
  if (case_.scheduler == HookScheduler::kNone) return sgd;
  const bool on_step =
      case_.scheduler == HookScheduler::kStep || case_.scheduler == HookScheduler::kPlateauOnStep;
  const bool plateau = case_.scheduler == HookScheduler::kPlateauOnStep ||
                       case_.scheduler == HookScheduler::kPlateauOnEpoch;
  std::shared_ptr<LRScheduler> scheduler = StepLR::make(sgd, {.step_size = 1, .gamma = 0.5});
  if (plateau) scheduler = ReduceLROnPlateau::make(sgd, {.factor = 0.5, .patience = 0});
  SchedulerConfig config{.scheduler = std::make_shared<RecordingScheduler>(events_, scheduler),
                         .interval = on_step ? Interval::kStep : Interval::kEpoch};
  if (plateau) config.monitor = on_step ? "train_loss" : "val_loss";
  return OptimizerConfig{.optimizer = sgd, .schedulers = {config}};
}

StepOutput RecordingModule::training_step(Batch& batch, Index i) {
  record("training_step", i);
  if (i == case_.raise_at) throw std::runtime_error("planned");
  if (i == case_.none_at) return {};
  for (int index = 0; index < case_.manual_optimizers; ++index) {
    const auto at = static_cast<std::size_t>(index);
    optimizer(at).zero_grad();
    manual_backward(loss(batch, index == 0 ? layer_ : second_));
    step_optimizer(at);
  }
  if (case_.manual_optimizers > 0) return {};
  auto value = loss(batch, layer_);
  log("train_loss", value);
  return value;
}

class RecordingData final : public DataModule<> {
 public:
  RecordingData(Events& events, const HookCase& hook_case) : events_(events), case_(hook_case) {}
  void prepare_data() override { record("prepare_data"); }
  void setup(Stage stage) override { record("setup", stage); }
  void teardown(Stage stage) override { record("teardown", stage); }
  void on_exception(const std::exception&) override { record("on_exception"); }
  Loader<Batch> train_dataloader() override {
    record("train_dataloader");
    return ones(case_.train_batches);
  }
  Loaders<Batch> val_dataloader() override {
    record("val_dataloader");
    return ones(case_.val_batches);
  }
  void on_before_batch_transfer(Batch&, Index) override { record("on_before_batch_transfer"); }
  void transfer_batch_to_device(Batch&, c10::Device, Index) override {
    record("transfer_batch_to_device");
  }
  void on_after_batch_transfer(Batch&, Index) override { record("on_after_batch_transfer"); }

 private:
  template <class... Arguments>
  void record(const char* hook, Arguments... arguments) {
    events_.add("datamodule", hook, arguments...);
  }

  Events& events_;
  const HookCase& case_;
};

class Silent final : public LogSink {
 public:
  void write(LogLevel, std::string_view) override {}
};

/// One trainer and one module, as often as the case calls them.
Progress run(const HookCase& hook_case,
             TrainerOptions options,
             const std::filesystem::path& folder,
             const std::string& checkpoint,
             Events& events) {
  auto checkpoint_options = hook_case.checkpoint;
  checkpoint_options.dirpath = folder;
  options.callbacks = {
      std::make_shared<RecordingCallback>(events, hook_case.stop_at),
      std::make_shared<RecordingCheckpoint>(events, ModelCheckpoint::make(checkpoint_options))};
  options.loggers.emplace();
  options.default_root_dir = folder;
  options.enable_progress_bar = options.enable_model_summary = false;
  options.log_sink = std::make_shared<Silent>();
  Trainer trainer(options);
  const auto module = std::make_shared<RecordingModule>(events, hook_case);
  const auto data = std::make_shared<RecordingData>(events, hook_case);
  const auto call = [&](HookCall which) {
    const EvalOptions eval{.checkpoint = checkpoint, .verbose = false};
    switch (which) {
      case HookCall::kFit:
        events.add_line("# ---- trainer.fit");
        hook_case.data_module ? trainer.fit(module, data, {.checkpoint = checkpoint})
                              : trainer.fit(module, {}, {}, {.checkpoint = checkpoint});
        break;
      case HookCall::kValidate:
        events.add_line("# ---- trainer.validate");
        trainer.validate(module, {}, eval);
        break;
      case HookCall::kTest:
        events.add_line("# ---- trainer.test");
        trainer.test(module, {}, eval);
        break;
      case HookCall::kPredict:
        events.add_line("# ---- trainer.predict");
        trainer.predict(module, {}, eval);
        break;
    }
  };
  for (const auto which : hook_case.calls) {
    try {
      call(which);
    } catch (const std::runtime_error& error) {
      if (std::string_view(error.what()) != "planned") throw;
      events.add_line("# the exception leaves trainer.fit here");
    }
  }
  return trainer.progress();
}

}  // namespace

HookRecord record_hooks(const HookCase& hook_case, const std::filesystem::path& folder) {
  torch::manual_seed(1);
  std::string checkpoint;
  if (hook_case.before) {
    auto first = hook_case;
    first.calls = {HookCall::kFit};
    Events unused;
    run(first, *hook_case.before, folder / "before", {}, unused);
    checkpoint = (folder / "before" / hook_case.resume_from).string();
  }
  Events events;
  const auto progress = run(hook_case, hook_case.trainer, folder / "run", checkpoint, events);
  return {.events = events.take(), .progress = progress};
}

}  // namespace fulmen
