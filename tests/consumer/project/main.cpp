// A program outside the tree: trains with what was installed.
#include <fulmen/fulmen.h>
#include <fulmen/version.h>

#include <iostream>

class Line final : public fulmen::LightningModule<> {
 public:
  fulmen::StepOutput training_step(fulmen::Batch& batch, std::int64_t) override {
    auto [x, y] = batch.unpack<2>();
    return torch::mse_loss(line_->forward(x), y);
  }
  fulmen::OptimizerConfigs configure_optimizers() override {
    return fulmen::SGD::make(*this, {.lr = 0.1});
  }
  double slope() const { return line_->weight.item<double>(); }

 private:
  torch::nn::Linear line_ = register_module("line", torch::nn::Linear(1, 1));
};

int main() {
  auto x = torch::linspace(-1, 1, 32).unsqueeze(1);
  auto module = std::make_shared<Line>();
  fulmen::Trainer trainer({.loggers = std::vector<std::shared_ptr<fulmen::Logger>>{},
                           .enable_checkpointing = false,
                           .enable_progress_bar = false,
                           .max_epochs = 50});
  trainer.fit(module, fulmen::DataLoader(fulmen::tensor_dataset({x, 3 * x}), {.batch_size = 8}));
  const bool learnt = std::abs(module->slope() - 3) < 0.01;
  std::cout << "Fulmen " << FULMEN_VERSION << " was found and linked; slope " << module->slope()
            << "\n";
  return learnt ? 0 : 1;
}
