// Corners in which the numbers of several ranks went apart from those of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/strategies/ddp_ranks.h"
#include "tests/support/run_program.h"

namespace fulmen {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

std::vector<MeshAxis> mesh(int data, int model) {
  return {{.name = "data", .size = data}, {.name = "model", .size = model}};
}

/// strategies.md 1.2: w * x with a term of w's gradient on each model rank; the right one is 5.5.
double golden(const DeviceMesh& mesh) {
  const double inputs[2][2] = {{1, 2}, {3, 5}};
  return inputs[mesh.coordinate("data")][mesh.coordinate("model")];
}

class SharedToy : public Toy {
 public:
  explicit SharedToy(ToyOptions options = {}) : Toy(options) {}
  void configure_sharded_model() override {
    mark_as_shared(w, "model");
    x = golden(current_mesh());
  }
  double x = 0;
};

class ManualToy final : public SharedToy {
 public:
  OptimizationMode optimization_mode() const override { return OptimizationMode::kManual; }
};

TEST(DdpNumbers, AManualBackwardAddsToReducedGradientsAsInOneProcess) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    auto module = std::make_shared<ManualToy>();
    module->step = [&](Toy& toy, Batch&, std::int64_t batch_idx) -> StepOutput {
      if (batch_idx == 0) toy.optimizer().zero_grad();
      for (int i = 1; i <= 2; ++i) {
        toy.manual_backward(toy.w * module->x);
        toy.clip_gradients(toy.optimizer(), 1000.0);  // Reads them: they are reduced here.
        toy.step_optimizer(0);
        EXPECT_EQ(toy.w.grad().item<double>(), (static_cast<double>(batch_idx * 2 + i)) * 5.5);
      }
      return {};
    };
    Trainer(own_data(world, mesh(2, 2))).fit(module, singles({1, 1}));
    EXPECT_EQ(module->value(), -(1 + 2 + 3 + 4) * 5.5);
  });
}

TEST(DdpNumbers, AParameterOfTwoOptimizersIsReducedOnce) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    auto module = std::make_shared<ManualToy>();
    module->optimizers = [](Toy& toy) -> OptimizerConfigs {
      return {{.optimizer = SGD::make(toy, {.lr = 1})}, {.optimizer = SGD::make(toy, {.lr = 1})}};
    };
    module->step = [&](Toy& toy, Batch&, std::int64_t) -> StepOutput {
      toy.manual_backward(toy.w * module->x);
      toy.step_optimizer(0);
      toy.step_optimizer(1);
      return {};
    };
    Trainer(own_data(world, mesh(2, 2))).fit(module, singles({1}));
    EXPECT_EQ(module->value(), -2 * 5.5);
  });
}

// Open gradients that are those of all ranks come back from a checkpoint as such.
TEST(DdpNumbers, ManualGradientsThatWereReducedResumeAsReduced) {
  const TemporaryFolder folder;
  const auto place = (folder.path() / "half").string();
  run_thread_ranks(4, [&](const std::shared_ptr<World>& world) {
    const auto train = [&](std::int64_t epochs, const FitOptions& fit) {
      auto module = std::make_shared<ManualToy>();
      module->step = [&](Toy& toy, Batch&, std::int64_t) -> StepOutput {
        toy.manual_backward(toy.w * module->x);
        toy.step_optimizer(0);
        return {};
      };
      auto options = own_data(world, mesh(2, 2));
      options.max_epochs = epochs;
      Trainer trainer(options);
      trainer.fit(module, singles({1}), {}, fit);
      if (epochs == 1) trainer.save_checkpoint(place);
      return module->value();
    };
    EXPECT_EQ(train(1, {}), -5.5);
    EXPECT_EQ(train(2, {.checkpoint = place}), -(1 + 2) * 5.5);
  });
}

