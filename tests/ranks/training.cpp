#include "tests/ranks/training.h"

#include <fulmen/fulmen.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <sstream>
#include <thread>

#include "fulmen/core/checkpoint/safetensors.h"

namespace fulmen {
namespace {

constexpr std::int64_t kSamples = 50;  // Neither of 3 nor of 4 ranks a whole number of batches.

double milliseconds_now() {
  const std::chrono::duration<double, std::milli> now =
      std::chrono::steady_clock::now().time_since_epoch();
  return now.count();
}

class Net final : public LightningModule<Batch> {
 public:
  void configure_sharded_model() override {
    first_ = register_module("first", torch::nn::Linear(4, 8));
    dropout_ = register_module("dropout", torch::nn::Dropout(0.3));
    last_ = register_module("last", torch::nn::Linear(8, 1));
  }
  StepOutput training_step(Batch& batch, std::int64_t) override {
    auto [features, targets] = batch.unpack<2>();
    const auto hidden = dropout_->forward(torch::tanh(first_->forward(features)));
    const auto loss = torch::mse_loss(last_->forward(hidden), targets);
    log("train_loss", loss);
    return loss;
  }
  OptimizerConfigs configure_optimizers() override { return AdamW::make(*this, {.lr = 0.02}); }

 private:
  torch::nn::Linear first_{nullptr}, last_{nullptr};
  torch::nn::Dropout dropout_{nullptr};
};

/// See TrainingRun::fault.
class Fault final : public Callback {
 public:
  Fault(const std::string& text, int pause) : pause_(pause) {
    if (text == "none") return;
    std::replace_copy(text.begin(), text.end(), std::ostream_iterator<char>(plan_), ':', ' ');
    plan_ >> kind_ >> rank_ >> batch_;
  }
  void on_train_batch_start(TrainerContext& trainer,
                            ModuleBase&,
                            BatchView,
                            std::int64_t) override {
    const auto batch = trainer.progress().total_batches;
    const auto rank = trainer.strategy().topology().rank;
    if (rank == 0) std::cout << "batch " << batch << std::endl;
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_));
    const auto* round = std::getenv("TORCHELASTIC_RESTART_COUNT");
    if (rank != rank_ || batch != batch_ || (round != nullptr && std::string(round) != "0")) return;
    std::ostringstream line;
    line << "fault at " << std::fixed << milliseconds_now() << "\n";
    std::cout << line.str() << std::flush;
    if (kind_ == "throw") throw std::runtime_error("the fault of rank " + std::to_string(rank));
    if (kind_ == "kill") ::raise(SIGKILL);
    if (kind_ == "term") ::raise(SIGTERM);
    if (kind_ == "hang") std::this_thread::sleep_for(std::chrono::seconds(120));
  }

 private:
  std::stringstream plan_;
  std::string kind_;
  std::int64_t rank_ = -1, batch_ = -1;
  int pause_;
};

int train(const TrainingRun& run) {
  seed_everything(3);
  const auto features = torch::randn({kSamples, 4}, torch::kDouble);
  const DataLoader loader(TensorDataset({features, features.sum(1, true).sin()}),
                          {.batch_size = run.batch_size, .shuffle = true});
  const auto checkpoints = ModelCheckpoint::make({.dirpath = run.folder / "checkpoints",
                                                  .save_last = SaveLast::kPointer,
                                                  .save_on_interrupt = true,
                                                  .every_n_train_steps = 3});
  Trainer trainer(
      {.strategy = DdpStrategy::make({.timeout = std::chrono::milliseconds(run.time_limit)}),
       .devices = run.devices == 0 ? kAsLaunched : run.devices,
       .precision = Precision::k64True,
       .callbacks = {checkpoints, std::make_shared<Fault>(run.fault, run.pause)},
       .default_root_dir = run.folder,
       .max_epochs = 4,
       .seed = 3});
  const auto module = std::make_shared<Net>();
  const auto result = trainer.fit(
      module, loader, {}, {.checkpoint = "last", .missing = MissingCheckpoint::kStartAnew});
  if (result.status != RunStatus::kFinished) return 9;
  if (!trainer.is_global_zero()) return 0;
  TensorMap weights;
  for (const auto& parameter : module->named_parameters())
    weights[parameter.key()] = parameter.value().detach();
  write_safetensors(run.folder / "weights.safetensors", weights);
  std::cout << "finished" << std::endl;
  return 0;
}

}  // namespace

std::vector<std::string> command_of(const TrainingRun& run) {
  return {own_program(),
          "--train",
          run.folder.string(),
          run.fault,
          std::to_string(run.devices),
          std::to_string(run.batch_size),
          std::to_string(run.pause),
          std::to_string(run.time_limit)};
}

TensorMap weights_of(const std::filesystem::path& folder) {
  return read_safetensors(folder / "weights.safetensors");
}

void expect_same_weights(const std::filesystem::path& folder,
                         const std::filesystem::path& expected) {
  const auto values = weights_of(folder);
  const auto right = weights_of(expected);
  ASSERT_EQ(values.size(), 4U);
  ASSERT_EQ(right.size(), 4U);
  for (const auto& [name, value] : right) EXPECT_TRUE(torch::equal(values.at(name), value)) << name;
}

std::optional<double> since_fault(const std::string& output) {
  const std::string mark = "fault at ";
  const auto at = output.find(mark);
  if (at == std::string::npos) return std::nullopt;
  return milliseconds_now() - std::stod(output.substr(at + mark.size()));
}

std::optional<int> train_if_told_so(int argc, char** argv) {
  if (argc != 8 || std::string(argv[1]) != "--train") return std::nullopt;
  try {
    return train({.folder = argv[2],
                  .fault = argv[3],
                  .devices = std::stoi(argv[4]),
                  .batch_size = std::stoi(argv[5]),
                  .pause = std::stoi(argv[6]),
                  .time_limit = std::stoi(argv[7])});
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}

}  // namespace fulmen
