#include "examples/shared_weights/halo_network.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numbers>

#include "examples/shared_weights/heat_data.h"

namespace fulmen {
namespace {

// Sums of at most 2 * 12 * 10 terms of size about 1 in another order, through five layers:
// 240 * 5 * 2^-53 = 1.3e-13 at the very worst, and the terms have both signs.
constexpr double kRounding = 1e-13;

using Values = std::map<std::string, at::Tensor>;

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

Values copy_values(const torch::nn::Module& module) {
  Values values;
  for (const auto& item : module.named_parameters()) values[item.key()] = item.value().detach();
  return values;
}

/// The same network on the whole domain, written with zero padding and no group.
at::Tensor unsplit(const at::Tensor& field, const Values& weights) {
  auto x = field;
  for (int i = 0; i < 5; ++i) {
    const auto layer = "layer" + std::to_string(i) + ".conv.";
    if (i > 0) x = x.tanh();
    x = at::conv2d(x, weights.at(layer + "weight"), weights.at(layer + "bias"), 1, 1);
  }
  return x;
}

TEST(HaloNetwork, OnStripsEqualsTheUnsplitNetwork) {
  torch::manual_seed(1);
  heat::HaloNetwork model(6);
  model->to(torch::kDouble);
  const auto field = at::randn({2, 2, 12, 10}, at::kDouble);
  const auto wanted = at::randn({2, 1, 12, 10}, at::kDouble);

  auto weights = copy_values(*model);
  for (auto& [name, weight] : weights) weight = weight.clone().requires_grad_();
  const auto leaf = field.clone().requires_grad_();
  const auto whole = unsplit(leaf, weights);
  (whole - wanted).square().mean().backward();

  for (const int size : {1, 2, 3, 4, 12}) {  // 12: strips of one row.
    SCOPED_TRACE(size);
    run_thread_ranks(size, [&](const std::shared_ptr<World>& world) {
      const auto group = world->all();
      const auto rows = 12 / size;
      const auto part = [&](const at::Tensor& tensor) {
        return tensor.detach().narrow(2, group.rank() * rows, rows);
      };
      heat::HaloNetwork mine(6);
      mine->to(torch::kDouble);
      {
        const at::NoGradGuard no_grad;
        for (const auto& item : mine->named_parameters())
          item.value().copy_(weights.at(item.key()));
      }
      const auto strip = part(field).clone().requires_grad_();
      const auto result = mine->forward(strip, group);
      EXPECT_LT(difference(result.detach(), part(whole)), kRounding);

      ((result - part(wanted)).square().sum() / wanted.numel()).backward();
      EXPECT_LT(difference(strip.grad(), part(leaf.grad())), kRounding);
      for (const auto& item : mine->named_parameters()) {
        auto gradient = item.value().grad().clone();
        const auto& right = weights.at(item.key()).grad();
        // What a rank has is a term of it, and not the whole.
        if (size > 1) {
          EXPECT_GT(difference(gradient, right), 1e-4) << item.key();
        }
        all_reduce(gradient, ReduceOp::kSum, group);
        EXPECT_LT(difference(gradient, right), kRounding) << item.key();
      }
    });
  }
}

TEST(HeatSolver, DampsAStandingWaveAsItsEigenvalueSays) {
  const std::int64_t rows = 7;
  const std::int64_t columns = 11;
  const auto wave = [](std::int64_t points, int number) {
    const auto x = at::arange(1, points + 1, at::kDouble) / (points + 1.0);
    return (x * (number * std::numbers::pi)).sin();
  };
  const auto damping = [](std::int64_t points, int number) {
    return 4 * std::pow(std::sin(number * std::numbers::pi / (2.0 * (points + 1))), 2);
  };
  const auto u = (wave(rows, 2).unsqueeze(1) * wave(columns, 3)).reshape({1, 1, rows, columns});
  const double dt = 0.2;
  const double diffusivity = 0.7;
  const auto later = heat::evolve(u, at::full_like(u, diffusivity), 9, dt);
  const double factor =
      std::pow(1 - dt * diffusivity * (damping(rows, 2) + damping(columns, 3)), 9);
  ASSERT_LT(factor, 0.5);
  EXPECT_LT(difference(later, u * factor),
            1e-14);  // 9 steps of a few roundings of numbers below 1.
}

TEST(HeatSolver, NeverExceedsTheExtremesOfTheStart) {
  const auto fields = heat::solve({.samples = 8, .grid = 16, .steps = 50, .dt = 0.25});
  const auto start = fields.inputs.narrow(1, 0, 1);
  const auto diffusivity = fields.inputs.narrow(1, 1, 1);
  EXPECT_GT(diffusivity.min().item<double>(), 0);
  EXPECT_LT(diffusivity.max().item<double>(), 1);
  const auto end = heat::evolve(start, diffusivity, 50, 0.25);
  EXPECT_TRUE(end.abs().amax({1, 2, 3}).le(start.abs().amax({1, 2, 3})).all().item<bool>());
  EXPECT_LT(difference(start + fields.unit * fields.targets, end), 1e-14);
  EXPECT_NEAR(fields.targets.square().mean().item<double>(), 1, 1e-14);
}

TEST(HeatSolver, GivesTheSameFieldsForASeedAndOthersForAnother) {
  torch::manual_seed(5);
  const auto first = heat::solve({.samples = 4, .grid = 8, .seed = 3});
  torch::manual_seed(6);
  const auto again = heat::solve({.samples = 4, .grid = 8, .seed = 3});
  const auto other = heat::solve({.samples = 4, .grid = 8, .seed = 4});
  EXPECT_TRUE(at::equal(first.inputs, again.inputs));
  EXPECT_TRUE(at::equal(first.targets, again.targets));
  EXPECT_GT(difference(first.inputs, other.inputs), 0.1);
  // Samples differ, too.
  EXPECT_GT(difference(first.inputs[0], first.inputs[1]), 0.1);
}

}  // namespace
}  // namespace fulmen
