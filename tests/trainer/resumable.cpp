#include "tests/trainer/resumable.h"

#include <boost/json/serialize.hpp>
#include <cstring>
#include <thread>

#include "fulmen/core/checkpoint/weights.h"

namespace fulmen {
namespace {

constexpr std::int64_t kSamples = 10;  // 5 batches of 2: with accumulation 2 a tail of one.

std::string bits(const at::Tensor& tensor) {
  const auto bytes = tensor.detach().cpu().contiguous();
  const auto* data = static_cast<const unsigned char*>(bytes.data_ptr());
  std::string text;
  for (std::size_t i = 0; i < bytes.nbytes(); ++i) {
    constexpr const char* kDigits = "0123456789abcdef";
    text += kDigits[data[i] >> 4];
    text += kDigits[data[i] & 15];
  }
  return text;
}

std::string bits(double value) {
  return bits(at::scalar_tensor(value, at::kDouble));
}

/// Yields (features with noise, index); the noise comes from the generator of (seed, epoch, index).
struct NoisyDataset {
  std::int64_t size() const { return kSamples; }
  std::vector<at::Tensor> get(std::int64_t index, at::Generator generator) const {
    std::this_thread::sleep_for(std::chrono::microseconds(100 * ((index * 7) % 3)));
    auto base = torch::arange(4, torch::kFloat32) * 0.1 + static_cast<double>(index) * 0.3;
    return {base + 0.1 * torch::randn({4}, generator),
            torch::tensor(static_cast<float>(index % 3)),
            torch::tensor(index)};
  }
};

class Net final : public LightningModule<std::vector<at::Tensor>> {
 public:
  Net(Probe probe, RunRecord& record, bool manual)
      : probe_(std::move(probe)), record_(record), manual_(manual) {}

  OptimizationMode optimization_mode() const override {
    return manual_ ? OptimizationMode::kManual : OptimizationMode::kAutomatic;
  }
  void configure_sharded_model() override {
    first_ = register_module("first", torch::nn::Linear(4, 8));
    norm_ = register_module("norm", torch::nn::BatchNorm1d(8));
    dropout_ = register_module("dropout", torch::nn::Dropout(0.5));
    last_ = register_module("last", torch::nn::Linear(8, 1));
  }
  StepOutput training_step(std::vector<at::Tensor>& batch, std::int64_t) override {
    auto loss = compute(batch);
    probe("training_step");
    samples_ = bits(batch[2]);
    log("train_loss", loss, {.on_step = true, .on_epoch = true, .batch_size = batch[2].size(0)});
    if (manual_) return manual_step(loss);
    return loss;
  }
  void on_before_backward(const at::Tensor&) override { probe("on_before_backward"); }
  void on_after_backward() override { probe("on_after_backward"); }
  void on_train_batch_end(const StepOutput& outputs,
                          std::vector<at::Tensor>&,
                          std::int64_t) override {
    record_.batches.push_back(samples_ + " " + bits(outputs.loss) + " " +
                              bits(optimizer().hyperparameter(0, "lr")));
    probe("on_train_batch_end");
  }
  void on_train_epoch_end() override {
    probe("on_train_epoch_end");
    log("noise", torch::rand({}));
  }
  StepOutput validation_step(std::vector<at::Tensor>& batch, std::int64_t, std::int64_t) override {
    probe("validation_step");
    // Random numbers in validation count too: a validation that is run anew must draw the same.
    log("val_loss", compute(batch) + 0.01 * torch::rand({}), {.batch_size = batch[2].size(0)});
    return {};
  }
  void on_validation_end() override {
    if (!trainer().sanity_checking())
      record_.validations.push_back(bits(*trainer().metric("val_loss")));
  }
  OptimizerConfigs configure_optimizers() override {
    auto adam = AdamW::make(*this, {.lr = 0.05});
    if (manual_) return adam;
    auto step = StepLR::make(adam, {.step_size = 2, .gamma = 0.9});
    auto plateau = ReduceLROnPlateau::make(adam, {.factor = 0.5, .patience = 0});
    return OptimizerConfig{.optimizer = adam,
                           .schedulers = {{.scheduler = step, .interval = Interval::kStep},
                                          {.scheduler = plateau, .monitor = "val_loss"}}};
  }

 private:
  void probe(const char* where) {
    if (probe_) probe_(where);
  }
  at::Tensor compute(std::vector<at::Tensor>& batch) {
    auto hidden = dropout_->forward(torch::relu(norm_->forward(first_->forward(batch[0]))));
    return torch::mse_loss(last_->forward(hidden).squeeze(1), batch[1]);
  }
  /// The user's own accumulation: gradients stay open between batches.
  StepOutput manual_step(const at::Tensor& loss) {
    manual_backward(loss);
    if (trainer().progress().total_batches % 2 == 1) {
      step_optimizer(0);
      optimizer().zero_grad();
    }
    return loss.detach();
  }

