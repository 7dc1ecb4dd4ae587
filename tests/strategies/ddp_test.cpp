// DdpStrategy under a Trainer, on ranks that are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/strategies/ddp_ranks.h"

namespace fulmen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// faults.md 6: rank 0 has 1 token with loss sum 4, rank 1 has 3 tokens with loss sum 0.
TEST(Ddp, WeighsLossesByTheirTokens) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    auto module = std::make_shared<Toy>();
    module->step = [&](Toy& toy, Batch&, std::int64_t) -> StepOutput {
      return world->rank() == 0 ? StepOutput(toy.w * 4.0, 1.0) : StepOutput(toy.w * 0.0, 3.0);
    };
    Trainer(own_data(world)).fit(module, singles({0}));
    EXPECT_EQ(module->value(), -1.0);
  });
}

// faults.md 7: rank 0 has 3 samples of gradient 1, rank 1 has 1 sample of gradient 5.
TEST(Ddp, WeighsMeansByRowsIfToldSo) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    auto options = own_data(world);
    options.window_weighting = WindowWeighting::kRows;
    auto module = std::make_shared<Toy>();
    std::vector<Batch> data{world->rank() == 0 ? column({1, 1, 1}) : column({5})};
    Trainer(options).fit(module, data);
    EXPECT_EQ(module->value(), -2.0);
  });
}

// faults.md 12
TEST(Ddp, NamesTheFirstDifferenceOfModelsOnAllRanks) {
  const auto errors = errors_of(3, [](const std::shared_ptr<World>& world) {
    auto module = std::make_shared<Toy>();
    if (world->rank() == 1) module->register_parameter("extra", torch::zeros({2}));
    Trainer(own_data(world)).fit(module, singles({1}));
  });
  for (const auto& error : errors) {
    EXPECT_EQ(error, errors.front());
    EXPECT_THAT(error, HasSubstr("extra"));
    EXPECT_THAT(error, HasSubstr("rank 1"));
  }
}

// faults.md 11
TEST(Ddp, FindsAParameterThatWasReplaced) {
  const auto errors = errors_of(2, [](const std::shared_ptr<World>& world) {
    auto module = std::make_shared<Toy>();
    torch::nn::Linear layer(1, 1);
    module->register_module("layer", layer);
    layer->to(torch::kDouble);
    module->step = [layer](Toy& toy, Batch& batch, std::int64_t batch_idx) mutable -> StepOutput {
      if (batch_idx == 1) {
        auto fresh = torch::ones({1, 1}, torch::dtype(torch::kDouble).requires_grad(true));
        tie_weights(fresh, layer->weight, *layer);
      }
      return toy.loss(batch) + layer->forward(batch.tensors[0].reshape({-1, 1})).mean();
    };
    Trainer(own_data(world)).fit(module, singles({1, 2, 3}));
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error, HasSubstr("layer.weight was replaced"));
  }
}

TEST(Ddp, NamesAParameterThatShouldHaveBeenMarkedAsShared) {
  const auto errors = errors_of(2, [](const std::shared_ptr<World>& world) {
    auto module = std::make_shared<Toy>();
    Trainer(own_data(world, {{.name = "data", .size = 1}, {.name = "model", .size = 2}}))
        .fit(module, singles({1.0 + world->rank()}));
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error, HasSubstr("w"));
    EXPECT_THAT(error, HasSubstr("mark_as_shared"));
    EXPECT_THAT(error, HasSubstr("\"model\""));
  }
}

// faults.md 94
TEST(Ddp, RanksThatReturnNoLossTakePart) {
  run_thread_ranks(3, [](const std::shared_ptr<World>& world) {
    auto module = std::make_shared<Toy>();
    module->step = [&](Toy& toy, Batch& batch, std::int64_t batch_idx) -> StepOutput {
      if (world->rank() == batch_idx) return {};
      return toy.loss(batch);
    };
    Trainer trainer(own_data(world));
    trainer.fit(module, singles({6, 6, 6, 6}));
    EXPECT_EQ(module->value(), -24.0);
    EXPECT_EQ(trainer.progress().global_step, 4);
  });
}