/// A second parameter that the loss uses, in no optimizer: nobody zeroes its gradient.
class LeftOutToy final : public SharedToy {
 public:
  explicit LeftOutToy(bool shares) : shares_(shares) {
    optimizers = [](Toy& toy) -> OptimizerConfigs {
      return SGD::make(std::vector{toy.w}, {.lr = 1});
    };
    step = [this](Toy& toy, Batch&, std::int64_t) -> StepOutput { return (toy.w + v) * x; };
  }
  void configure_sharded_model() override {
    SharedToy::configure_sharded_model();
    if (shares_) mark_as_shared(v, "model");
    if (!shares_) mark_placement(v, "model", local());
  }
  void on_after_backward() override { sums.push_back(v.grad().item<double>()); }

  at::Tensor v = register_parameter("v", torch::zeros({}, torch::kDouble));
  std::vector<double> sums;

 private:
  bool shares_;
};

TEST(DdpNumbers, TheGradientOfAParameterInNoOptimizerAddsUpAsInOneProcess) {
  for (const bool shares : {true, false}) {
    run_thread_ranks(4, [shares](const std::shared_ptr<World>& world) {
      auto module = std::make_shared<LeftOutToy>(shares);
      Trainer(own_data(world, mesh(2, 2))).fit(module, singles({1, 1, 1}));
      // On its own each model rank has the mean over data: of 1 and 3, or of 2 and 5.
      const double each = shares ? 5.5 : (module->x == 1 || module->x == 3 ? 2.0 : 3.5);
      EXPECT_EQ(module->sums, (std::vector<double>{each, 2 * each, 3 * each}));
      EXPECT_EQ(module->value(), -3 * 5.5);
    });
  }
}

// faults.md C: an inf in the part of one rank alone.
class ScaledToy final : public Toy {
 public:
  ScaledToy() : Toy({.dtype = torch::kFloat}) {
    step = [this](Toy& toy, Batch& batch, std::int64_t batch_idx) -> StepOutput {
      const bool bursts = rank == 1 && batch_idx == 0;
      const double y = bursts ? std::numeric_limits<double>::infinity() : 2.0;
      return toy.loss(batch) + own * y;
    };
  }
  void configure_sharded_model() override {
    mark_placement(own, "model", local());
    rank = current_mesh().coordinate("model");
  }

  at::Tensor own = register_parameter("own", torch::zeros({}));
  int rank = 0;
};

TEST(DdpNumbers, AGradientOfOneRankThatIsNotFiniteLeavesOutTheUpdateOfAll) {
  for (const bool clips : {false, true}) {
    run_thread_ranks(2, [clips](const std::shared_ptr<World>& world) {
      auto options = own_data(world, mesh(1, 2));
      options.precision = Precision::k16Mixed;
      if (clips) options.gradient_clip_val = 1000.0;
      auto module = std::make_shared<ScaledToy>();
      Trainer trainer(options);
      trainer.fit(module, singles({3, 3}));
      EXPECT_EQ(trainer.progress().skipped_steps, 1);
      EXPECT_EQ(trainer.progress().global_step, 1);
      EXPECT_NEAR(module->value(), -3.0, clips ? 1e-5 : 0);  // Clipping divides by norm + 1e-6.
      EXPECT_NEAR(module->own.item<double>(), -2.0, clips ? 1e-5 : 0);
    });
  }
}

/// a is used in even batches, b in odd ones, where its gradient differs along "model".
class LateToy final : public LightningModule<> {
 public:
  explicit LateToy(OptimizationMode mode) : mode_(mode) {}
  OptimizationMode optimization_mode() const override { return mode_; }
  void configure_sharded_model() override { rank = current_mesh().coordinate("model"); }
  StepOutput training_step(Batch&, std::int64_t batch_idx) override {
    const auto loss = batch_idx % 2 == 0 ? a * 1.0 : b * (1.0 + rank);
    if (mode_ == OptimizationMode::kAutomatic) return loss;
    manual_backward(loss);
    step_optimizer(batch_idx % 2);
    return {};
  }
  OptimizerConfigs configure_optimizers() override {
    return {{.optimizer = SGD::make(std::vector{a}, {.lr = 1})},
            {.optimizer = SGD::make(std::vector{b}, {.lr = 1})}};
  }

