// The numbers: gradient of a step = sum of weight * (sum over shared axes) / sum of weights.
#include "fulmen/strategies/gradient_reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fulmen/core/distributed/shared_weights.h"
#include "fulmen/core/support/error.h"
#include "tests/strategies/gradient_reducer_cases.h"

namespace fulmen {
namespace {

using testing::HasSubstr;

void backward(
    GradientReducer& reducer, const at::Tensor& w, double x, GradSync sync, double weight = 1) {
  run_backward(reducer, (w * x).sum(), sync, weight);
}

double x_of(int d, int m) {
  const double inputs[2][2] = {{1, 2}, {3, 5}};
  return inputs[d][m];
}

// reference/strategies.md 1.2: sample 0 gives 1 + 2, sample 1 gives 3 + 5, the mean is 5.5.
TEST(GradientReducer, SumsOverModelRanksAndAveragesOverDataRanksOnce) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(mesh_axes(2, 2), world);
    OneWeight module;
    mark_as_shared(module, "model");
    GradientReducer reducer{PlacedParameters(module, mesh)};
    const double x = x_of(mesh.coordinate("data"), mesh.coordinate("model"));
    for (int step = 0; step < 3; ++step) {
      module.zero_grad();
      backward(reducer, module.w, x, GradSync::kNow);
      const auto verdict = reducer.finish(vote(1));
      EXPECT_TRUE(verdict.has_loss);
      EXPECT_EQ(module.w.grad().item<double>(), 5.5) << "step " << step;
    }
  });
}

TEST(GradientReducer, AddsUpMicroBatchesAndReducesOnce) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(mesh_axes(2, 2), world);
    OneWeight module;
    mark_as_shared(module, "model");
    GradientReducer reducer{PlacedParameters(module, mesh)};
    const double x = x_of(mesh.coordinate("data"), mesh.coordinate("model"));
    for (int step = 0; step < 3; ++step) {
      module.zero_grad();
      const auto before = world->counters().of(CollectiveKind::kAllReduce).calls;
      backward(reducer, module.w, x, GradSync::kDefer);
      EXPECT_EQ(world->counters().of(CollectiveKind::kAllReduce).calls, before);
      backward(reducer, module.w, x, GradSync::kNow);
      reducer.finish(vote(1));  // Of one micro-batch: the sum of both, 2 * 5.5.
      EXPECT_EQ(module.w.grad().item<double>(), 11.0);
    }
  });
}

/// What each rank has in micro-batch k of a step: its inputs for the weights a and b, and its
/// weight, which is the same along "model".
struct Micro {
  at::Tensor of_a;
  at::Tensor of_b;
  double weight;
};
Micro micro_of(int step, int k, int d, int m) {
  const double seed = 1 + step * 1000 + k * 100 + d * 10 + m;
  return {.of_a = torch::arange(1, 3, torch::kDouble).mul(seed).sin(),
          .of_b = torch::arange(1, 4, torch::kDouble).mul(1 + d + 10 * k + step).cos(),
          .weight = 1.0 + (3 * d + 5 * k + step) % 7};
}