  Probe probe_;
  RunRecord& record_;
  bool manual_;
  std::string samples_;
  torch::nn::Linear first_{nullptr}, last_{nullptr};
  torch::nn::BatchNorm1d norm_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};

/// Counts calls; each must be counted once, however often the run was stopped.
class Counter final : public Callback {
 public:
  std::string state_key() const override { return "Counter"; }
  StateDict state_dict() const override {
    return {.values = {{"batches", batches},
                       {"validation_batches", validation_batches},
                       {"epochs", epochs}},
            .tensors = {}};
  }
  void load_state_dict(const StateDict& state) override {
    batches = require_int(state.values, "batches", "Counter");
    validation_batches = require_int(state.values, "validation_batches", "Counter");
    epochs = require_int(state.values, "epochs", "Counter");
  }
  void on_train_batch_end(Context&, Module&, const StepOutput&, BatchView, std::int64_t) override {
    ++batches;
  }
  void on_validation_batch_end(Context& context,
                               Module&,
                               const StepOutput&,
                               BatchView,
                               std::int64_t,
                               std::int64_t) override {
    if (!context.sanity_checking()) ++validation_batches;
  }
  void on_train_epoch_end(Context&, Module&) override { ++epochs; }

  std::int64_t batches = 0, validation_batches = 0, epochs = 0;
};

std::string describe(const StateDict& state) {
  std::string text = boost::json::serialize(state.values);
  for (const auto& [name, tensor] : state.tensors) text += "\n  " + name + " " + bits(tensor);
  return text;
}

std::string describe_end(Trainer& trainer,
                         ModuleBase& module,
                         const Counter& counter,
                         const std::string& optimizer) {
  std::string text;
  for (const auto& [name, tensor] : module_state(module).tensors)
    text += name + " " + bits(tensor) + "\n";
  text += "optimizer " + optimizer + "\ncounter " + describe(counter.state_dict());
  const auto& progress = trainer.progress();
  for (auto value :
       {progress.epoch, progress.batch_idx, progress.total_batches, progress.global_step}) {
    text += " " + std::to_string(value);
  }
  for (const auto& [name, value] : trainer.callback_metrics())
    text += "\n" + name + " " + bits(value);
  return text;
}

/// Keeps what is gone after the run.
class Keeper final : public Callback {
 public:
  void on_train_end(Context& context, Module&) override {
    for (const auto& config : context.optimizer_configs()) {
      optimizer = describe(config.optimizer->state_dict());
      for (const auto& scheduler : config.schedulers)
        optimizer += "\n " + describe(scheduler.scheduler->state_dict());
    }
  }
  std::string optimizer;
};

class Silent final : public LogSink {
 public:
  void write(LogLevel, std::string_view) override {}
};

}  // namespace

struct ResumableRun::Parts {
  RunRecord record;
  std::shared_ptr<Net> module;
  std::shared_ptr<Counter> counter = std::make_shared<Counter>();
  std::shared_ptr<Keeper> keeper = std::make_shared<Keeper>();
  std::shared_ptr<ModelCheckpoint> checkpoint;
  std::unique_ptr<Trainer> trainer;
};

ResumableRun::ResumableRun(ResumableOptions options, Probe probe)
    : parts_(std::make_unique<Parts>()) {
  auto& parts = *parts_;
  parts.module = std::make_shared<Net>(std::move(probe), parts.record, options.manual);
  parts.checkpoint = ModelCheckpoint::make({.dirpath = options.folder,
                                            .save_top_k = -1,
                                            .save_on_exception = options.save_on_exception,
                                            .every_n_train_steps = options.every_n_train_steps});
  std::vector<std::shared_ptr<Callback>> callbacks = {
      parts.counter, parts.keeper, parts.checkpoint};
  callbacks.insert(callbacks.end(), options.callbacks.begin(), options.callbacks.end());
  parts.trainer = std::make_unique<Trainer>(
      TrainerOptions{.callbacks = callbacks,
                     .loggers = std::vector<std::shared_ptr<Logger>>{},
                     .default_root_dir = options.folder,
                     .enable_progress_bar = false,
                     .enable_model_summary = false,
                     .max_epochs = options.max_epochs,
                     .val_check_interval = options.val_check_interval,
                     .accumulate_grad_batches = options.manual ? 1 : 2,
                     .gradient_clip_val = options.manual ? std::optional<double>() : 1.0,
                     .seed = 7,
                     .signals = options.signals,
                     .log_sink = std::make_shared<Silent>()});
}

ResumableRun::~ResumableRun() = default;

FitResult ResumableRun::fit(const std::string& checkpoint, Restore restore) {
  auto& parts = *parts_;
  DataLoader train(NoisyDataset(), {.batch_size = 2, .shuffle = true, .num_workers = 2});
  DataLoader val(NoisyDataset(), {.batch_size = 4});
  const auto result =
      parts.trainer->fit(parts.module, train, val, {.checkpoint = checkpoint, .restore = restore});
  parts.record.end =
      describe_end(*parts.trainer, *parts.module, *parts.counter, parts.keeper->optimizer);
  return result;
}

Trainer& ResumableRun::trainer() {
  return *parts_->trainer;
}
ModelCheckpoint& ResumableRun::checkpoints() {
  return *parts_->checkpoint;
}
const RunRecord& ResumableRun::record() const {
  return parts_->record;
}

}  // namespace fulmen
