#include "fulmen/core/optim/torch_optimizer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fulmen/core/optim/adam.h"
#include "fulmen/core/support/error.h"
#include "tests/core/optim/golden.h"

namespace fulmen {
namespace {

// A class that Fulmen does not know: the sign of the gradient, with a counter.
struct SignState : torch::optim::OptimizerCloneableParamState<SignState> {
  std::int64_t steps = 0;
};
struct SignOptions : torch::optim::OptimizerCloneableOptions<SignOptions> {
  double rate = 0.5;
  double get_lr() const override { return rate; }
  void set_lr(const double lr) override { rate = lr; }
};
struct Sign : torch::optim::Optimizer {
  explicit Sign(std::vector<at::Tensor> tensors)
      : Optimizer(std::move(tensors), std::make_unique<SignOptions>()) {}
  at::Tensor step(LossClosure) override {
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups_) {
      for (auto& tensor : group.params()) {
        auto& state = state_[tensor.unsafeGetTensorImpl()];
        if (!state) state = std::make_unique<SignState>();
        const auto steps = ++static_cast<SignState&>(*state).steps;
        tensor.sub_(tensor.grad().sign(), group.options().get_lr() / static_cast<double>(steps));
      }
    }
    return {};
  }
};

TorchOptimizerCodec sign_codec() {
  return {
      .name = "Sign",
      .save =
          [](const torch::optim::OptimizerParamState& state) {
            return TensorMap{{"steps", torch::tensor(static_cast<const SignState&>(state).steps)}};
          },
      .load =
          [](const TensorMap& tensors) {
            auto state = std::make_unique<SignState>();
            state->steps = tensors.at("steps").item<std::int64_t>();
            return state;
          }};
}

TEST(TorchOptimizer, StepsATiedTensorOnceWhereLibTorchStepsItTwice) {
  auto w = parameter({1});
  auto raw = parameter({1});
  auto optimizer = TorchOptimizer::make(std::make_unique<torch::optim::SGD>(
      std::vector<at::Tensor>{w, w}, torch::optim::SGDOptions(0.25)));
  torch::optim::SGD twice(std::vector<at::Tensor>{raw, raw}, torch::optim::SGDOptions(0.25));
  for (const auto& tensor : {w, raw}) tensor.mutable_grad() = at::ones_like(tensor);
  optimizer->step();
  twice.step();
  EXPECT_EQ(w.item<double>(), 0.75);
  EXPECT_EQ(raw.item<double>(), 0.5);
}

TEST(TorchOptimizer, EqualsFulmensAdamW) {
  auto a = parameter({1, -2});
  auto b = parameter({1, -2});
  auto ours = AdamW::make({a}, {.lr = 0.1});
  auto wrapped = TorchOptimizer::make(std::make_unique<torch::optim::AdamW>(
      std::vector<at::Tensor>{b}, torch::optim::AdamWOptions(0.1)));
  EXPECT_EQ(wrapped->name(), "torch::optim::AdamW");
  for (int step = 0; step < 10; ++step) {
    a.mutable_grad() = a.detach().cos();
    b.mutable_grad() = b.detach().cos();
    ours->step();
    wrapped->step();
  }
  EXPECT_TRUE(at::allclose(a, b, 1e-12, 1e-13));
}

TEST(TorchOptimizer, HyperparametersReachTheOptimizerInside) {
  auto w = parameter({1});
  auto optimizer = TorchOptimizer::make(std::make_unique<torch::optim::Adam>(
      std::vector<at::Tensor>{w}, torch::optim::AdamOptions(0.1)));
  EXPECT_EQ(optimizer->hyperparameter(0, "beta2"), 0.999);
  optimizer->set_hyperparameter(0, "lr", 0.5);
  optimizer->set_hyperparameter(0, "beta1", 0.8);
  optimizer->set_hyperparameter(0, "amsgrad", 1);
  const auto& options =
      static_cast<const torch::optim::AdamOptions&>(optimizer->inner().param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.5);
  EXPECT_EQ(std::get<0>(options.betas()), 0.8);
  EXPECT_TRUE(options.amsgrad());
  EXPECT_THROW(optimizer->hyperparameter(0, "momentum"), ConfigError);
}

TEST(TorchOptimizer, BindReplacesTheTensorsThatTorchSteps) {
  auto whole = parameter({1, 2, 3, 4});
  auto shard = parameter({1, 2});
  auto optimizer = TorchOptimizer::make(std::make_unique<torch::optim::Adagrad>(
      std::vector<at::Tensor>{whole},
      torch::optim::AdagradOptions(0.5).initial_accumulator_value(0.5)));
  optimizer->bind([&](NamedParameter& p) { p = {.name = "w", .tensor = shard}; });
  shard.mutable_grad() = at::ones_like(shard);
  optimizer->step();
  EXPECT_NEAR(shard[0].item<double>(), 1 - 0.5 / std::sqrt(1.5), 1e-9);  // eps is 1e-10
  EXPECT_EQ(optimizer->state_dict().tensors.at("w/sum").numel(), 2);
  EXPECT_THROW(optimizer->bind([](NamedParameter&) {}), ConfigError);
}

TEST(TorchOptimizer, LbfgsCallsItsClosureMoreThanOnceAndReturnsTheLastLoss) {
  auto w = parameter({5});
  auto optimizer = TorchOptimizer::make(std::make_unique<torch::optim::LBFGS>(
      std::vector<at::Tensor>{w}, torch::optim::LBFGSOptions(1)));
  EXPECT_THROW(optimizer->step(), ConfigError);
  int calls = 0;
  double last = -1;
  const auto loss = optimizer->step([&] {
    ++calls;
    optimizer->zero_grad();
    auto value = (w - 2).pow(2).sum();
    value.backward();
    last = value.item<double>();
    return value;
  });
  EXPECT_GT(calls, 1);
  EXPECT_EQ(loss.item<double>(), last);
  EXPECT_NEAR(w.item<double>(), 2.0, 1e-6);  // It stops when the gradient is below 1e-7.
}

TEST(TorchOptimizer, AnUnknownClassNeedsACodecAndResumesWithIt) {
  auto w = parameter({3});
  const auto message = message_of<ConfigError>(
      [&] { TorchOptimizer::make(std::make_unique<Sign>(std::vector<at::Tensor>{w})); });
  EXPECT_TRUE(contains(message, "Give a codec")) << message;

  auto optimizer =
      TorchOptimizer::make(std::make_unique<Sign>(std::vector<at::Tensor>{w}), sign_codec());
  w.mutable_grad() = at::ones_like(w);
  optimizer->step();
  optimizer->set_hyperparameter(0, "lr", 1.0);
  auto v = parameter({2.5});
  auto resumed =
      TorchOptimizer::make(std::make_unique<Sign>(std::vector<at::Tensor>{v}), sign_codec());
  resumed->load_state_dict(optimizer->state_dict());
  v.mutable_grad() = at::ones_like(v);
  resumed->step();
  optimizer->step();
  EXPECT_EQ(v.item<double>(), 2.0);  // The second step is half of lr.
  EXPECT_TRUE(at::equal(v, w));
}

TEST(TorchOptimizer, RefusesANullPointer) {
  EXPECT_THROW(TorchOptimizer::make(nullptr), ConfigError);
}

}  // namespace
}  // namespace fulmen
