// What ranks, here threads, decide together, and the steps that follow from it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/joint_ends.h"

namespace fulmen {
namespace {

using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

struct ManualToy : Toy {
  using Toy::Toy;
  OptimizationMode optimization_mode() const override { return OptimizationMode::kManual; }
};

// --- Parameters that nobody marked, under manual optimization ---

void step_after_backward(Toy& toy, const Batch& batch) {
  toy.manual_backward(toy.loss(batch));
  toy.step_optimizer(0);
}
void clip_after_backward(Toy& toy, const Batch& batch) {
  toy.manual_backward(toy.loss(batch));
  toy.clip_gradients(toy.optimizer(), 1.0);
  toy.step_optimizer(0);
}
void step_with_closure(Toy& toy, const Batch& batch) {
  toy.step_optimizer(0, [&] {
    const auto loss = toy.loss(batch);
    toy.manual_backward(loss);
    return loss;
  });
}

TEST(ManualOptimization, NamesAnUnmarkedParameterOnAllRanksBeforeItsFirstStep) {
  for (auto* const update : {step_after_backward, clip_after_backward, step_with_closure}) {
    // The gradients differ along "model" at the second place of "data" only.
    const auto ends = ends_of(4, [&](const WorldPointer& world) {
      auto module = std::make_shared<ManualToy>();
      module->step = [&](Toy& toy, Batch& batch, std::int64_t) -> StepOutput {
        update(toy, batch);
        return {};
      };
      try {
        Trainer(own_data(world, mesh(2, 2)))
            .fit(module, singles({world->rank() == 3 ? 2.0 : 1.0, 1, 1}));
      } catch (...) {
        EXPECT_EQ(module->value(), 0.0) << "it was updated";
        EXPECT_EQ(module->training_steps, 1);
        throw;
      }
    });
    for (const auto& end : ends) {
      EXPECT_EQ(end.kind, "DistributedError");
      EXPECT_THAT(end.error, HasSubstr("gradients of w differ along the axis \"model\""));
      EXPECT_THAT(end.error, HasSubstr("mark_as_shared"));
    }
  }
}

TEST(ManualOptimization, TakesAnUnmarkedParameterWhoseGradientsDifferAlongDataOnly) {
  for (auto* const update : {step_after_backward, step_with_closure}) {
    const auto ends = ends_of(4, [&](const WorldPointer& world) {
      auto module = std::make_shared<ManualToy>();
      module->step = [&](Toy& toy, Batch& batch, std::int64_t) -> StepOutput {
        toy.optimizer().zero_grad();
        update(toy, batch);
        return {};
      };
      Trainer(own_data(world, mesh(2, 2))).fit(module, singles({world->rank() < 2 ? 1.0 : 5.0, 2}));
      EXPECT_EQ(module->value(), -3.0 - 2.0);
    });
    EXPECT_THAT(ends, Each(Field(&End::error, IsEmpty())));
  }
}

// --- Wishes to stop that are there before the first step ---

enum class Wish { kRequestStop, kStopTraining };
enum class Moment { kSetup, kFitStart, kTrainStart };

class Wisher final : public Callback {
 public:
  Wisher(Wish wish, Moment moment) : wish_(wish), moment_(moment) {}
  void setup(TrainerContext& trainer, ModuleBase&, Stage) override { say(trainer, Moment::kSetup); }
  void on_fit_start(TrainerContext& trainer, ModuleBase&) override {
    say(trainer, Moment::kFitStart);
  }
  void on_train_start(TrainerContext& trainer, ModuleBase&) override {
    say(trainer, Moment::kTrainStart);
  }
  std::function<void(std::string)> request_stop;

 private:
  void say(TrainerContext& trainer, Moment moment) const {
    if (moment != moment_) return;
    wish_ == Wish::kRequestStop ? request_stop("it is late") : trainer.stop_training("it is late");
  }
  Wish wish_;
  Moment moment_;
};

TEST(JointStop, BeforeTheFirstStepOfOneRankIsOneOfAllRanks) {
  for (const auto wish : {Wish::kRequestStop, Wish::kStopTraining}) {
    for (const auto moment : {Moment::kSetup, Moment::kFitStart, Moment::kTrainStart}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(wish)) + " at " +
                   std::to_string(static_cast<int>(moment)));
      const bool stops_now = wish == Wish::kRequestStop;
      const auto ends = ends_of(3, [&](const WorldPointer& world) {
        auto options = own_data(world);
        auto wisher = std::make_shared<Wisher>(wish, moment);
        if (world->rank() == 1) options.callbacks = {wisher};
        auto module = std::make_shared<Toy>();
        Trainer trainer(options);
        wisher->request_stop = [&](std::string text) { trainer.request_stop(std::move(text)); };
        const auto result = trainer.fit(module, singles({1, 2, 3}));
        EXPECT_EQ(result.status, stops_now ? RunStatus::kInterrupted : RunStatus::kFinished);
        const auto* of_others =
            stops_now ? "another rank was asked to stop" : "another rank called stop_training()";
        EXPECT_EQ(result.stop_reason, world->rank() == 1 ? "it is late" : of_others);
        EXPECT_EQ(trainer.progress().global_step, 0);
        EXPECT_EQ(trainer.progress().total_batches, 0);
        EXPECT_EQ(module->training_steps, 0);
      });
      EXPECT_THAT(ends, Each(Field(&End::error, IsEmpty())));
    }
  }
}