// faults.md 94 too: it used to be a hang elsewhere.
TEST(Ddp, ALossWithoutAGraphOnOneRankIsAnErrorOnAll) {
  const auto errors = errors_of(2, [](const std::shared_ptr<World>& world) {
    auto module = std::make_shared<Toy>();
    module->step = [&](Toy& toy, Batch& batch, std::int64_t) -> StepOutput {
      const auto loss = toy.loss(batch);
      return world->rank() == 1 ? loss.detach() : loss;
    };
    Trainer(own_data(world)).fit(module, singles({6, 6}));
  });
  EXPECT_THAT(errors[1], HasSubstr("returned a loss without a graph in batch 0"));
  EXPECT_THAT(errors[0], HasSubstr("ank 1"));
}

TEST(Ddp, EndsAnEpochWhereTheLongestRankEnds) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    auto module = std::make_shared<Toy>();
    Trainer trainer(own_data(world));
    trainer.fit(module, world->rank() == 0 ? singles({1, 2, 3}) : singles({5}));
    EXPECT_EQ(module->value(), -(3.0 + 2.0 + 3.0));
    EXPECT_EQ(trainer.progress().global_step, 3);
    EXPECT_EQ(module->training_steps, world->rank() == 0 ? 3 : 1);
  });
}

TEST(Ddp, EndsAnEpochWhereTheShortestRankEndsIfToldSo) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    auto options = own_data(world);
    options.uneven_data = UnevenData::kStopAtShortest;
    options.max_epochs = 2;
    auto module = std::make_shared<Toy>();
    Trainer trainer(options);
    trainer.fit(module, world->rank() == 0 ? singles({1, 2, 3}) : singles({5}));
    EXPECT_EQ(module->value(), -2 * 3.0);
    EXPECT_EQ(trainer.progress().global_step, 2);
    EXPECT_EQ(module->training_steps, 2);
  });
}

TEST(Ddp, RefusesARankWithoutAnyBatchOnAllRanks) {
  const auto errors = errors_of(3, [](const std::shared_ptr<World>& world) {
    const DataLoader loader(tensor_dataset({torch::ones({2, 1}, torch::kDouble)}),
                            {.batch_size = 4});
    Trainer(quiet(world)).fit(std::make_shared<Toy>(), loader);
  });
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("has no batch"));
}

TEST(Ddp, RefusesALoaderThatCannotBeSharedOut) {
  const auto errors = errors_of(2, [](const std::shared_ptr<World>& world) {
    Trainer(quiet(world)).fit(std::make_shared<Toy>(), singles({1, 2}));
  });
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("use_distributed_sampler = false"));
}

// faults.md 81: each sample once in an epoch, another order in each.
TEST(Ddp, SharesOutEachSampleOnceInOneOrderForAllRanks) {
  for (const int ranks : {1, 2, 3, 4}) {
    std::mutex mutex;
    std::map<std::pair<int, int>, std::vector<double>> seen;
    std::map<int, std::vector<std::vector<double>>> steps;
    run_thread_ranks(ranks, [&](const std::shared_ptr<World>& world) {
      auto options = quiet(world);
      options.max_epochs = 2;
      auto module = std::make_shared<Toy>();
      module->step = [&](Toy& toy, Batch& batch, std::int64_t) -> StepOutput {
        const auto values = batch.tensors[0].reshape(-1);
        const std::lock_guard<std::mutex> lock(mutex);
        auto& list = seen[{static_cast<int>(toy.current_epoch()), world->rank()}];
        for (std::int64_t i = 0; i < values.numel(); ++i) list.push_back(values[i].item<double>());
        return toy.loss(batch);
      };
      const DataLoader loader(tensor_dataset({torch::arange(23, torch::kDouble)}),
                              {.batch_size = 2, .shuffle = true, .seed = 5});
      Trainer(options).fit(module, loader);
    });
    std::vector<double> orders[2];
    for (const auto& [key, values] : seen)
      orders[key.first].insert(orders[key.first].end(), values.begin(), values.end());
    EXPECT_NE(orders[0], orders[1]) << ranks;
    for (auto& order : orders) {
      std::sort(order.begin(), order.end());
      ASSERT_EQ(order.size(), 23) << ranks;
      for (std::size_t i = 0; i < 23; ++i) EXPECT_EQ(order[i], static_cast<double>(i)) << ranks;
    }
  }
}

