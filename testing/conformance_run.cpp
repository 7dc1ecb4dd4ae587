#include "testing/conformance_run.h"

#include <torch/torch.h>

#include <sstream>

#include "fulmen/core/data/tensor_dataset.h"
#include "fulmen/core/optim/sgd.h"
#include "fulmen/core/support/accelerator.h"

namespace fulmen::detail {
namespace {

void fill(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  double phase = 0.3;
  for (auto& parameter : module.parameters()) {
    const auto values = torch::arange(parameter.numel(), torch::kDouble).mul(0.9).add(phase).sin();
    parameter.copy_(values.mul(0.5).reshape(parameter.sizes()));
    phase += 0.7;
  }
}

ConformanceResult train(const ConformanceCase& what,
                        TrainerOptions options,
                        std::int64_t batch_size,
                        const std::shared_ptr<ConformanceModule>& module) {
  ConformanceResult result;
  Trainer trainer(quiet(std::move(options)));
  try {
    result.fit = trainer.fit(
        module, conformance_data(what.samples, batch_size), conformance_data(20, 3), what.fit);
    result.val_loss = trainer.callback_metrics().at("val_loss");
  } catch (const std::exception& error) {
    result.error = error.what();
  }
  result.progress = trainer.progress();
  result.gradients = module->gradients;
  result.weights = module->weights();
  return result;
}

std::string compare(const Tensors& a, const Tensors& b, double tolerance, const std::string& what) {
  std::ostringstream text;
  for (const auto& [name, tensor] : b) {
    const auto it = a.find(name);
    if (it == a.end()) {
      text << what << " of " << name << " is missing";
    } else if (const auto off = (it->second - tensor).abs().max().item<double>();
               !(off <= tolerance)) {
      text << what << " of " << name << " differs by " << off;
    } else {
      continue;
    }
    return text.str();
  }
  return a.size() == b.size() ? "" : what + " of a parameter is there that should be undefined";
}

}  // namespace

ConformanceModule::ConformanceModule(ConformanceProbe probe)
    : LightningModule("ConformanceModule"), probe_(std::move(probe)) {}

void ConformanceModule::configure_sharded_model() {
  ++configured;
  if (probe_.in_hook) probe_.in_hook(current_mesh());
  first_ = register_module("first", torch::nn::Linear(3, 4));
  second_ = register_module("second", torch::nn::Linear(4, 1));
  unused_ = register_parameter("unused", torch::ones({2}));
  to(torch::kDouble);
  fill(*this);
}

at::Tensor ConformanceModule::error(Batch& batch) {
  auto [x, y] = batch.unpack<2>();
  return (second_->forward(torch::tanh(first_->forward(x))) - y).square().mean();
}

StepOutput ConformanceModule::training_step(Batch& batch, std::int64_t batch_idx) {
  auto loss = error(batch);
  if (probe_.loss) loss = probe_.loss(loss, batch_idx, trainer().strategy().topology().rank);
  return loss;
}

StepOutput ConformanceModule::validation_step(Batch& batch, std::int64_t, std::int64_t) {
  log("val_loss", error(batch));
  return {};
}

void ConformanceModule::on_train_batch_end(const StepOutput&, Batch&, std::int64_t batch_idx) {
  if (probe_.at_batch_end) probe_.at_batch_end(batch_idx, trainer().strategy().topology().rank);
}

OptimizerConfigs ConformanceModule::configure_optimizers() {
  return SGD::make(*this, {.lr = 0.1, .momentum = 0.9});
}

void ConformanceModule::on_before_optimizer_step(Optimizer&) {
  auto& step = gradients.emplace_back();
  for (const auto& item : named_parameters()) {
    if (item.value().grad().defined()) step[item.key()] = item.value().grad().clone();
  }
}

Tensors ConformanceModule::weights() const {
  Tensors result;
  for (const auto& item : named_parameters()) result[item.key()] = item.value().detach().clone();
  return result;
}

TrainerOptions quiet(TrainerOptions options) {
  struct Silence final : LogSink {
    void write(LogLevel, std::string_view) override {}
  };
  options.loggers.emplace();
  options.enable_checkpointing = false;
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  options.window_weighting = WindowWeighting::kRows;
  options.signals = SignalHandling::kNone;
  options.log_sink = std::make_shared<Silence>();
  if (!options.max_epochs) options.max_epochs = 2;
  return options;
}

DataLoader<Batch> conformance_data(std::int64_t samples, std::int64_t batch_size) {
  const auto x = torch::arange(samples * 3, torch::kDouble).mul(1.1).sin().reshape({samples, 3});
  const auto y = torch::arange(samples, torch::kDouble).mul(0.4).cos().reshape({samples, 1});
  return DataLoader(TensorDataset({x, y}), {.batch_size = batch_size});
}

std::shared_ptr<Strategy> make_joined(const StrategyUnderTest& under_test,
                                      const std::shared_ptr<World>& world) {
  auto strategy = under_test.make(world);
  const auto cpu = cpu_accelerator();
  Log log(quiet({}).log_sink);
  strategy->setup_environment(
      {.accelerator = cpu, .log = log, .devices = under_test.ranks, .num_nodes = 1});
  return strategy;
}

std::vector<ConformanceResult> run_case(const StrategyUnderTest& under_test,
                                        const ConformanceCase& what) {
  std::mutex mutex;
  std::vector<ConformanceResult> results(static_cast<std::size_t>(under_test.ranks));
  run_thread_ranks(under_test.ranks, [&](const std::shared_ptr<World>& world) {
    auto options = what.trainer;
    options.devices = under_test.ranks;
    options.strategy = make_joined(under_test, world);
    const auto batch = what.joint_batch / options.strategy->mesh().data_size();
    auto result = train(what, options, batch, std::make_shared<ConformanceModule>(what.probe));
    const std::lock_guard<std::mutex> lock(mutex);
    results[static_cast<std::size_t>(world->rank())] = std::move(result);
  });
  return results;
}

ConformanceResult run_alone(const ConformanceCase& what) {
  return train(
      what, what.trainer, what.joint_batch, std::make_shared<ConformanceModule>(what.probe));
}

std::string difference(const ConformanceResult& a, const ConformanceResult& b, double tolerance) {
  if (!a.error.empty()) return "fit threw: " + a.error;
  if (a.gradients.size() != b.gradients.size()) {
    return std::to_string(a.gradients.size()) + " steps were taken, not " +
           std::to_string(b.gradients.size());
  }
  for (std::size_t i = 0; i < a.gradients.size(); ++i) {
    const auto what = "in step " + std::to_string(i) + " the gradient";
    if (auto text = compare(a.gradients[i], b.gradients[i], tolerance, what); !text.empty())
      return text;
  }
  return compare(a.weights, b.weights, tolerance, "the trained value");
}

}  // namespace fulmen::detail
