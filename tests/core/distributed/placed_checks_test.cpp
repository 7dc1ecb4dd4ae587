#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "fulmen/core/distributed/placed_parameters.h"
#include "fulmen/core/distributed/shared_weights.h"
#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"
#include "tests/core/distributed/placed_net.h"

namespace fulmen {
namespace {

using testing::expect_parts;
using testing::Net;
using testing::with_gradient;

/// The text that each rank threw, the same on all.
std::string check_text(int ranks,
                       const std::vector<MeshAxis>& axes,
                       const std::function<void(Net&, int)>& build) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  run_thread_ranks(ranks, [&](const std::shared_ptr<World>& world) {
    Net net;
    build(net, world->rank());
    const PlacedParameters placed(net, DeviceMesh(axes, world));
    auto& text = texts[static_cast<std::size_t>(world->rank())];
    try {
      placed.check_equal_on_all_ranks();
    } catch (const DistributedError& error) {
      text = error.what();
    }
  });
  for (const auto& text : texts) EXPECT_EQ(text, texts.front());
  return texts.front();
}

TEST(CheckEqual, PassesWhatMayDiffer) {
  EXPECT_EQ(check_text(4,
                       {{"data", 2}, {"model", 2}},
                       [](Net& net, int rank) {
                         net.parameter("plain", torch::ones({2, 3}));
                         const auto slice = net.parameter("slice", torch::ones({3, 2 + rank % 2}));
                         mark_placement(slice, "model", sharded(1));
                         const auto own = net.parameter(
                             "own", rank == 0 ? torch::ones({}) : torch::ones({rank, 2}));
                         mark_placement(own, "model", local());
                         mark_placement(own, "data", local());
                         net.add_buffer("count", torch::zeros({}, torch::kLong));
                       }),
            "");
}

TEST(CheckEqual, NamesTheFirstDifferenceAndItsRanks) {
  const std::vector<MeshAxis> axes{{"data"}};
  const auto differs = [&](const std::function<void(Net&, int)>& build) {
    return check_text(4, axes, [&](Net& net, int rank) {
      net.parameter("same", torch::ones({2}));
      build(net, rank);
    });
  };
  expect_parts(differs([](Net& net, int rank) {
                 net.parameter("weight", torch::ones({8, rank == 1 || rank == 3 ? 5 : 4}));
               }),
               {"The model: is not the same on all ranks: parameter 1 is weight (8, 4) "
                "float64 on ranks 0, 2 and weight (8, 5) float64 on ranks 1, 3"});
  expect_parts(
      differs([](Net& net, int rank) { net.parameter(rank == 2 ? "b" : "a", torch::ones({1})); }),
      {"parameter 1 is a (1) float64 on ranks 0, 1, 3 and b (1) float64 on rank 2"});
  expect_parts(differs([](Net& net, int rank) {
                 net.register_parameter(
                     "w", torch::ones({1}, rank == 3 ? torch::kFloat : torch::kDouble));
               }),
               {"w (1) float64 on ranks 0, 1, 2 and w (1) float32 on rank 3"});
  expect_parts(differs([](Net& net, int rank) {
                 if (rank != 1) net.parameter("more", torch::ones({1}));
               }),
               {"the number of parameters is 2 on ranks 0, 2, 3 and 1 on rank 1; the first that "
                "differs: parameter 1 is more (1) float64 on ranks 0, 2, 3 and nothing on rank 1"});
  expect_parts(differs([](Net& net, int rank) {
                 net.parameter("w", torch::ones({1})).set_requires_grad(rank != 0);
               }),
               {"w (1) float64, frozen, replicated over data on rank 0 and w (1) float64, "
                "replicated over data on ranks 1, 2, 3"});
  expect_parts(differs([](Net& net, int rank) {
                 const auto w = net.parameter("w", torch::ones({1}));
                 if (rank == 2) mark_placement(w, "data", local());
               }),
               {"w (1) float64 on ranks 0, 1, 3 and w (own shape) float64 on rank 2"});
  expect_parts(
      differs([](Net& net, int rank) { net.add_buffer("mean", torch::ones({rank + 1})); }),
      {"buffer 0 is mean (1) float32 on rank 0, mean (2) float32 on rank 1, mean (3) float32 "
       "on rank 2 and mean (4) float32 on rank 3"});
  expect_parts(differs([](Net& net, int rank) {
                 const auto w = net.parameter("w", torch::ones({1}));
                 if (rank == 0) net.register_parameter("tied", w);
               }),
               {"also named tied on rank 0"});
}

TEST(CheckEqual, ComparesEachStageOfALocalAxisWithItself) {
  const std::vector<MeshAxis> axes{{"data", 2},
                                   {.name = "pipeline", .size = 2, .default_placement = local()}};
  EXPECT_EQ(check_text(4,
                       axes,
                       [](Net& net, int rank) {
                         const int stage = rank % 2;
                         net.parameter("layer" + std::to_string(stage), torch::ones({1}));
                         if (stage == 1) net.parameter("head", torch::ones({1}));
                       }),
            "");
  // A difference in one stage fails on all ranks.
  expect_parts(check_text(4,
                          axes,
                          [](Net& net, int rank) {
                            const int stage = rank % 2;
                            net.parameter("layer" + std::to_string(stage), torch::ones({1}));
                            if (rank == 3) net.parameter("head", torch::ones({1}));
                          }),
               {"parameter 1 is nothing on rank 1 and head (1) float64 on rank 3"});
}

TEST(CheckNotReplaced, FindsReplacedRemovedAndAddedParametersOnAllRanks) {
  for (const std::string what : {"nothing", "replaced", "alias", "removed", "added"}) {
    std::vector<std::string> texts(3);
    run_thread_ranks(3, [&](const std::shared_ptr<World>& world) {
      Net net;
      const auto w = net.parameter("w", torch::ones({2}));
      net.register_parameter("w_tied", w);
      const PlacedParameters placed(net, DeviceMesh({{"data"}}, world));
      Net now;
      const bool changes = world->rank() == 1;
      const auto other = torch::ones({2}, torch::kDouble);
      now.register_parameter("w", what == "replaced" && changes ? other : w);
      if (what != "removed" || !changes) {
        now.register_parameter("w_tied", what == "alias" && changes ? other : w);
      }
      if (what == "added" && changes) now.register_parameter("new", other);
      try {
        placed.check_not_replaced(now);
      } catch (const DistributedError& error) {
        texts[static_cast<std::size_t>(world->rank())] = error.what();
      }
    });
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_EQ(texts[0], texts[2]);
    if (what == "nothing") {
      EXPECT_EQ(texts[0], "");
      continue;
    }
    expect_parts(texts[0],
                 {"rank 1: ",
                  what == "replaced" ? "w was replaced"
                  : what == "alias"  ? "w_tied was replaced"
                  : what == "added"  ? "new was added"
                                     : "w_tied was removed",
                  "after the strategy was set up"});
  }
}

/// As above, for gradients that are already there.
std::string unmarked_text(int ranks,
                          const std::vector<MeshAxis>& axes,
                          const std::function<void(Net&, int)>& build) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  run_thread_ranks(ranks, [&](const std::shared_ptr<World>& world) {
    Net net;
    build(net, world->rank());
    const PlacedParameters placed(net, DeviceMesh(axes, world));
    try {
      placed.check_unmarked_gradients();
    } catch (const DistributedError& error) {
      texts[static_cast<std::size_t>(world->rank())] = error.what();
    }
  });
  for (const auto& text : texts) EXPECT_EQ(text, texts.front());
  return texts.front();
}