// a is shared over "model": terms of a sum. b is replicated: whole gradients, equal there.
TEST(GradientReducer, EqualsTheWeightedMeanOfAllSamplesOnEveryMesh) {
  struct Shape {
    int data;
    int model;
  };
  for (const Shape shape : {Shape{1, 1}, {1, 2}, {2, 1}, {1, 3}, {3, 1}, {2, 2}, {1, 4}}) {
    const int data = shape.data;
    const int model = shape.model;
    SCOPED_TRACE(testing::Message() << data << "x" << model);
    run_thread_ranks(data * model, [&](const std::shared_ptr<World>& world) {
      const DeviceMesh mesh(mesh_axes(data, model), world);
      TwoWeights module;
      mark_as_shared(module.a, "model");
      GradientReducer reducer(PlacedParameters(module, mesh), one_each());
      for (int step = 0; step < 4; ++step) {
        const int micros = 1 + step % 3;
        module.zero_grad();
        double weight = 0;
        const auto before = world->counters().total().calls;
        for (int k = 0; k < micros; ++k) {
          EXPECT_EQ(world->counters().total().calls, before);
          const auto x = micro_of(step, k, mesh.coordinate("data"), mesh.coordinate("model"));
          weight += x.weight;
          run_backward(reducer,
                       (module.a * x.of_a).sum() + (module.b * x.of_b).sum(),
                       k + 1 < micros ? GradSync::kDefer : GradSync::kNow,
                       x.weight);
        }
        reducer.finish(vote(weight));
        auto of_a = filled(2, 0);
        auto of_b = filled(3, 0);
        double total = 0;
        for (int k = 0; k < micros; ++k) {
          for (int d = 0; d < data; ++d) {
            for (int m = 0; m < model; ++m) {
              const auto x = micro_of(step, k, d, m);
              of_a += x.of_a * x.weight;
              if (m == 0) of_b += x.of_b * x.weight;
              if (m == 0) total += x.weight;
            }
          }
        }
        // At most 12 terms below 7 and as many roundings, each of a relative 2^-53.
        EXPECT_TRUE(torch::allclose(module.a.grad(), of_a / total, 0, 12 * 12 * 7 * 0x1p-53));
        EXPECT_TRUE(torch::allclose(module.b.grad(), of_b / total, 0, 12 * 12 * 7 * 0x1p-53));
      }
    });
  }
}

// reference/faults.md 7: rank 0 has 3 samples of gradient 1, rank 1 one of gradient 5; and 6: rank
// 0 has one token with a loss sum of 4, rank 1 three tokens with 0.
TEST(GradientReducer, WeighsRanksByTheirSamples) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    OneWeight module;
    GradientReducer reducer{PlacedParameters(module, mesh)};
    const bool first = world->rank() == 0;
    backward(reducer, module.w, first ? 1 : 5, GradSync::kNow, first ? 3 : 1);
    reducer.finish(vote(first ? 3 : 1));
    EXPECT_EQ(module.w.grad().item<double>(), 2.0);
    module.zero_grad();
    backward(reducer, module.w, first ? 4 : 0, GradSync::kNow, first ? 1 : 3);
    // As a tensor, and in two parts.
    reducer.finish(
        {.weight = {.number = first ? 0.0 : 1.0, .tensor = torch::tensor(first ? 1.0 : 2.0)},
         .has_loss = true});
    EXPECT_EQ(module.w.grad().item<double>(), 1.0);
  });
}

TEST(GradientReducer, LetsARankOutOfDataTakePartWithWeightZero) {
  run_thread_ranks(3, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    OneWeight module;
    GradientReducer reducer{PlacedParameters(module, mesh)};
    for (int step = 0; step < 4; ++step) {
      module.zero_grad();
      const bool idle = world->rank() == step % 3;
      if (!idle) backward(reducer, module.w, 6.0 * (world->rank() + 1), GradSync::kNow);
      const auto verdict = reducer.finish(vote(idle ? 0 : 1));
      EXPECT_TRUE(verdict.has_loss);
      const double expected = (6.0 * 6 - 6.0 * (step % 3 + 1)) / 2;
      EXPECT_DOUBLE_EQ(module.w.grad().item<double>(), expected) << step;
    }
    EXPECT_FALSE(reducer.finish(vote(0)).has_loss);
  });
}

TEST(GradientReducer, ReducesWhatOneRankDidNotUseAndLeavesWhatNobodyUsed) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    struct Three : TwoWeights {
      at::Tensor c = register_parameter("c", torch::zeros({2}, torch::kDouble));
    };
    Three module;
    GradientReducer reducer(PlacedParameters(module, mesh), one_each());
    for (int step = 0; step < 6; ++step) {
      module.zero_grad();
      // c is there in the first steps alone, also in the bucket that carries the slot.
      const bool uses_c = step < 2;
      auto loss = module.a.sum() * 2;
      if (world->rank() == step % 2) loss = loss + module.b.sum() * 8;
      if (uses_c) loss = loss + module.c.sum();
      run_backward(reducer, loss);
      reducer.finish(vote(1));
      EXPECT_TRUE(torch::equal(module.a.grad(), filled(2, 2)));
      ASSERT_TRUE(module.b.grad().defined());
      EXPECT_TRUE(torch::equal(module.b.grad(), filled(3, 4)));
      EXPECT_EQ(module.c.grad().defined(), uses_c) << step;
    }
  });
}