// faults.md 27: no padding, true weights, also with more ranks than samples.
TEST(Ddp, EvaluatesEachSampleOnceForAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    run_thread_ranks(ranks, [](const std::shared_ptr<World>& world) {
      auto module = std::make_shared<Toy>(ToyOptions{.w0 = 1});
      const auto scores = torch::tensor({10.0, 0.0, 0.0, 0.0, 0.0}, torch::kDouble);
      Trainer trainer(quiet(world));
      const auto results = trainer.validate(
          module, DataLoader(tensor_dataset({scores}), {.batch_size = 1}), {.verbose = false});
      ASSERT_EQ(results.size(), 1);
      EXPECT_EQ(results[0].at("val_loss"), 2.0);
      const auto few = trainer.validate(
          module, DataLoader(tensor_dataset({scores.slice(0, 0, 1)}), {}), {.verbose = false});
      EXPECT_EQ(few[0].at("val_loss"), 10.0);
    });
  }
}

// faults.md 101, 102: ranks agree on buffers before they evaluate.
TEST(Ddp, EvaluatesWithEqualBuffers) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    struct Counting final : Toy {
      at::Tensor total = register_buffer("total", torch::zeros({}, torch::kDouble));
    };
    auto module = std::make_shared<Counting>();
    module->step = [&](Toy& toy, Batch& batch, std::int64_t) -> StepOutput {
      auto& self = static_cast<Counting&>(toy);
      self.total.add_(batch.tensors[0].sum());
      return toy.loss(batch);
    };
    double at_validation = -1;
    module->eval_step = [&](Toy& toy, Batch&, std::int64_t, std::int64_t) {
      at_validation = static_cast<Counting&>(toy).total.item<double>();
    };
    Trainer(own_data(world)).fit(module, singles({1.0 + world->rank(), 2}), singles({0}));
    EXPECT_EQ(at_validation, 3.0);  // Rank 0's.
  });
}

TEST(Ddp, ReducesForEachStepOfManualOptimization) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    struct Manual final : Toy {
      OptimizationMode optimization_mode() const override { return OptimizationMode::kManual; }
    };
    auto module = std::make_shared<Manual>();
    module->step = [](Toy& toy, Batch& batch, std::int64_t) -> StepOutput {
      toy.optimizer().zero_grad();
      toy.manual_backward(toy.loss(batch));
      toy.clip_gradients(toy.optimizer(), 2.0);  // Of the mean of 1 and 5, not of each.
      toy.step_optimizer(0);
      toy.optimizer().zero_grad();
      toy.manual_backward(toy.loss(batch));
      toy.step_optimizer(0);
      return {};
    };
    Trainer(own_data(world)).fit(module, singles({world->rank() == 0 ? 1.0 : 5.0}));
    EXPECT_NEAR(module->value(), -2.0 - 3.0, 1e-5);  // Clipping divides by norm + 1e-6.
  });
}

