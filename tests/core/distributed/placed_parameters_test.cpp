#include "fulmen/core/distributed/placed_parameters.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "fulmen/core/distributed/shared_weights.h"
#include "fulmen/core/optim/clip_grad.h"
#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"
#include "tests/core/distributed/placed_net.h"

namespace fulmen {
namespace {

using testing::error_text;
using testing::expect_parts;
using testing::Net;
using testing::with_gradient;
using Names = std::vector<std::string>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

DeviceMesh mesh_2x2(const std::shared_ptr<World>& world) {
  return DeviceMesh({{"data", 2}, {"model", 2}}, world);
}

TEST(PlacedParameters, AreDistinctTensorsInOrderOfRegistration) {
  Net net;
  const auto b = net.parameter("b", torch::ones({2}));
  const auto a = net.parameter("a", torch::ones({3}));
  net.register_parameter("b_again", b);
  net.register_parameter("none", at::Tensor(), false);
  net.add_buffer("mean", torch::zeros({2}));
  net.register_module("child", std::make_shared<torch::nn::LinearImpl>(1, 1));
  const PlacedParameters placed(net, DeviceMesh({{"data"}}, World::single()));
  Names names;
  for (const auto& parameter : placed.parameters()) names.push_back(parameter.name);
  EXPECT_EQ(names, (Names{"b", "a", "child.weight", "child.bias"}));
  EXPECT_EQ(placed.parameters()[0].aliases, (Names{"b_again"}));
  ASSERT_EQ(placed.buffers().size(), 1U);
  EXPECT_EQ(placed.buffers()[0].name, "mean");
  EXPECT_TRUE(placed.buffers()[0].is_buffer);
  ASSERT_NE(placed.find(a), nullptr);
  EXPECT_EQ(placed.find(a)->name, "a");
  EXPECT_EQ(placed.find(a.clone()), nullptr);
  EXPECT_EQ(placed.find({}), nullptr);
}

TEST(PlacedParameters, AxesFollowFromMarksAndDefaults) {
  Net net;
  const auto plain = net.parameter("plain", torch::ones({2, 2}));
  const auto common = net.parameter("common", torch::ones({2, 2}));
  const auto slice = net.parameter("slice", torch::ones({2, 2}));
  const auto own = net.parameter("own", torch::ones({2, 2}));
  mark_as_shared(common, "model");  // Of both parts.
  mark_placement(slice, "w", sharded(1));
  mark_placement(own, "model", local());
  const DeviceMesh mesh({{"data", 1}, {.name = "model", .parts = {{"h", 1}, {"w", 1}}}},
                        World::single());
  const PlacedParameters placed(net, mesh);
  const auto axes_of = [&](const at::Tensor& tensor) {
    const auto& entry = *placed.find(tensor);
    return std::vector{
        placed.gradient_axes(entry), placed.replica_axes(entry), placed.own_axes(entry)};
  };
  EXPECT_EQ(axes_of(plain), (std::vector<Names>{{"data"}, {"data", "h", "w"}, {}}));
  EXPECT_EQ(axes_of(common), (std::vector<Names>{{"data", "h", "w"}, {"data", "h", "w"}, {}}));
  EXPECT_EQ(axes_of(slice), (std::vector<Names>{{"data"}, {"data", "h"}, {"w"}}));
  EXPECT_EQ(axes_of(own), (std::vector<Names>{{"data"}, {"data"}, {"h", "w"}}));
  EXPECT_EQ(placed.find(common)->marked_axes, (Names{"h", "w"}));
  EXPECT_EQ(placed.find(plain)->marked_axes, Names{});
  EXPECT_EQ(placed.find(slice)->placements,
            (PlacementMarks{{"data", replicated()}, {"h", replicated()}, {"w", sharded(1)}}));
}

TEST(PlacedParameters, DefaultOfTheAxisCountsWhereThereIsNoMark) {
  Net net;
  const auto plain = net.parameter("plain", torch::ones({2}));
  const auto marked = net.parameter("marked", torch::ones({2}));
  mark_placement(marked, "model", replicated());
  const PlacedParameters placed(
      net,
      DeviceMesh({{"data", 1}, {.name = "model", .size = 1, .default_placement = shared()}},
                 World::single()));
  EXPECT_EQ(placed.gradient_axes(*placed.find(plain)), (Names{"data", "model"}));
  EXPECT_EQ(placed.gradient_axes(*placed.find(marked)), (Names{"data"}));
}

TEST(PlacedParameters, MarksThatCannotBeNameTheParameter) {
  const auto text_of = [](std::string_view axis, Placement placement) {
    Net net;
    mark_placement(net.parameter("weight", torch::ones({2, 3})), axis, placement);
    const DeviceMesh mesh({{"data", 1}, {.name = "model", .parts = {{"h", 1}, {"w", 1}}}},
                          World::single());
    return error_text<ConfigError>([&] { PlacedParameters(net, mesh); });
  };
  expect_parts(text_of("modle", shared()),
               {"weight", "shared", "\"modle\"", "data=1,model=1(h=1,w=1)", "size 1"});
  expect_parts(text_of("data", shared()), {"weight", "shared", "\"data\"", "data-like"});
  expect_parts(text_of("h", sharded(2)), {"weight", "sharded(2)", "\"h\"", "[2, 3]"});
  expect_parts(text_of("h", sharded(-1)), {"weight", "sharded(-1)"});
  Net net;
  const auto weight = net.parameter("weight", torch::ones({2}));
  mark_placement(weight, "model", shared());
  mark_placement(weight, "w", local());
  const DeviceMesh mesh({{.name = "model", .parts = {{"h", 1}, {"w", 1}}}}, World::single());
  expect_parts(error_text<ConfigError>([&] { PlacedParameters(net, mesh); }),
               {"weight", "\"w\"", "shared", "local"});
}

TEST(PlacedParameters, WriterIsTheFirstRankThatHasTheValue) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    Net net;
    const auto plain = net.parameter("plain", torch::ones({2}));
    const auto slice = net.parameter("slice", torch::ones({2}));
    const auto own = net.parameter("own", torch::ones({2}));
    mark_placement(slice, "model", sharded(0));
    mark_placement(own, "data", local());
    mark_placement(own, "model", local());
    const PlacedParameters placed(net, mesh_2x2(world));
    const int rank = world->rank();
    EXPECT_EQ(placed.is_writer(*placed.find(plain)), rank == 0);
    EXPECT_EQ(placed.is_writer(*placed.find(slice)), rank < 2);
    EXPECT_TRUE(placed.is_writer(*placed.find(own)));
  });
}

