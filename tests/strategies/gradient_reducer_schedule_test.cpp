// When and in what order gradients are summed, and what may disturb it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fulmen/core/distributed/shared_weights.h"
#include "fulmen/core/support/error.h"
#include "tests/strategies/gradient_reducer_cases.h"

namespace fulmen {
namespace {

using testing::ElementsAre;

TEST(GradientReducer, SendsBucketsAndNothingElseInAStep) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    torch::nn::Sequential net(
        torch::nn::Linear(8, 8), torch::nn::Linear(8, 8), torch::nn::Linear(8, 8));
    net->to(torch::kDouble);
    GradientReducer reducer(PlacedParameters(*net, mesh),
                            {.bucket_cap_bytes = 8 * 72, .first_bucket_cap_bytes = 8 * 72});
    for (int step = 0; step < 4; ++step) {
      const auto before = world->counters().total();
      net->zero_grad();
      run_backward(reducer, net->forward(torch::ones({4, 8}, torch::kDouble)).sum());
      reducer.finish(vote(1));
      if (step == 0) continue;  // It learns the order.
      const auto after = world->counters().total();
      EXPECT_EQ(after.calls - before.calls, 3);
      EXPECT_EQ(after.bytes - before.bytes, 8 * (3 * 72 + slot_size(6)));
    }
  });
}

TEST(GradientReducer, StartsBucketsDuringBackwardInTheOrderInWhichGradientsCome) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    TwoWeights module;  // Used in an order that is not the reverse of registration.
    const auto recorder = std::make_shared<Recorder>();
    GradientReducer reducer(PlacedParameters(module, mesh), one_each(recorder));
    EXPECT_TRUE(reducer.plan().empty());
    for (int step = 0; step < 3; ++step) {
      recorder->events.clear();
      module.zero_grad();
      const auto of_b = (module.b * 2).sum();
      const auto of_a = module.a.add(1);  // Made last, so its gradient comes first.
      const auto loss = of_b + of_a.sum();
      reducer.start_backward(GradSync::kNow);
      loss.backward();
      recorder->events.push_back("end of backward");
      reducer.end_backward();
      reducer.finish(vote(1));
    }
    EXPECT_THAT(recorder->events,
                ElementsAre("start 0", "end of backward", "start 1", "finish 0", "finish 1"));
    EXPECT_THAT(reducer.plan(), ElementsAre("a", "b"));
  });
}

TEST(GradientReducer, DoesNotWaitForAParameterThatWasFrozenAfterwards) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    TwoWeights module;
    const auto recorder = std::make_shared<Recorder>();
    GradientReducer reducer(PlacedParameters(module, mesh), one_each(recorder));
    const auto run = [&] {
      module.zero_grad();
      recorder->events.clear();
      const auto loss = module.a.sum() * 2 + module.b.sum();
      reducer.start_backward(GradSync::kNow);
      loss.backward(filled(1, reducer.loss_scale()).reshape({}));
      recorder->events.push_back("end of backward");
      reducer.end_backward();
      reducer.finish(vote(1));
      return recorder->events.front();
    };
    run();
    EXPECT_EQ(run(), "start 0");
    const auto first = reducer.plan().front();
    auto& frozen = first == "a" ? module.a : module.b;
    frozen.set_requires_grad(false);
    EXPECT_EQ(run(), "start 0");
    EXPECT_FALSE(frozen.grad().defined());
    frozen.set_requires_grad(true);
    EXPECT_EQ(run(), "start 0");
    EXPECT_TRUE(torch::equal(module.a.grad(), filled(2, 2)));
    EXPECT_TRUE(torch::equal(module.b.grad(), filled(3, 1)));
  });
}

TEST(GradientReducer, SumsAGradientThatComesLateAndExpectsItFromThenOn) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    TwoWeights module;
    GradientReducer reducer(PlacedParameters(module, mesh), one_each());
    std::vector<std::int64_t> calls;
    for (int step = 0; step < 5; ++step) {
      module.zero_grad();
      const auto before = world->counters().total().calls;
      const auto scale = filled(1, reducer.loss_scale()).reshape({});
      reducer.start_backward(GradSync::kNow);
      ((module.b * 2).sum() + module.b.sum()).backward(scale);  // Used twice, comes once.
      module.a.sum().backward(scale);
      // After steps in which each gradient came once, those of rank 1 come twice.
      if (step > 1 && world->rank() == 1) module.b.sum().backward(scale * 4);
      reducer.end_backward();
      reducer.finish(vote(1));
      calls.push_back(world->counters().total().calls - before);
      EXPECT_TRUE(torch::equal(module.b.grad(), filled(3, step > 1 ? 5 : 3))) << step;
      EXPECT_TRUE(torch::equal(module.a.grad(), filled(2, 1)));
    }
    // The first learns the order (two for the list); the third sums once more.
    EXPECT_THAT(calls, ElementsAre(4, 2, 3, 2, 2));
  });
}