  at::Tensor a = register_parameter("a", torch::zeros({}, torch::kDouble));
  at::Tensor b = register_parameter("b", torch::zeros({}, torch::kDouble));
  int rank = 0;

 private:
  OptimizationMode mode_;
};

TEST(DdpNumbers, NamesAnUnmarkedParameterThatIsFirstUsedInALaterStep) {
  for (const auto mode : {OptimizationMode::kAutomatic, OptimizationMode::kManual}) {
    const auto errors = errors_of(2, [mode](const std::shared_ptr<World>& world) {
      Trainer(own_data(world, mesh(1, 2))).fit(std::make_shared<LateToy>(mode), singles({1, 1}));
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("b"), HasSubstr("mark_as_shared"))));
  }
}

TEST(DdpNumbers, RefusesWeightsThatDifferAlongAModelAxis) {
  for (const bool on_device : {false, true}) {
    const auto errors = errors_of(4, [on_device](const std::shared_ptr<World>& world) {
      auto module = std::make_shared<SharedToy>();
      module->step = [&](Toy& toy, Batch&, std::int64_t) -> StepOutput {
        const double weight = world->rank() == 3 ? 4 : 2;
        const auto loss = toy.w * module->x;
        if (on_device) return {loss, torch::tensor(weight, torch::kDouble)};
        return {loss, weight};
      };
      Trainer(own_data(world, mesh(2, 2))).fit(module, singles({1}));
    });
    // The first of each pair: 2 + 2. All: (2 + 2 + 2 + 4) / 2.
    EXPECT_THAT(errors,
                Each(AllOf(HasSubstr("different weights"), HasSubstr("4"), HasSubstr("5"))));
  }
}

TEST(DdpNumbers, WeightsThatDifferAlongADataAxisAreRight) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    auto module = std::make_shared<SharedToy>();
    module->step = [&](Toy& toy, Batch&, std::int64_t) -> StepOutput {
      return {toy.w * module->x, world->rank() < 2 ? 1.0 : 3.0};
    };
    Trainer(own_data(world, mesh(2, 2))).fit(module, singles({1}));
    EXPECT_EQ(module->value(), -(1 * 3.0 + 3 * 8.0) / 4);
  });
}

/// An order that depends on more than its arguments: here on the rank.
class TurningSampler final : public Sampler {
 public:
  explicit TurningSampler(std::int64_t turn) : turn_(turn) {}
  std::vector<std::int64_t> indices(const SampleOrder& order) override {
    std::vector<std::int64_t> list;
    for (std::int64_t i = 0; i < order.dataset_size; ++i)
      list.push_back((i + turn_) % order.dataset_size);
    return list;
  }
  std::optional<std::int64_t> size(std::int64_t dataset_size) const override {
    return dataset_size;
  }

 private:
  std::int64_t turn_;
};

// faults.md 83
TEST(DdpNumbers, RefusesLoadersThatAreNotTheSameOnAllRanks) {
  const auto errors_with = [](const std::function<DataLoader<Batch>(int)>& make) {
    return errors_of(3, [&](const std::shared_ptr<World>& world) {
      auto options = quiet(world);
      options.log_sink = std::make_shared<CapturingSink>();
      Trainer(options).fit(std::make_shared<Toy>(), make(world->rank()));
    });
  };
  const auto data = [](std::int64_t rows) {
    return tensor_dataset({torch::ones({rows, 1}, torch::kDouble)});
  };
  EXPECT_THAT(
      errors_with([&](int rank) { return DataLoader<Batch>(data(rank == 1 ? 13 : 12), {}); }),
      Each(AllOf(HasSubstr("13 samples"), HasSubstr("rank 1"), HasSubstr("12 samples"))));
  EXPECT_THAT(errors_with([&](int rank) {
                return DataLoader<Batch>(
                    data(12), {.shuffle = true, .seed = static_cast<std::uint64_t>(rank / 2)});
              }),
              Each(AllOf(HasSubstr("seed 0 on ranks 0, 1"), HasSubstr("seed 1 on rank 2"))));
  EXPECT_THAT(errors_with([&](int rank) {
                return DataLoader<Batch>(data(12),
                                         {.sampler = std::make_shared<TurningSampler>(rank / 2)});
              }),
              Each(HasSubstr("a sampler's order")));
  EXPECT_THAT(errors_with([&](int) {
                return DataLoader<Batch>(data(12),
                                         {.sampler = std::make_shared<TurningSampler>(2)});
              }),
              Each(std::string()));
}

