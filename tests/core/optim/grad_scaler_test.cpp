#include "fulmen/core/optim/grad_scaler.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "fulmen/core/optim/clip_grad.h"
#include "fulmen/core/optim/sgd.h"
#include "fulmen/core/support/error.h"
#include "tests/core/optim/golden.h"

namespace fulmen {
namespace {

at::Tensor weights() {
  return at::zeros({2}, at::kFloat).requires_grad_();
}

void backward(GradScaler& scaler, const at::Tensor& w, float x, float y) {
  scaler.scale((w * torch::tensor({x, y})).sum()).backward();
}

TEST(GradScaler, ClippingSeesTheTrueNormAfterUnscale) {  // faults.md 16
  auto w = weights();
  auto optimizer = SGD::make({w}, {.lr = 1});
  auto scaler = GradScaler::make({.init_scale = 1024});
  backward(*scaler, w, 3, 4);
  EXPECT_EQ(w.grad()[0].item<float>(), 3 * 1024.0f);
  scaler->unscale(*optimizer);
  const std::vector<at::Tensor> parameters = {w};
  EXPECT_FLOAT_EQ(clip_grad_norm(parameters, 1.0).item<float>(), 5.0f);
  EXPECT_TRUE(scaler->step(*optimizer));
  scaler->update();
  // 1 / (5 + 1e-6) is 2e-7 below 1 / 5, and float32 rounds by 6e-8.
  EXPECT_NEAR(w.detach().norm().item<double>(), 1.0, 5e-7);
}

TEST(GradScaler, SkipsTheStepAndBacksOffWhenAGradientOverflows) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::nanf("")}) {
    auto w = weights();
    auto optimizer = SGD::make({w}, {.lr = 1});
    auto scaler = GradScaler::make({.init_scale = 8, .growth_interval = 2});
    backward(*scaler, w, bad, 1);
    EXPECT_FALSE(scaler->step(*optimizer));
    scaler->update();
    EXPECT_TRUE(at::equal(w, at::zeros({2})));
    EXPECT_EQ(scaler->current_scale(), 4);
    for (int i = 0; i < 2; ++i) {
      optimizer->zero_grad();
      backward(*scaler, w, 1, 1);
      EXPECT_TRUE(scaler->step(*optimizer));
      scaler->update();
    }
    EXPECT_EQ(scaler->current_scale(), 8);  // Grown after growth_interval good steps.
    EXPECT_TRUE(at::equal(w, at::full({2}, -2.0f)));
  }
}

TEST(GradScaler, UnscalesOnceInAWindowAndAgainInTheNext) {  // faults.md 15
  auto w = weights();
  auto optimizer = SGD::make({w}, {.lr = 1});
  auto scaler = GradScaler::make({.init_scale = 4});
  backward(*scaler, w, 1, 1);
  scaler->unscale(*optimizer);
  const auto message = message_of<ConfigError>([&] { scaler->unscale(*optimizer); });
  EXPECT_TRUE(contains(message, "new_window()")) << message;
  scaler->new_window();  // The user leaves the step out.
  optimizer->zero_grad();
  backward(*scaler, w, 1, 1);
  EXPECT_NO_THROW(scaler->unscale(*optimizer));
  EXPECT_EQ(w.grad()[0].item<float>(), 1.0f);
  scaler->update();
  optimizer->zero_grad();
  backward(*scaler, w, 1, 1);
  EXPECT_NO_THROW(scaler->unscale(*optimizer));
}

TEST(GradScaler, AnUpdateWithoutAnyCheckKeepsTheScale) {
  auto scaler = GradScaler::make({.init_scale = 4, .growth_interval = 1});
  scaler->update();
  EXPECT_EQ(scaler->current_scale(), 4);
}

TEST(GradScaler, JoinsAllOptimizersInItsUpdateAndSkipsOnlyTheBadOne) {
  auto good = weights();
  auto bad = weights();
  auto first = SGD::make({good}, {.lr = 1});
  auto second = SGD::make({bad}, {.lr = 1});
  auto scaler = GradScaler::make({.init_scale = 4});
  backward(*scaler, good, 1, 1);
  backward(*scaler, bad, std::nanf(""), 1);
  EXPECT_TRUE(scaler->step(*first));
  EXPECT_FALSE(scaler->step(*second));
  scaler->update();
  EXPECT_EQ(scaler->current_scale(), 2);
}

TEST(GradScaler, AnotherRanksOverflowCanBeJoinedIn) {
  auto w = weights();
  auto optimizer = SGD::make({w}, {.lr = 1});
  auto scaler = GradScaler::make({.init_scale = 4});
  EXPECT_FALSE(scaler->found_inf(*optimizer).defined());
  backward(*scaler, w, 1, 1);
  scaler->unscale(*optimizer);
  scaler->found_inf(*optimizer).fill_(1);
  EXPECT_FALSE(scaler->step(*optimizer));
  scaler->update();
  EXPECT_EQ(scaler->current_scale(), 2);
}

TEST(GradScaler, GoesOnFromItsState) {
  auto w = weights();
  auto optimizer = SGD::make({w}, {.lr = 1});
  auto scaler = GradScaler::make({.init_scale = 8, .growth_interval = 3});
  const auto good_step = [&](GradScaler& used) {
    optimizer->zero_grad();
    backward(used, w, 1, 1);
    used.step(*optimizer);
    used.update();
  };
  for (int i = 0; i < 5; ++i) good_step(*scaler);
  EXPECT_EQ(scaler->current_scale(), 16);
  auto resumed = GradScaler::make({.init_scale = 2, .growth_interval = 3});
  resumed->load_state_dict(scaler->state_dict());
  EXPECT_EQ(resumed->current_scale(), 16);
  good_step(*resumed);
  EXPECT_EQ(resumed->current_scale(), 32);  // The third good step: the count was saved.
  EXPECT_THROW(resumed->load_state_dict({}), CheckpointError);
}

TEST(GradScaler, DoesNothingWhenDisabled) {
  auto w = weights();
  auto optimizer = SGD::make({w}, {.lr = 1});
  auto scaler = GradScaler::make({.enabled = false});
  backward(*scaler, w, 1, 2);
  scaler->unscale(*optimizer);
  EXPECT_TRUE(scaler->step(*optimizer));
  scaler->update();
  EXPECT_EQ(w[1].item<float>(), -2.0f);
  EXPECT_EQ(scaler->current_scale(), 1.0);
}

TEST(GradScaler, RefusesHalfGradientsAndBadOptions) {
  auto w = at::zeros({2}, at::kHalf).requires_grad_();
  w.mutable_grad() = at::ones({2}, at::kHalf);
  auto optimizer = SGD::make({w});
  EXPECT_THROW(GradScaler::make()->unscale(*optimizer), ConfigError);
  EXPECT_THROW(GradScaler::make({.init_scale = 0}), ConfigError);
  EXPECT_THROW(GradScaler::make({.growth_factor = 1}), ConfigError);
  EXPECT_THROW(GradScaler::make({.backoff_factor = 1}), ConfigError);
  EXPECT_THROW(GradScaler::make({.growth_interval = 0}), ConfigError);
}

}  // namespace
}  // namespace fulmen