TEST(Ddp, CallsHooksInTheOrderOfOneProcess) {
  std::mutex mutex;
  std::map<int, std::vector<std::string>> calls;
  run_thread_ranks(2, [&](const std::shared_ptr<World>& world) {
    struct Watched final : Toy {
      std::vector<std::string> events;
      void configure_sharded_model() override {
        auto one = torch::ones({}, torch::kDouble);
        all_reduce(one, ReduceOp::kSum, current_mesh().data_group());
        events.push_back("configure_sharded_model " + std::to_string(one.item<int>()));
      }
      void setup(Stage) override { events.emplace_back("setup"); }
      OptimizerConfigs configure_optimizers() override {
        events.emplace_back("configure_optimizers");
        return Toy::configure_optimizers();
      }
      void on_fit_start() override { events.emplace_back("on_fit_start"); }
      void on_before_backward(const at::Tensor&) override {
        events.emplace_back("before_backward");
      }
      void on_after_backward() override {
        events.push_back("after_backward " + std::to_string(w.grad().item<int>()));
      }
      void on_before_optimizer_step(Optimizer&) override { events.emplace_back("before_step"); }
      void teardown(Stage) override { events.emplace_back("teardown"); }
    };
    auto module = std::make_shared<Watched>();
    Trainer(own_data(world)).fit(module, singles({world->rank() == 0 ? 2.0 : 4.0}));
    const std::lock_guard<std::mutex> lock(mutex);
    calls[world->rank()] = module->events;
  });
  EXPECT_EQ(calls[0], calls[1]);
  EXPECT_THAT(calls[0],
              ElementsAre("setup",
                          "configure_sharded_model 2",
                          "configure_optimizers",
                          "on_fit_start",
                          "before_backward",
                          "after_backward 3",
                          "before_step",
                          "teardown"));
}

TEST(Ddp, RefusesAModuleOfAnotherMesh) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    auto module = std::make_shared<Toy>();
    Trainer(own_data(world)).fit(module, singles({1}));
    Trainer(own_data(world)).fit(module, singles({1}));
    try {
      Trainer(own_data(world, {{.name = "data", .size = 1}, {.name = "model", .size = 2}}))
          .fit(module, singles({1}));
      ADD_FAILURE() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("ddp(data=2)"));
      EXPECT_THAT(error.what(), HasSubstr("ddp(data=1,model=2)"));
    }
  });
}

TEST(Ddp, RefusesWhatCannotBeBeforeItJoins) {
  EXPECT_THROW(DdpStrategy::make({.timeout = std::chrono::milliseconds(0)}), ConfigError);
  TrainerOptions options;
  options.devices = 3;
  options.strategy =
      DdpStrategy::make({.mesh = {{.name = "data", .size = 2}, {.name = "model", .size = 2}}});
  EXPECT_THROW(Trainer(options).fit(std::make_shared<Toy>(), singles({1})), ConfigError);
  EXPECT_THROW(DdpStrategy::make()->mesh(), ConfigError);
}

// A parameter that one rank does not use moves its bucket to another place between the collectives
// of the module's own backward: they must not meet.
TEST(Ddp, KeepsItsSumsApartFromCollectivesOfTheModule) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    struct Mixed final : LightningModule<> {
      at::Tensor a = register_parameter("a", torch::ones({1}, torch::kDouble));
      at::Tensor b = register_parameter("b", torch::ones({1}, torch::kDouble));
      at::Tensor c = register_parameter("c", torch::ones({1}, torch::kDouble));
      std::optional<ProcessGroup> group;
      void configure_sharded_model() override {
        group = current_mesh().group("model");
        mark_as_shared(b, "model");
        mark_as_shared(c, "model");
      }
      StepOutput training_step(Batch& batch, std::int64_t) override {
        const auto x = batch.tensors[0].sum();
        auto loss = (b * x).sum() + (copy_to_group(a, *group) * x).sum();
        if (group->rank() == 0) loss = loss + (c * x).sum();
        return loss;
      }
      void on_before_optimizer_step(Optimizer&) override {
        EXPECT_EQ(a.grad().item<double>(), 3.0);
        EXPECT_EQ(b.grad().item<double>(), 3.0);
        EXPECT_EQ(c.grad().item<double>(), 1.0);
      }
      OptimizerConfigs configure_optimizers() override { return SGD::make(*this, {.lr = 0.1}); }
    };
    auto options = own_data(world, {{.name = "data", .size = 1}, {.name = "model", .size = 2}});
    options.strategy =
        DdpStrategy::make({.mesh = {{.name = "data", .size = 1}, {.name = "model", .size = 2}},
                           .reducer = {.bucket_cap_bytes = 1, .first_bucket_cap_bytes = 1},
                           .world = world});
    const double x = 1.0 + world->rank();
    Trainer(options).fit(std::make_shared<Mixed>(), singles({x, x, x, x}));
  });
}

}  // namespace
}  // namespace fulmen
