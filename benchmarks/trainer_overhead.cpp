// What Trainer::fit costs on top of a hand-written loop: an MLP 64-64-64-10 at batch 32 with fused
// AdamW, where a step takes so little time that any overhead shows.
//
//   build/release/benchmarks/trainer_overhead --benchmark_format=json
//
// Counters: trainer_ratio, a step of fit (progress bar, CSV logger, one log() per step) over a step
// of the loop; torch_optim_ratio, the same loop with torch::optim::AdamW over it. Both are medians
// over blocks of 500 steps that alternate inside one fit. Takes about 20 s.

#include <benchmark/benchmark.h>
#include <fulmen/fulmen.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBlockSteps = 500;
constexpr std::int64_t kRounds = 40;
constexpr fulmen::AdamWOptions kAdamW = {.lr = 1e-3};

torch::nn::Sequential make_mlp() {
  using torch::nn::Linear;
  using torch::nn::ReLU;
  return torch::nn::Sequential(Linear(64, 64), ReLU(), Linear(64, 64), ReLU(), Linear(64, 10));
}

std::vector<fulmen::Batch> make_batches() {
  torch::manual_seed(1);
  std::vector<fulmen::Batch> batches;
  for (std::int64_t i = 0; i < kBlockSteps; ++i) {
    batches.push_back({{torch::randn({32, 64}), torch::randint(10, {32})}});
  }
  return batches;
}

at::Tensor loss_of(torch::nn::Sequential& net, const fulmen::Batch& batch) {
  auto [x, y] = batch.unpack<2>();
  return torch::cross_entropy_loss(net->forward(x), y);
}

/// The update as one writes it by hand on ATen's fused kernel, with nothing to be saved any more:
/// adding to the counters through ATen would cost 8 us, a tenth of the step.
class FusedAdamW {
 public:
  explicit FusedAdamW(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
    for (const auto& parameter : parameters_) {
      averages_.push_back(torch::zeros_like(parameter));
      squares_.push_back(torch::zeros_like(parameter));
      steps_.push_back(torch::zeros({}));
    }
    gradients_.resize(parameters_.size());
  }

  void step() {
    torch::NoGradGuard guard;
    for (std::size_t i = 0; i < parameters_.size(); ++i) gradients_[i] = parameters_[i].grad();
    for (auto& step : steps_) *step.mutable_data_ptr<float>() += 1;
    at::_fused_adamw_(parameters_,
                      gradients_,
                      averages_,
                      squares_,
                      {},
                      steps_,
                      kAdamW.lr,
                      kAdamW.beta1,
                      kAdamW.beta2,
                      kAdamW.weight_decay,
                      kAdamW.eps,
                      kAdamW.amsgrad,
                      kAdamW.maximize);
  }

  void zero_grad() {
    for (auto& parameter : parameters_) parameter.mutable_grad().reset();
  }

 private:
  std::vector<at::Tensor> parameters_, gradients_, averages_, squares_, steps_;
};

/// A hand-written loop over the batches.
template <class Optimizer>
class Loop {
 public:
  template <class MakeOptimizer>
  Loop(const std::vector<fulmen::Batch>& batches,
       torch::nn::Sequential net,
       MakeOptimizer make_optimizer)
      : batches_(batches), net_(std::move(net)), optimizer_(make_optimizer(net_->parameters())) {}

