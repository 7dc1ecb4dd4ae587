#include "fulmen/strategies/comm_hook.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fulmen/core/support/error.h"
#include "tests/strategies/gradient_reducer_cases.h"

namespace fulmen {
namespace {

using testing::ElementsAre;

TEST(CommHook, SeesGradientsAndNeverTheSlot) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    TwoWeights module;
    const auto recorder = std::make_shared<Recorder>();
    GradientReducer reducer(PlacedParameters(module, mesh), {.comm_hook = recorder});
    run_backward(reducer, module.a.sum() + module.b.sum());
    reducer.finish(vote(1));
    EXPECT_THAT(recorder->sizes, ElementsAre(2 + 3));
    EXPECT_THAT(recorder->events, ElementsAre("start 0", "finish 0"));
    EXPECT_TRUE(torch::equal(module.b.grad(), filled(3, 1)));
  });
}

/// A hook of a user: leaves out the sum, and gives twice this rank's own.
class Twice final : public CommHook {
 public:
  void start(at::Tensor& bucket, int, const ProcessGroup&) override { bucket.mul_(2); }
  void finish(int) override {}
};

TEST(CommHook, DecidesWhatTheGradientsBecome) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    TwoWeights module;
    GradientReducer reducer(PlacedParameters(module, mesh),
                            {.comm_hook = std::make_shared<Twice>()});
    run_backward(reducer, module.a.sum() * (world->rank() + 1));
    reducer.finish(vote(1));
    EXPECT_TRUE(torch::equal(module.a.grad(), filled(2, world->rank() + 1)));
    EXPECT_FALSE(module.b.grad().defined());
  });
}

TEST(CompressTo, RoundsToTheNarrowTypeAndNoMore) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    run_thread_ranks(3, [&](const std::shared_ptr<World>& world) {
      const DeviceMesh mesh(data_axis(), world);
      torch::nn::Linear layer(16, 16);
      GradientReducer reducer(PlacedParameters(*layer, mesh), {.comm_hook = compress_to(dtype)});
      const auto input = torch::linspace(-1, 1, 16).mul(world->rank() + 1).reshape({1, 16});
      for (int step = 0; step < 2; ++step) {
        layer->zero_grad();
        const auto before = world->counters().total().bytes;
        run_backward(reducer, layer->forward(input).sum());
        reducer.finish(vote(1));
        const auto exact = torch::linspace(-1, 1, 16).mul(2).expand({16, 16});
        // Each of three terms and two sums is rounded to a relative 2^-9 (bfloat16) or 2^-12 of at
        // most the largest partial sum, 2; float16 once more, for its division.
        const double unit = dtype == torch::kBFloat16 ? 0x1p-9 : 0x1p-11;
        EXPECT_LE((layer->weight.grad() - exact).abs().max().item<double>(), 5 * 2 * unit);
        EXPECT_GT((layer->weight.grad() - exact).abs().max().item<double>(), 0);
        // 16 x 16 + 16 gradients of 2 bytes, and the slot's numbers of 8.
        if (step == 1) {
          EXPECT_EQ(world->counters().total().bytes - before, 272 * 2 + slot_size(2) * 8);
        }
      }
    });
  }
}

TEST(CompressTo, SumsFloat16WithoutOverflow) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(mesh_axes(1, 2), world);
    auto bucket = torch::full({4}, 40000.0);  // The sum, 80000, is beyond float16.
    const auto hook = compress_to(torch::kHalf);
    hook->start(bucket, 0, mesh.model_group());
    hook->finish(0);
    EXPECT_TRUE(torch::equal(bucket, torch::full({4}, 80000.0)));
  });
}

TEST(CompressTo, RefusesOtherDtypesAndComplexGradients) {
  EXPECT_THROW(compress_to(torch::kFloat), ConfigError);
  EXPECT_THROW(compress_to(torch::kInt), ConfigError);
  auto bucket = torch::zeros({2}, torch::kComplexDouble);
  const auto group = World::single()->all();
  EXPECT_THROW(compress_to(torch::kBFloat16)->start(bucket, 0, group), ConfigError);
}

}  // namespace
}  // namespace fulmen
