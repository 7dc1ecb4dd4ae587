// On a GPU; skipped where there is none.
#include <fulmen/cuda/cuda.h>
#include <fulmen/fulmen.h>
#include <gtest/gtest.h>

namespace fulmen {
namespace {

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

std::vector<at::Tensor> weights_after_training(const AcceleratorOption& accelerator) {
  seed_everything(1);
  const auto x = torch::randn({64, 8}, torch::kDouble);
  const DataLoader loader(TensorDataset({x, x.sum(1, true)}), {.batch_size = 8, .shuffle = true});
  Trainer trainer({.accelerator = accelerator,
                   .precision = Precision::k64True,
                   .loggers = std::vector<std::shared_ptr<Logger>>(),
                   .enable_checkpointing = false,
                   .enable_progress_bar = false,
                   .enable_model_summary = false,
                   .max_epochs = 2,
                   .seed = 1});
  const auto module = std::make_shared<Net>();
  trainer.fit(module, loader);
  std::vector<at::Tensor> weights;
  for (const auto& weight : module->parameters()) weights.push_back(weight.detach().cpu());
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

TEST_F(Gpu, TrainsAsTheCpuDoes) {
  const auto expected = weights_after_training("cpu");
  const auto weights = weights_after_training(gpu_);
  ASSERT_EQ(weights.size(), expected.size());
  // 16 steps of Adam on sums of at most 64 terms in double: 1e-10 is far above their rounding.
  for (std::size_t i = 0; i < weights.size(); ++i)
    EXPECT_LE((weights[i] - expected[i]).abs().max().item<double>(), 1e-10);
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

}  // namespace
}  // namespace fulmen