  /// Seconds of one block.
  double run_block() {
    torch::AutoGradMode enabled(true);
    const auto start = Clock::now();
    for (const auto& batch : batches_) {
      auto loss = loss_of(net_, batch);
      optimizer_.zero_grad();
      loss.backward();
      optimizer_.step();
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  torch::nn::Sequential& net() { return net_; }

 private:
  const std::vector<fulmen::Batch>& batches_;
  torch::nn::Sequential net_;
  Optimizer optimizer_;
};

class MlpModule final : public fulmen::LightningModule<> {
 public:
  explicit MlpModule(torch::nn::Sequential net) : net_(register_module("net", std::move(net))) {}

  fulmen::StepOutput training_step(fulmen::Batch& batch, std::int64_t) override {
    auto loss = loss_of(net_, batch);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }
  fulmen::OptimizerConfigs configure_optimizers() override {
    return fulmen::AdamW::make(*this, kAdamW);
  }

  torch::nn::Sequential& net() { return net_; }

 private:
  torch::nn::Sequential net_;
};

/// Seconds per block.
struct Times {
  std::vector<double> trainer, hand_written, torch_optim;
};

/// Runs the hand-written loops in the middle of every epoch of fit; what passes between them is one
/// block of the trainer, with the end of an epoch in it.
class Alternate final : public fulmen::Callback {
 public:
  Alternate(Loop<FusedAdamW>& hand_written, Loop<torch::optim::AdamW>& torch_optim)
      : hand_written_(hand_written), torch_optim_(torch_optim) {}

  void on_train_batch_end(Context&,
                          Module&,
                          const fulmen::StepOutput&,
                          fulmen::BatchView,
                          std::int64_t batch_idx) override {
    if (batch_idx != kBlockSteps / 2) return;
    const auto now = Clock::now();
    if (last_) times_.trainer.push_back(std::chrono::duration<double>(now - *last_).count());
    if (times_.hand_written.size() % 2 == 0) times_.torch_optim.push_back(torch_optim_.run_block());
    times_.hand_written.push_back(hand_written_.run_block());
    if (times_.hand_written.size() % 2 == 0) times_.torch_optim.push_back(torch_optim_.run_block());
    last_ = Clock::now();
  }

  const Times& times() const { return times_; }

 private:
  Loop<FusedAdamW>& hand_written_;
  Loop<torch::optim::AdamW>& torch_optim_;
  Times times_;
  std::optional<Clock::time_point> last_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// Block k of `times` over the mean of the loop's blocks before and after it, so that a machine
/// that slows down during the run cancels out.
double trainer_ratio(const Times& times) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < times.trainer.size(); ++i) {
    ratios.push_back(times.trainer[i] / ((times.hand_written[i] + times.hand_written[i + 1]) / 2));
  }
  return median(ratios);
}

double torch_optim_ratio(const Times& times) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < times.torch_optim.size(); ++i) {
    ratios.push_back(times.torch_optim[i] / times.hand_written[i]);
  }
  return median(ratios);
}

double microseconds_of_step(const std::vector<double>& blocks) {
  return median(blocks) / kBlockSteps * 1e6;
}

double largest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  torch::NoGradGuard guard;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>());
  }
  return largest;
}

void copy_parameters(const torch::nn::Sequential& from, torch::nn::Sequential& to) {
  torch::NoGradGuard guard;
  for (std::size_t i = 0; i < to->parameters().size(); ++i)
    to->parameters()[i].copy_(from->parameters()[i]);
}

/// A folder for the CSV file of a run, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "fulmen_benchmark_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) fulmen::fail<fulmen::Error>(name, "cannot be made.");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Trains `module` for kRounds + 1 epochs of one block each, while `alternate` takes the times.
void fit(const std::shared_ptr<MlpModule>& module,
         const std::vector<fulmen::Batch>& batches,
         const std::shared_ptr<Alternate>& alternate) {
  const TemporaryFolder folder;
  std::ofstream terminal("/dev/null");  // a live bar that does all its work, apart from the results
  fulmen::Trainer trainer(
      {.callbacks = {alternate,
                     fulmen::ProgressBar::make(
                         {.style = fulmen::ProgressBarStyle::kTty, .output = &terminal})},
       .loggers = {{fulmen::CSVLogger::make({.save_dir = folder.path()})}},
       .enable_checkpointing = false,
       .enable_model_summary = false,
       .max_epochs = kRounds + 1});
  trainer.fit(module, batches);
}

void trainer_overhead(benchmark::State& state) {
  at::set_num_threads(1);
  const auto batches = make_batches();
  Loop<FusedAdamW> hand_written(
      batches, make_mlp(), [](auto parameters) { return FusedAdamW(parameters); });
  Loop<torch::optim::AdamW> torch_optim(batches, make_mlp(), [](auto parameters) {
    return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(kAdamW.lr));
  });
  const auto module = std::make_shared<MlpModule>(make_mlp());
  copy_parameters(hand_written.net(), module->net());

  for (auto _ : state) {
    const auto alternate = std::make_shared<Alternate>(hand_written, torch_optim);
    fit(module, batches, alternate);
    const auto& times = alternate->times();
    state.SetIterationTime(median(times.trainer) / kBlockSteps);
    state.counters["trainer_ratio"] = trainer_ratio(times);
    state.counters["torch_optim_ratio"] = torch_optim_ratio(times);
    state.counters["trainer_step_us"] = microseconds_of_step(times.trainer);
    state.counters["hand_written_step_us"] = microseconds_of_step(times.hand_written);
    state.counters["torch_optim_step_us"] = microseconds_of_step(times.torch_optim);
  }
  // Both have made the same number of steps from the same weights: a shortcut in either would show.
  const double difference =
      largest_difference(module->net()->parameters(), hand_written.net()->parameters());
  state.counters["weight_difference"] = difference;
  if (difference != 0)
    state.SkipWithError("fit and the hand-written loop end with different weights");
}
BENCHMARK(trainer_overhead)->Iterations(1)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