TEST(CheckUnmarked, NamesParametersWhoseGradientsDifferAndTheRemedy) {
  const auto text = unmarked_text(4, {{"data", 2}, {"model", 2}}, [](Net& net, int rank) {
    with_gradient(net, "equal", {1.0, 2.0});
    with_gradient(net, "different", {1.0, 2.0 + rank % 2});
    with_gradient(net, "also", {rank % 2 == 0 ? -3.0 : 3.0});
  });
  expect_parts(text,
               {"the gradients of different, also differ along the axis \"model\"",
                "mark_as_shared(parameter, \"model\")",
                "replicated()"});
}

TEST(CheckUnmarked, AtMostFiveNames) {
  const auto text = unmarked_text(2, {{"model", 2}}, [](Net& net, int rank) {
    for (int i = 0; i < 7; ++i) with_gradient(net, "p" + std::to_string(i), {1.0 * rank});
  });
  expect_parts(text, {"p0, p1, p2, p3, p4 and 2 more differ"});
  EXPECT_EQ(text.find("p5"), std::string::npos);
}

TEST(CheckUnmarked, AMissingGradientCountsAsZeros) {
  EXPECT_EQ(unmarked_text(2,
                          {{"model", 2}},
                          [](Net& net, int rank) {
                            const auto zero = with_gradient(net, "zero", {0.0, 0.0});
                            if (rank == 1) zero.mutable_grad() = at::Tensor();
                            net.parameter("nobody", torch::ones({2}));
                            net.parameter("empty", torch::ones({0}));
                          }),
            "");
  expect_parts(unmarked_text(2,
                             {{"model", 2}},
                             [](Net& net, int rank) {
                               const auto one = with_gradient(net, "one", {1.0});
                               if (rank == 1) one.mutable_grad() = at::Tensor();
                             }),
               {"the gradients of one differ"});
}

TEST(CheckUnmarked, LeavesAloneWhatMayDiffer) {
  EXPECT_EQ(unmarked_text(4,
                          {{"data", 2}, {"model", 2}},
                          [](Net& net, int rank) {
                            // Differs over data only, which is the reducer's matter.
                            with_gradient(net, "data_only", {rank < 2 ? 1.0 : 2.0});
                            const std::vector<double> own{1.0 + rank};
                            mark_as_shared(with_gradient(net, "common", own), "model");
                            mark_placement(with_gradient(net, "meant", own), "model", replicated());
                            mark_placement(with_gradient(net, "slice", own), "model", sharded(0));
                            mark_placement(with_gradient(net, "local", own), "model", local());
                            with_gradient(net, "frozen", own).set_requires_grad(false);
                          }),
            "");
  EXPECT_EQ(unmarked_text(2,
                          {{.name = "model", .size = 2, .default_placement = shared()}},
                          [](Net& net, int rank) { with_gradient(net, "w", {1.0 + rank}); }),
            "");
}

TEST(CheckUnmarked, RoundingIsRelativeToTheLargestAndToTheDtype) {
  const auto text = [](at::ScalarType dtype, double relative) {
    return unmarked_text(2, {{"model", 2}}, [&](Net& net, int rank) {
      auto w = net.register_parameter("w", torch::zeros({2}, dtype));
      w.mutable_grad() = torch::tensor({1000.0, 1000.0 * relative * rank}, dtype);
    });
  };
  // The roots of the epsilons: 1.5e-8, 3.5e-4, 0.088.
  EXPECT_EQ(text(torch::kDouble, 1.4e-8), "");
  EXPECT_NE(text(torch::kDouble, 1.6e-8), "");
  EXPECT_EQ(text(torch::kFloat, 3.3e-4), "");
  EXPECT_NE(text(torch::kFloat, 3.6e-4), "");
  EXPECT_EQ(text(torch::kBFloat16, 0.08), "");
  EXPECT_NE(text(torch::kBFloat16, 0.1), "");
}

}  // namespace
}  // namespace fulmen