TEST(GradientReducer, KeepsAGradientOfAnEarlierMicroBatchOnly) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    TwoWeights module;
    GradientReducer reducer(PlacedParameters(module, mesh), one_each());
    for (int step = 0; step < 3; ++step) {
      module.zero_grad();
      run_backward(reducer, module.b.sum() * (world->rank() == 0 ? 3 : 5), GradSync::kDefer);
      run_backward(reducer, module.a.sum());
      reducer.finish(vote(2));
      EXPECT_TRUE(torch::equal(module.a.grad(), filled(2, 0.5)));
      EXPECT_TRUE(torch::equal(module.b.grad(), filled(3, 2)));
    }
  });
}

TEST(GradientReducer, AgreesOnVotesOfAnyRank) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(mesh_axes(2, 2), world);
    OneWeight module;  // Not shared: its group is the data axis, so votes need the world.
    GradientReducer reducer{PlacedParameters(module, mesh)};
    for (int who = 0; who < 4; ++who) {
      module.zero_grad();
      backward(reducer, module.w, 1, GradSync::kNow);
      const bool me = world->rank() == who;
      const auto verdict = reducer.finish({.weight = {.number = 1},
                                           .has_loss = true,
                                           .skip = me,
                                           .stop = me && who == 3,
                                           .finish = me && who == 2,
                                           .validate = me && who == 1});
      EXPECT_TRUE(verdict.skip);
      EXPECT_EQ(verdict.stop, who == 3);
      EXPECT_EQ(verdict.finish, who == 2);
      EXPECT_EQ(verdict.validate, who == 1);
      EXPECT_EQ(module.w.grad().item<double>(), 1.0);
    }
    EXPECT_FALSE(reducer.finish({}).has_loss);
  });
}

TEST(GradientReducer, SumsBfloat16InFloat32AndWeightsUnrounded) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(mesh_axes(2, 2), world);
    torch::nn::Linear layer(torch::nn::LinearOptions(4, 1).bias(false));
    layer->to(torch::kBFloat16);
    mark_as_shared(*layer, "model");
    GradientReducer reducer(PlacedParameters(*layer, mesh), {.reduce_dtype = torch::kFloat});
    const auto run = [&](double gradient, double weight) {
      layer->zero_grad();
      run_backward(reducer, (layer->weight * gradient).sum(), GradSync::kNow, weight);
      const auto before = world->counters().total().bytes;
      reducer.finish(vote(weight));
      EXPECT_EQ(layer->weight.grad().scalar_type(), torch::kBFloat16);
      const auto value = layer->weight.grad()[0][0].item<double>();
      return std::pair{value, world->counters().total().bytes - before};
    };
    run(0, 1);
    // 512, 2, 2, 2, halved in backward: in bfloat16 256 + 1 is 256, so some order loses 1 or 2.
    const auto [value, bytes] = run(world->rank() == 0 ? 512 : 2, 1);
    EXPECT_EQ(value, 260);  // 259 in bfloat16.
    EXPECT_EQ(bytes, 4 * (4 + slot_size(1)));
    // The sum of weights, 259, is 260 in bfloat16, and would make 1.9922 of the 2.
    EXPECT_EQ(run(1, mesh.data_rank() == 0 ? 256 : 3).first, 2);
  });
}

