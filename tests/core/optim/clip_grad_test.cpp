#include "fulmen/core/optim/clip_grad.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "fulmen/core/support/error.h"
#include "tests/core/optim/golden.h"

namespace fulmen {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor with_gradient(std::vector<double> gradient) {
  auto tensor =
      at::zeros({static_cast<std::int64_t>(gradient.size())}, at::kDouble).requires_grad_();
  tensor.mutable_grad() = torch::tensor(gradient, at::kDouble);
  return tensor;
}

TEST(ClipGradNorm, ScalesAllGradientsToTheNormOnce) {  // faults.md 17: (3,0)/2 + (0,4)/2
  auto w = with_gradient({1.5, 2.0});
  const std::vector<at::Tensor> parameters = {w};
  EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 1.0).item<double>(), 2.5);
  // The factor is 1 / (2.5 + 1e-6): 4e-7 below 1 / 2.5.
  EXPECT_NEAR(w.grad()[0].item<double>(), 0.6, 0.6 * 4.1e-7);
  EXPECT_NEAR(w.grad()[1].item<double>(), 0.8, 0.8 * 4.1e-7);
}

TEST(ClipGradNorm, LeavesSmallGradientsBitwiseAlone) {
  auto w = with_gradient({0.3, 0.4});
  const std::vector<at::Tensor> parameters = {w};
  clip_grad_norm(parameters, 1.0);
  EXPECT_TRUE(at::equal(w.grad(), torch::tensor({0.3, 0.4}, at::kDouble)));
}

TEST(ClipGradNorm, CountsATiedTensorOnce) {
  auto w = with_gradient({3, 4});
  const std::vector<at::Tensor> parameters = {w, w};
  EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 2.5).item<double>(), 5.0);
  EXPECT_NEAR(w.grad()[0].item<double>(), 1.5, 1.5 * 2.1e-7);
}

TEST(ClipGradNorm, KeepsNanInEveryNorm) {  // faults.md 20
  for (const double norm_type : {1.0, 2.0, 3.0, kInfinity}) {
    for (const bool nan_first : {true, false}) {
      auto good = with_gradient({3, 1});
      auto bad = with_gradient({std::nan(""), 1});
      const std::vector<at::Tensor> parameters =
          nan_first ? std::vector<at::Tensor>{bad, good} : std::vector<at::Tensor>{good, bad};
      EXPECT_TRUE(std::isnan(clip_grad_norm(parameters, 1.0, norm_type).item<double>()))
          << norm_type;
      EXPECT_TRUE(at::isnan(good.grad()).all().item<bool>()) << norm_type;
    }
  }
}

TEST(ClipGradNorm, HasPyTorchsValueForOtherNorms) {
  const std::vector<at::Tensor> parameters = {with_gradient({3, -4}), with_gradient({-12})};
  const auto gradients = gradients_of(parameters);
  EXPECT_DOUBLE_EQ(grad_norm(gradients, 2).item<double>(), 13.0);
  EXPECT_DOUBLE_EQ(grad_norm(gradients, 1).item<double>(), 19.0);
  EXPECT_DOUBLE_EQ(grad_norm(gradients, kInfinity).item<double>(), 12.0);
}

TEST(ClipGradNorm, JoinsSeveralDtypesAndSkipsUndefinedGradients) {
  auto narrow = at::zeros({2}, at::kBFloat16).requires_grad_();
  narrow.mutable_grad() = torch::tensor({3.0, 4.0}).to(at::kBFloat16);
  const std::vector<at::Tensor> parameters = {narrow, parameter({1}), with_gradient({12})};
  EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 6.5).item<double>(), 13.0);
  EXPECT_EQ(narrow.grad()[0].item<float>(), 1.5f);  // bf16 has 8 bits: 1.5 - 1e-7 rounds to 1.5.
  EXPECT_EQ(clip_grad_norm(std::vector<at::Tensor>{}, 1.0).item<float>(), 0.0f);
}

TEST(ClipGradNorm, SumsNarrowGradientsInFloat) {
  auto narrow = at::zeros({4096}, at::kBFloat16).requires_grad_();
  narrow.mutable_grad() = at::ones({4096}, at::kBFloat16);
  const std::vector<at::Tensor> parameters = {narrow};
  EXPECT_EQ(grad_norm(gradients_of(parameters)).item<float>(), 64.0f);
}

TEST(ClipGradValue, ClampsEachElement) {
  auto w = with_gradient({-4, 0.25, 3});
  const std::vector<at::Tensor> parameters = {w, w};
  clip_grad_value(parameters, 0.5);
  EXPECT_TRUE(at::equal(w.grad(), torch::tensor({-0.5, 0.25, 0.5}, at::kDouble)));
}

TEST(ClipGrad, RefusesBadLimits) {
  const std::vector<at::Tensor> parameters = {with_gradient({1})};
  EXPECT_THROW(clip_grad_norm(parameters, -1), ConfigError);
  EXPECT_THROW(clip_grad_norm(parameters, std::nan("")), ConfigError);
  EXPECT_THROW(clip_grad_norm(parameters, 1, 0), ConfigError);
  EXPECT_THROW(clip_grad_value(parameters, -1), ConfigError);
}

}  // namespace
}  // namespace fulmen
