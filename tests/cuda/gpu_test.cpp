// On GPUs; skipped where there are none.
#include <fulmen/cuda/cuda.h>
#include <fulmen/fulmen.h>
#include <gtest/gtest.h>

#include <iostream>

#include "fulmen/core/checkpoint/safetensors.h"
#include "tests/support/run_program.h"

namespace fulmen {
namespace {

constexpr std::int64_t kBatchSize = 8;  // Of all ranks.

class Net final : public LightningModule<> {
 public:
  StepOutput training_step(Batch& batch, std::int64_t) override {
    auto [x, y] = batch.unpack<2>();
    return torch::mse_loss(net_->forward(x), y);
  }
  OptimizerConfigs configure_optimizers() override { return AdamW::make(*this, {.lr = 0.01}); }

 private:
  torch::nn::Sequential net_ = register_module(
      "net",
      torch::nn::Sequential(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1)));
};

TensorMap weights_after_training(const AcceleratorOption& accelerator, std::int64_t devices = 1) {
  seed_everything(1);
  const auto x = torch::randn({64, 8}, torch::kDouble);
  const DataLoader loader(TensorDataset({x, x.sum(1, true)}),
                          {.batch_size = kBatchSize / devices, .shuffle = true});
  Trainer trainer({.accelerator = accelerator,
                   .devices = devices,
                   .precision = Precision::k64True,
                   .loggers = std::vector<std::shared_ptr<Logger>>(),
                   .enable_checkpointing = false,
                   .enable_progress_bar = false,
                   .enable_model_summary = false,
                   .max_epochs = 2,
                   .seed = 1});
  const auto module = std::make_shared<Net>();
  trainer.fit(module, loader);
  TensorMap weights;
  for (const auto& weight : module->named_parameters())
    weights[weight.key()] = weight.value().detach().cpu();
  return weights;
}

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    try {
      gpu_ = cuda();
    } catch (const ConfigError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  std::shared_ptr<Accelerator> gpu_;
};

// 16 steps of Adam on sums of at most 64 terms in double: 1e-10 is far above their rounding.
void expect_weights_of_the_cpu(const TensorMap& weights) {
  const auto expected = weights_after_training("cpu");
  ASSERT_EQ(weights.size(), expected.size());
  for (const auto& [name, weight] : expected)
    EXPECT_LE((weights.at(name) - weight).abs().max().item<double>(), 1e-10) << name;
}

TEST_F(Gpu, TrainsAsTheCpuDoes) {
  expect_weights_of_the_cpu(weights_after_training(gpu_));
}

TEST_F(Gpu, TwoTrainAsTheCpuDoes) {
  if (gpu_->device_count() < 2) GTEST_SKIP() << "one GPU takes one rank of NCCL; here is one";
  const TemporaryFolder folder;
  const auto result =
      run_program({.arguments = {own_program(), "--train", folder.path().string()}});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  expect_weights_of_the_cpu(read_safetensors(folder.path() / "weights.safetensors"));
}

TEST_F(Gpu, CountsItsMemory) {
  const auto before = cuda_memory();
  const auto tensor = torch::zeros({1 << 20}, torch::TensorOptions(gpu_->device(0)));
  const auto with = cuda_memory();
  EXPECT_GE(with.allocated - before.allocated, 4 << 20);
  EXPECT_GE(with.reserved, with.allocated);
  reset_peak_cuda_memory();
  EXPECT_EQ(cuda_memory().peak_allocated, with.allocated);
}

int train_on_two(const std::filesystem::path& folder) {
  try {
    const auto weights = weights_after_training(cuda(), 2);
    const auto* rank = std::getenv("RANK");
    if (rank == nullptr || std::string(rank) == "0")
      write_safetensors(folder / "weights.safetensors", weights);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}

}  // namespace
}  // namespace fulmen

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--train") return fulmen::train_on_two(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