TEST(GradientReducer, GivesGradientsOfAGroupOfOneRankNoCollective) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(mesh_axes(1, 2), world);
    TwoWeights module;  // Replicated over "model": nothing to sum.
    GradientReducer reducer(PlacedParameters(module, mesh), one_each());
    for (int step = 0; step < 3; ++step) {
      module.zero_grad();
      run_backward(reducer, module.a.sum() * 3, GradSync::kDefer, 2);
      run_backward(reducer, module.a.sum() * 3, GradSync::kNow, 4);
      const auto before = world->counters().total().bytes;
      reducer.finish(vote(6));
      EXPECT_TRUE(torch::equal(module.a.grad(), filled(2, 3)));
      EXPECT_FALSE(module.b.grad().defined());
      if (step > 0) {
        EXPECT_EQ(world->counters().total().bytes - before, 8 * slot_size(0));
      }
    }
  });
}

TEST(GradientReducer, RefusesASparseGradientByNameUnlessItIsThisRanksAlone) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const auto run = [&](const DeviceMesh& mesh) {
      torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true));
      GradientReducer reducer{PlacedParameters(*embedding, mesh)};
      run_backward(reducer, embedding->forward(torch::tensor({1, 2})).sum());
      reducer.finish(vote(1));
      EXPECT_TRUE(embedding->weight.grad().is_sparse());
    };
    try {
      run(DeviceMesh(data_axis(), world));
      ADD_FAILURE() << "accepted";
    } catch (const TrainingError& error) {
      EXPECT_THAT(error.what(), HasSubstr("weight has a sparse gradient"));
    }
    run(DeviceMesh(mesh_axes(1, 2), world));
  });
}

TEST(GradientReducer, ReduceNowEqualsAWindowOfOneMicroBatch) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(mesh_axes(2, 2), world);
    struct Three : TwoWeights {
      at::Tensor c = register_parameter("c", torch::zeros({2}, torch::kDouble));
    };
    Three module;
    mark_as_shared(module.a, "model");
    GradientReducer reducer{PlacedParameters(module, mesh)};
    const auto loss = [&] {
      auto result = module.a.sum() * (1 + world->rank());
      if (mesh.data_rank() == 1) result = result + module.b.sum() * 3;
      return result;
    };
    run_backward(reducer, loss());
    reducer.finish(vote(1));
    const auto a = module.a.grad().clone();
    const auto b = module.b.grad().clone();
    EXPECT_TRUE(torch::equal(a, filled(2, 5)));
    EXPECT_TRUE(torch::equal(b, filled(3, 1.5)));
    for (int step = 0; step < 2; ++step) {
      module.zero_grad();
      reducer.start_backward(GradSync::kManual);
      loss().backward();
      reducer.end_backward();
      const auto before = world->counters().total().calls;
      reducer.reduce_now(module.parameters());
      EXPECT_EQ(world->counters().total().calls - before, 2);  // A group each.
      EXPECT_TRUE(torch::equal(module.a.grad(), a));
      EXPECT_TRUE(torch::equal(module.b.grad(), b));
      EXPECT_FALSE(module.c.grad().defined());
    }
    module.zero_grad();
    reducer.start_backward(GradSync::kManual);
    loss().backward();
    reducer.end_backward();
    const std::vector<at::Tensor> only_b = {module.b};
    reducer.reduce_now(only_b);
    EXPECT_TRUE(torch::equal(module.a.grad(), filled(2, 1 + world->rank())));
    EXPECT_TRUE(torch::equal(module.b.grad(), b));
  });
}

TEST(GradientReducer, RefusesOptionsThatCannotBe) {
  OneWeight module;
  const DeviceMesh mesh(data_axis(), World::single());
  const PlacedParameters placed(module, mesh);
  EXPECT_THROW(GradientReducer(placed, {.bucket_cap_bytes = 0}), ConfigError);
  EXPECT_THROW(GradientReducer(placed, {.first_bucket_cap_bytes = -1}), ConfigError);
  EXPECT_THROW(GradientReducer(placed, {.reduce_dtype = torch::kInt}), ConfigError);
  EXPECT_THROW(
      GradientReducer(placed,
                      {.reduce_dtype = torch::kFloat, .comm_hook = compress_to(torch::kBFloat16)}),
      ConfigError);
  module.w.set_requires_grad(false);
  EXPECT_THROW(GradientReducer{PlacedParameters(module, mesh)}, ConfigError);
}

}  // namespace
}  // namespace fulmen