TEST(PlacedParameters, BroadcastGivesEachTensorTheFirstValueOfItsReplicas) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    const int rank = world->rank();
    Net net;
    const auto value = torch::full({2, 3}, rank, torch::kDouble);
    const auto plain = net.parameter("plain", value);
    const auto common = net.parameter("common", value.clone().t());  // Not contiguous.
    const auto slice = net.parameter("slice", value.clone());
    const auto own = net.parameter("own", value.clone());
    const auto count = net.add_buffer("count", torch::full({}, rank, torch::kLong));
    mark_as_shared(common, "model");
    mark_placement(slice, "model", sharded(0));
    mark_placement(own, "data", local());
    mark_placement(own, "model", local());
    const PlacedParameters placed(net, mesh_2x2(world));
    placed.broadcast_values();
    const auto is = [](const at::Tensor& tensor, int expected) {
      return (tensor == expected).all().item<bool>();
    };
    EXPECT_TRUE(is(plain, 0));
    EXPECT_TRUE(is(common, 0));
    EXPECT_TRUE(is(slice, rank % 2));
    EXPECT_TRUE(is(own, rank));
    EXPECT_TRUE(is(count, 0));
    EXPECT_TRUE(plain.requires_grad());
    EXPECT_TRUE(plain.is_leaf());
  });
}

TEST(PlacedParameters, BuffersAreLookedUpByNameWhenTheyAreMadeEqual) {  // faults.md 101
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const int rank = world->rank();
    torch::nn::BatchNorm1d norm(2);
    const PlacedParameters placed(*norm, DeviceMesh({{"data"}}, world));
    norm->named_buffers()["running_mean"].fill_(rank + 5);
    placed.broadcast_buffers(*norm);
    EXPECT_EQ(norm->running_mean[1].item<double>(), 5);
    // A module that puts a new tensor in the place of the old one.
    Net first;
    first.add_buffer("count", torch::zeros({}, torch::kLong));
    const PlacedParameters before(first, DeviceMesh({{"data"}}, world));
    Net second;
    const auto count = second.add_buffer("count", torch::full({}, rank + 7, torch::kLong));
    before.broadcast_buffers(second);
    EXPECT_EQ(count.item<std::int64_t>(), 7);
  });
}

