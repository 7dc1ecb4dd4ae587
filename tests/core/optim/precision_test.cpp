#include "fulmen/core/optim/precision.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fulmen/core/support/error.h"
#include "tests/core/optim/golden.h"

namespace fulmen {
namespace {

const std::vector<Precision> kAll = {Precision::k64True,
                                     Precision::k32True,
                                     Precision::kBf16True,
                                     Precision::k16True,
                                     Precision::kBf16Mixed,
                                     Precision::k16Mixed};

TEST(Precision, NamesAreReadBack) {
  for (const auto precision : kAll) EXPECT_EQ(parse_precision(to_string(precision)), precision);
  EXPECT_EQ(to_string(Precision::kBf16Mixed), "bf16-mixed");
}

TEST(Precision, AnUnknownNameIsRefusedWithTheValidOnes) {
  const auto message = message_of<ConfigError>([] { parse_precision("fp16"); });
  EXPECT_EQ(message,
            "Precision: 'fp16' is not a precision. Valid are 64-true, 32-true, bf16-true, 16-true, "
            "bf16-mixed, 16-mixed.");
}

TEST(Precision, KnowsItsDtypes) {
  EXPECT_EQ(parameter_dtype(Precision::k64True), at::kDouble);
  EXPECT_EQ(parameter_dtype(Precision::k16True), at::kHalf);
  EXPECT_EQ(parameter_dtype(Precision::kBf16Mixed), at::kFloat);
  EXPECT_EQ(autocast_dtype(Precision::kBf16Mixed), at::kBFloat16);
  EXPECT_EQ(autocast_dtype(Precision::kBf16True), std::nullopt);
  EXPECT_TRUE(needs_grad_scaler(Precision::k16Mixed));
  EXPECT_FALSE(needs_grad_scaler(Precision::k16True));
}

at::ScalarType matmul_dtype() {
  return at::matmul(at::ones({2, 2}), at::ones({2, 2})).scalar_type();
}

TEST(AutocastGuard, CastsInsideOnlyAndOnlyIfMixed) {
  for (const auto precision : kAll) {
    {
      const AutocastGuard guard(at::kCPU, precision);
      EXPECT_EQ(matmul_dtype(), autocast_dtype(precision).value_or(at::kFloat))
          << to_string(precision);
    }
    EXPECT_EQ(matmul_dtype(), at::kFloat);
  }
}

TEST(AutocastGuard, PutsBackWhatWasBeforeAlsoAfterAnException) {
  const auto before = at::autocast::get_autocast_dtype(at::kCPU);
  EXPECT_THROW(
      {
        const AutocastGuard guard(at::kCPU, Precision::k16Mixed);
        throw std::runtime_error("body");
      },
      std::runtime_error);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), before);
  const AutocastGuard outer(at::kCPU, Precision::kBf16Mixed);
  { const AutocastGuard inner(at::kCPU, Precision::k16Mixed); }
  EXPECT_EQ(matmul_dtype(), at::kBFloat16);
}

TEST(AutocastGuard, ForgetsCachedCastsOfWeightsWhenTheOutermostEnds) {
  auto weight = at::ones({2, 2}).requires_grad_();
  const auto product = [&] {
    const AutocastGuard outer(at::kCPU, Precision::kBf16Mixed);
    const AutocastGuard inner(at::kCPU, Precision::kBf16Mixed);
    return at::matmul(at::ones({2, 2}), weight)[0][0].item<float>();
  };
  EXPECT_EQ(product(), 2.0f);
  {
    const at::NoGradGuard no_grad;
    weight.mul_(2);
  }
  EXPECT_EQ(product(), 4.0f);
}

TEST(DefaultDtypeGuard, HoldsWhileItLives) {
  try {
    const DefaultDtypeGuard guard(Precision::k64True);
    EXPECT_EQ(torch::ones({1}).scalar_type(), at::kDouble);
    throw std::runtime_error("body");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(torch::ones({1}).scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace fulmen