TEST(DdpNumbers, RefusesAValidationLoaderThatIsNotTheSameOnAllRanks) {
  const auto errors = errors_of(2, [](const std::shared_ptr<World>& world) {
    Trainer(quiet(world))
        .validate(
            std::make_shared<Toy>(),
            DataLoader(tensor_dataset({torch::ones({5 + world->rank(), 1}, torch::kDouble)}), {}));
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("the validation loader 0"), HasSubstr("5 samples"))));
}

// 19 samples, 12 a step, over any number of ranks: a whole step, then one of 7, dealt out unevenly.
TEST(DdpNumbers, AnUnevenLastBatchCountsAsInOneProcess) {
  for (const std::int64_t window : {1, 2}) {
    for (const int ranks : {1, 2, 3, 4, 6}) {
      run_thread_ranks(ranks, [&](const std::shared_ptr<World>& world) {
        auto options = quiet(world);
        options.accumulate_grad_batches = window;
        auto module = std::make_shared<Toy>();
        Trainer(options).fit(module,
                             DataLoader(tensor_dataset({torch::arange(19, torch::kDouble)}),
                                        {.batch_size = 12 / ranks}));
        // Means of 0..11 and of 12..18.
        EXPECT_NEAR(module->value(), -(5.5 + 15.0) / static_cast<double>(window), 1e-13)
            << ranks << " ranks, windows of " << window;
      });
    }
  }
}

// A rank that left the epoch does not come back to it in a resumed run.
TEST(DdpNumbers, ARankThatSkippedTheRestOfAnEpochStaysOutAfterAResume) {
  const TemporaryFolder folder;
  const auto place = (folder.path() / "inside").string();
  struct Saver final : Callback {
    std::string place;
    void on_train_batch_end(
        TrainerContext& trainer, ModuleBase&, const StepOutput&, BatchView, std::int64_t) override {
      if (trainer.progress().total_batches == 2) trainer.save_checkpoint(place);
    }
  };
  const auto train = [&](const FitOptions& fit) {
    std::vector<double> values(2);
    run_thread_ranks(2, [&](const std::shared_ptr<World>& world) {
      auto options = own_data(world);
      options.max_epochs = 2;
      auto saver = std::make_shared<Saver>();
      saver->place = place;
      if (fit.checkpoint.empty()) options.callbacks = {saver};
      auto module = std::make_shared<Toy>();
      auto* toy = module.get();
      module->batch_start = [&world, toy](Batch&, std::int64_t batch_idx) {
        const bool leaves = world->rank() == 1 && batch_idx == 1 && toy->current_epoch() == 0;
        return leaves ? BatchAction::kSkipEpoch : BatchAction::kContinue;
      };
      const auto rows = (torch::arange(4, torch::kDouble) + 1) * (world->rank() == 0 ? 1 : 10);
      Trainer(options).fit(module, DataLoader(tensor_dataset({rows}), {}), {}, fit);
      values[static_cast<std::size_t>(world->rank())] = module->value();
    });
    EXPECT_EQ(values[0], values[1]);
    return values[0];
  };
  // Epoch 0: the mean of 1 and 10, then 2, 3, 4 of rank 0 alone. Epoch 1: all.
  const double expected = -(5.5 + 2 + 3 + 4) - 5.5 * 10;
  EXPECT_EQ(train({}), expected);
  EXPECT_EQ(train({.checkpoint = place}), expected);
}

}  // namespace
}  // namespace fulmen