TEST(GradNorm, CountsSharedValuesOnceAndEachSlice) {  // strategies.md 1.2
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    Net net;
    const auto common = with_gradient(net, "common", {5.5});
    const auto slice = with_gradient(net, "slice", {world->rank() % 2 == 0 ? 3.0 : 4.0});
    mark_as_shared(common, "model");
    mark_placement(slice, "model", sharded(0));
    const PlacedParameters placed(net, mesh_2x2(world));
    const std::vector<at::Tensor> parameters{common, slice, slice};  // A repeated one counts once.
    const auto norm = placed.grad_norm(parameters);
    EXPECT_EQ(norm.scalar_type(), torch::kDouble);
    EXPECT_DOUBLE_EQ(norm.item<double>(), std::sqrt(5.5 * 5.5 + 3 * 3 + 4 * 4));
    EXPECT_NEAR(norm.item<double>(), 7.4330, 5e-5);
    EXPECT_DOUBLE_EQ(placed.grad_norm(parameters, 1.0).item<double>(), 12.5);
    EXPECT_DOUBLE_EQ(placed.grad_norm(parameters, kInfinity).item<double>(), 5.5);
    EXPECT_DOUBLE_EQ(placed.grad_norm(std::vector{slice}, kInfinity).item<double>(), 4.0);
    EXPECT_DOUBLE_EQ(placed.grad_norm(std::vector{slice}).item<double>(), 5.0);
    EXPECT_THROW(placed.grad_norm(parameters, 0.0), ConfigError);
  });
}

TEST(GradNorm, CountsLocalParametersOfEachRank) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    Net net;
    const auto everywhere = with_gradient(net, "everywhere", {world->rank() + 1.0});
    const auto by_data = with_gradient(net, "by_data", {world->rank() < 2 ? 2.0 : 6.0});
    mark_placement(everywhere, "data", local());
    mark_placement(everywhere, "model", local());
    mark_placement(by_data, "data", local());
    const PlacedParameters placed(net, mesh_2x2(world));
    const std::vector<at::Tensor> parameters{everywhere, by_data};
    // 1 + 4 + 9 + 16 of the one, 4 + 36 of the other.
    EXPECT_DOUBLE_EQ(placed.grad_norm(parameters).item<double>(), std::sqrt(70.0));
  });
}

TEST(GradNorm, AsksAllRanksWhateverGradientsTheyHave) {
  run_thread_ranks(3, [](const std::shared_ptr<World>& world) {
    Net net;
    const auto common = with_gradient(net, "common", {2.0});
    const auto slice = with_gradient(net, "slice", {3.0});
    mark_placement(slice, "model", sharded(0));
    if (world->rank() == 1) slice.mutable_grad() = at::Tensor();
    const PlacedParameters placed(net, DeviceMesh({{"data", 1}, {"model", 3}}, world));
    const std::vector<at::Tensor> all{common, slice};
    EXPECT_DOUBLE_EQ(placed.grad_norm(all).item<double>(), std::sqrt(4.0 + 9 + 9));
    const std::vector<at::Tensor> first{common};
    EXPECT_DOUBLE_EQ(placed.grad_norm(world->rank() == 2 ? all : first).item<double>(),
                     std::sqrt(4.0 + 9));
    EXPECT_DOUBLE_EQ(placed.grad_norm({}).item<double>(), 0.0);
  });
}

TEST(GradNorm, KeepsNanAndInfinityOfOneRank) {
  for (const double bad : {std::nan(""), kInfinity}) {
    for (const int who : {0, 1}) {
      run_thread_ranks(2, [&](const std::shared_ptr<World>& world) {
        Net net;
        const auto slice = with_gradient(net, "slice", {1.0, world->rank() == who ? bad : 2.0});
        mark_placement(slice, "model", sharded(0));
        const PlacedParameters placed(net, DeviceMesh({{"model"}}, world));
        for (const double norm_type : {1.0, 2.0, kInfinity}) {
          const auto norm = placed.grad_norm(std::vector{slice}, norm_type).item<double>();
          EXPECT_TRUE(std::isnan(bad) ? std::isnan(norm) : norm == kInfinity)
              << norm << " for type " << norm_type << ", rank " << who;
        }
      });
    }
  }
}

TEST(GradNorm, WithoutOwnAxesIsThatOfOneProcessBitForBitAndAsksNobody) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    torch::manual_seed(3);
    torch::nn::Linear net(31, 17);
    const auto parameters = net->parameters();
    for (const auto& parameter : parameters)
      parameter.mutable_grad() = torch::randn_like(parameter);
    const PlacedParameters placed(*net, DeviceMesh({{"data", 2}, {"model", 1}}, world));
    const auto calls = world->counters().total().calls;
    const auto norm = placed.grad_norm(parameters);
    EXPECT_EQ(world->counters().total().calls, calls);
    EXPECT_TRUE(at::equal(norm, fulmen::grad_norm(gradients_of(parameters))));
    EXPECT_EQ(norm.scalar_type(), torch::kFloat);
    expect_parts(error_text<ConfigError>([&] { placed.grad_norm(std::vector{torch::ones({7})}); }),
                 {"[7]", "no parameter of the module"});
  });
}

}  // namespace
}  // namespace fulmen