/// Re-entrant checkpointing: the part is run again in backward, with a backward of its own.
struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return (x * weight).sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::AutoGradMode with_graph(true);
    const auto saved = context->get_saved_variables();
    const auto x = saved[0].detach().requires_grad_();
    (x * saved[1]).sum().backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

TEST(GradientReducer, LearnsHowOftenCheckpointedGradientsCome) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    TwoWeights module;
    const auto recorder = std::make_shared<Recorder>();
    GradientReducer reducer(PlacedParameters(module, mesh), one_each(recorder));
    const auto x = filled(3, world->rank() + 1).requires_grad_();
    for (int step = 0; step < 4; ++step) {
      recorder->events.clear();
      module.zero_grad();
      const auto loss = Recompute::apply(x, module.b) + Recompute::apply(x * 3, module.b) +
                        Recompute::apply(x, module.b) + module.a.sum();
      run_backward(reducer, loss);
      reducer.finish(vote(1));
      EXPECT_TRUE(torch::equal(module.b.grad(), filled(3, 1.5 * 5))) << step << module.b.grad();
      EXPECT_TRUE(torch::equal(module.a.grad(), filled(2, 1)));
      EXPECT_EQ(recorder->events.size(), 4u) << step;  // Two starts and no other sum.
    }
  });
}

/// Random gradients of float32, another one on each rank and in each step.
void run_random_step(GradientReducer& reducer, torch::nn::Module& module, int rank, int step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 * rank + step);
  auto loss = torch::zeros({});
  for (auto& parameter : module.parameters())
    loss = loss + (parameter * torch::randn(parameter.sizes(), generator)).sum();
  module.zero_grad();
  run_backward(reducer, loss);
  reducer.finish(vote(1));
}

// Three ranks, since sums of two commute and prove nothing.
TEST(GradientReducer, GivesTheSameBitsFromAPlanThatWasSaved) {
  run_thread_ranks(3, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    const auto make = [] {
      return torch::nn::Sequential(
          torch::nn::Linear(37, 11), torch::nn::Linear(11, 29), torch::nn::Linear(29, 5));
    };
    const GradientReducerOptions options{.bucket_cap_bytes = 1500, .first_bucket_cap_bytes = 700};
    auto net = make();
    GradientReducer reducer(PlacedParameters(*net, mesh), options);
    for (int step = 0; step < 2; ++step) run_random_step(reducer, *net, world->rank(), step);
    const auto plan = reducer.plan();
    ASSERT_EQ(plan.size(), 6u);

    auto resumed = make();
    GradientReducer other(PlacedParameters(*resumed, mesh), options);
    other.set_plan(plan);
    EXPECT_EQ(other.plan(), plan);
    for (int step = 2; step < 5; ++step) {
      run_random_step(reducer, *net, world->rank(), step);
      const auto before = world->counters().total().calls;
      run_random_step(other, *resumed, world->rank(), step);
      EXPECT_EQ(world->counters().of(CollectiveKind::kBroadcast).calls,
                2);  // Only the first learns.
      EXPECT_GE(world->counters().total().calls - before, 3);
      for (std::size_t i = 0; i < net->parameters().size(); ++i)
        EXPECT_TRUE(torch::equal(net->parameters()[i].grad(), resumed->parameters()[i].grad()));
    }
    EXPECT_EQ(other.plan(), plan);
  });
}

TEST(GradientReducer, RefusesAPlanThatIsNoPermutation) {
  TwoWeights module;
  GradientReducer reducer{PlacedParameters(module, DeviceMesh(data_axis(), World::single()))};
  EXPECT_THROW(reducer.set_plan({"a"}), ConfigError);
  EXPECT_THROW(reducer.set_plan({"a", "a"}), ConfigError);
  EXPECT_THROW(reducer.set_plan({"a", "b", "c"}), ConfigError);
  EXPECT_TRUE(reducer.plan().empty());
  reducer.set_plan({"a", "b"});
  EXPECT_THAT(reducer.plan(), ElementsAre("a", "b"));
}