TEST(JointStop, InTheSanityCheckOfOneRankLeavesNoStepOnAnyRank) {
  const auto ends = ends_of(2, [](const WorldPointer& world) {
    auto options = own_data(world);
    options.num_sanity_val_steps = 2;
    auto module = std::make_shared<Toy>();
    Trainer trainer(options);
    module->eval_step = [&](Toy&, Batch&, std::int64_t, std::int64_t) {
      if (world->rank() == 1) trainer.request_stop("it is late");
    };
    const auto result = trainer.fit(module, singles({1, 2}), singles({0, 0, 0}));
    EXPECT_EQ(result.status, RunStatus::kInterrupted);
    EXPECT_EQ(module->training_steps, 0);
  });
  EXPECT_THAT(ends, Each(Field(&End::error, IsEmpty())));
}

// --- An epoch that a rank skips under manual optimization ---

std::vector<End> skip_epoch(const std::function<bool(int rank)>& skips) {
  return ends_of(3, [&](const WorldPointer& world) {
    auto module = std::make_shared<ManualToy>();
    module->step = [](Toy& toy, Batch& batch, std::int64_t) -> StepOutput {
      step_after_backward(toy, batch);
      return {};
    };
    module->batch_start = [&](Batch&, std::int64_t batch_idx) {
      return batch_idx == 1 && skips(world->rank()) ? BatchAction::kSkipEpoch
                                                    : BatchAction::kContinue;
    };
    Trainer(own_data(world)).fit(module, singles({1, 2, 3}));
  });
}

TEST(ManualOptimization, RefusesToSkipAnEpochOnAllRanks) {
  for (const auto& end : skip_epoch([](int) { return true; })) {
    EXPECT_EQ(end.kind, "ConfigError");
    EXPECT_THAT(end.error, HasSubstr("kSkipEpoch under manual optimization on several ranks"));
  }
}

TEST(ManualOptimization, RefusesToSkipAnEpochOnOneRankAndEndsTheOthers) {
  const auto ends = skip_epoch([](int rank) { return rank == 1; });
  EXPECT_EQ(ends[1].kind, "ConfigError");
  EXPECT_THAT(ends[1].error, HasSubstr("kSkipEpoch under manual optimization on several ranks"));
  EXPECT_EQ(ends[0].kind, "DistributedError");
  EXPECT_EQ(ends[2].kind, "DistributedError");
}

// --- bfloat16 on a number of ranks that is no power of two ---

/// One vector w of bfloat16, loss = sum(w * x), so the gradient is x.
class Brain final : public LightningModule<> {
 public:
  static constexpr std::int64_t kWidth = 128;
  Brain() : LightningModule("Brain") {
    w = register_parameter("w", torch::zeros({kWidth}, torch::kBFloat16));
  }
  /// Whole numbers from -81 to 81 that differ from rank to rank.
  static Batch data(int rank) {
    const auto x = (torch::arange(kWidth, torch::kLong) * (rank + 5)).remainder(163) - 81;
    return {{x.to(torch::kBFloat16)}};
  }
  StepOutput training_step(Batch& batch, std::int64_t) override {
    return (w * batch.tensors[0]).sum();
  }
  void on_before_optimizer_step(Optimizer&) override { gradient = w.grad().clone(); }
  OptimizerConfigs configure_optimizers() override { return SGD::make(*this, {.lr = 1}); }

  at::Tensor w, gradient;
};

// Sums of three such numbers are whole and at most 256, which bfloat16 (8 bits) holds: exact in any
// order, as is each term times a power of two. What is left is one multiplication in float32 and
// one rounding to bfloat16. A third of a whole number of 8 bits that is not whole itself is at
// least 2^-11 of its size away from where that rounding turns, so 2^-22 of float32 do not move it:
// the gradient is the mean, rounded once, bit for bit.
TEST(Bfloat16, MeansOfThreeRanksAreRoundedOnceAsThoseOfOneProcess) {
  auto sum = torch::zeros({Brain::kWidth}, torch::kDouble);
  std::vector<Batch> all;
  for (const int rank : {0, 1, 2}) {
    all.push_back(Brain::data(rank));
    sum += all.back().tensors[0].to(torch::kDouble);
  }
  ASSERT_LE(sum.abs().max().item<double>(), 256.0);
  const auto mean = (sum / 3).to(torch::kBFloat16);
  auto alone = std::make_shared<Brain>();
  auto options = quiet(1);
  options.accumulate_grad_batches = 3;
  Trainer(options).fit(alone, all);
  ASSERT_TRUE(torch::equal(alone->gradient, mean));
  const auto ends = ends_of(3, [&](const WorldPointer& world) {
    auto module = std::make_shared<Brain>();
    Trainer(own_data(world)).fit(module, std::vector<Batch>{Brain::data(world->rank())});
    EXPECT_EQ((module->gradient != mean).sum().item<std::int64_t>(), 0);
    EXPECT_TRUE(torch::equal(module->w, -mean));
  });
  EXPECT_THAT(ends, Each(Field(&End::error, IsEmpty())));
}

}  // namespace
}  // namespace fulmen