TEST(GradientReducer, TakesOpenGradientsOfACheckpointIntoThePlanOfTheCheckpoint) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    TwoWeights module;
    GradientReducer reducer(PlacedParameters(module, mesh), one_each());
    // What one micro-batch left, scaled; then the next one goes on. Rank 1 has nothing more.
    module.a.mutable_grad() = filled(2, 4 * reducer.loss_scale());
    module.b.mutable_grad() = filled(3, (1 + world->rank()) * reducer.loss_scale());
    reducer.set_plan({"a", "b"});
    if (world->rank() == 0) run_backward(reducer, module.a.sum() * 3);
    reducer.finish(vote(world->rank() == 0 ? 2 : 1));
    EXPECT_TRUE(torch::allclose(module.a.grad(), filled(2, (4 + 3 + 4) / 3.0), 0, 1e-15));
    EXPECT_TRUE(torch::allclose(module.b.grad(), filled(3, (1 + 2) / 3.0), 0, 1e-15));
  });
}

TEST(GradientReducer, MovesOpenGradientsWhenThePlanChanges) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    TwoWeights module;
    GradientReducer reducer(PlacedParameters(module, mesh), one_each());
    run_backward(reducer, module.a.sum() + module.b.sum() * 2);
    reducer.finish(vote(1));  // Gradients are views of buckets that the next window replaces.
    const auto plan = reducer.plan();
    reducer.set_plan({plan[1], plan[0]});
    run_backward(reducer, module.a.sum() * (world->rank() + 1));
    EXPECT_TRUE(torch::equal(module.b.grad(), filled(3, 2 * reducer.loss_scale())));
    reducer.finish(vote(1));
    // Not zeroed: as in one process the second is added to the first.
    EXPECT_TRUE(torch::equal(module.a.grad(), filled(2, 1 + 1.5)));
    EXPECT_TRUE(torch::equal(module.b.grad(), filled(3, 2)));
  });
}

TEST(GradientReducer, GoesOnAfterABackwardThatThrewOnAllRanks) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    TwoWeights module;
    const auto recorder = std::make_shared<Recorder>();
    GradientReducer reducer(PlacedParameters(module, mesh), one_each(recorder));
    for (int step = 0; step < 5; ++step) {
      module.zero_grad();
      recorder->events.clear();
      const auto of_b = module.b * (world->rank() + 1);
      const auto of_a = module.a * 2;  // Its gradient comes first.
      if (step == 2) {
        of_b.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("no"); });
      }
      try {
        run_backward(reducer, of_b.sum() + of_a.sum());
      } catch (const std::exception&) {
        EXPECT_EQ(step, 2);
        EXPECT_THAT(recorder->events, ElementsAre("start 0"));
        continue;
      }
      reducer.finish(vote(1));
      EXPECT_TRUE(torch::equal(module.a.grad(), filled(2, 2))) << step;
      EXPECT_TRUE(torch::equal(module.b.grad(), filled(3, 1.5))) << step;
    }
  });
}

TEST(GradientReducer, LeavesGraphsAloneThatOutliveIt) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(data_axis(), world);
    TwoWeights module;
    const auto loss = module.a.sum() * (world->rank() + 1);
    {
      GradientReducer reducer{PlacedParameters(module, mesh)};
      const auto other = module.a.sum();
      run_backward(reducer, other);
      reducer.finish(vote(1));
    }
    module.zero_grad();
    loss.backward();
    EXPECT_TRUE(torch::equal(module.a.grad(), filled(2, world->rank() + 1)));
  });
}

TEST(GradientReducer, RefusesAParameterThatWasFrozenAtTheStart) {
  TwoWeights module;
  module.a.set_requires_grad(false);
  GradientReducer reducer{PlacedParameters(module, DeviceMesh(data_axis(), World::single()))};
  reducer.start_backward(GradSync::kNow);
  reducer.end_backward();
  module.a.set_requires_grad(true);
  try {
    reducer.start_backward(GradSync::kNow);
    ADD_FAILURE() << "accepted";
  } catch (const TrainingError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("a was frozen"));
  }
}

}  // namespace
}  // namespace fulmen
