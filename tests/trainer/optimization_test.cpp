#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

// --- Manual optimization ---

/// Two weights with an optimizer each.
class Two : public LightningModule<> {
 public:
  explicit Two(OptimizationMode mode) : LightningModule("Two"), mode_(mode) {
    a = register_parameter("a", torch::zeros({}, torch::kFloat64));
    b = register_parameter("b", torch::zeros({}, torch::kFloat64));
  }
  OptimizationMode optimization_mode() const override { return mode_; }
  StepOutput training_step(Batch& batch, std::int64_t) override {
    return step ? step(*this, batch) : StepOutput(loss(batch));
  }
  at::Tensor loss(const Batch& batch) const { return ((a + 10 * b) * batch.tensors[0]).mean(); }
  OptimizerConfigs configure_optimizers() override {
    auto first = SGD::make({a}, {.lr = 1});
    auto second = SGD::make({b}, {.lr = 1});
    return {{.optimizer = first,
             .schedulers = {{.scheduler = StepLR::make(first, {.step_size = 1, .gamma = 0.5})}}},
            {.optimizer = second}};
  }
  std::vector<double> value() const { return {a.item<double>(), b.item<double>()}; }

  at::Tensor a, b;
  std::function<StepOutput(Two&, Batch&)> step;

 private:
  OptimizationMode mode_;
};

std::shared_ptr<Two> manual(std::function<StepOutput(Two&, Batch&)> step) {
  auto module = std::make_shared<Two>(OptimizationMode::kManual);
  module->step = std::move(step);
  return module;
}

TEST(ManualOptimization, StepsWhatTheUserSteps) {
  Trainer trainer(quiet(2));
  auto module = manual([](Two& two, Batch& batch) {
    two.optimizer(0).zero_grad();
    two.optimizer(1).zero_grad();
    two.manual_backward(two.loss(batch));
    if (two.trainer().progress().batch_idx == 1) two.step_optimizer(1);
    two.step_optimizer(0);
    return StepOutput();
  });
  trainer.fit(module, singles({1, 2}));
  // No scheduler is stepped unless the user does.
  EXPECT_EQ(module->value(), (std::vector<double>{-6, -40}));
  EXPECT_EQ(trainer.progress().global_step, 4);  // One for a batch, however many optimizers.
  EXPECT_EQ(trainer.progress().total_batches, 4);
}

TEST(ManualOptimization, GradientsStayUntilTheUserDropsThem) {
  auto module = manual([](Two& two, Batch& batch) {
    two.manual_backward(two.loss(batch) / 2);
    if (two.trainer().progress().batch_idx % 2 == 1) {
      two.step_optimizer(0);
      two.optimizer(0).zero_grad();
    }
    return StepOutput();
  });
  Trainer trainer(quiet());
  trainer.fit(module, singles({1, 3, 5, 7}));
  EXPECT_EQ(module->a.item<double>(), -8);
  EXPECT_EQ(trainer.progress().global_step, 2);
}

TEST(ManualOptimization, TheUserStepsSchedulersAndClips) {
  auto module = manual([](Two& two, Batch& batch) {
    two.zero_grad();
    two.manual_backward(two.loss(batch));
    two.clip_gradients(two.optimizer(1), 0.5, ClipAlgorithm::kValue);
    two.step_optimizer(0);
    two.step_optimizer(1);
    two.lr_scheduler(0).step();
    return StepOutput();
  });
  Trainer(quiet()).fit(module, singles({8, 8}));
  EXPECT_EQ(module->value(), (std::vector<double>{-12, -1}));
}

TEST(ManualOptimization, ToggledOptimizerAloneGetsGradients) {
  std::vector<bool> defined;
  auto module = manual([&](Two& two, Batch& batch) {
    two.zero_grad();
    two.toggle_optimizer(1);
    EXPECT_FALSE(two.a.requires_grad());
    EXPECT_TRUE(
        contains(message_of<ConfigError>([&] { two.toggle_optimizer(0); }), "untoggle_optimizer"));
    two.manual_backward(two.loss(batch));
    defined = {two.a.grad().defined(), two.b.grad().defined()};
    two.untoggle_optimizer();
    EXPECT_TRUE(two.a.requires_grad());
    return StepOutput();
  });
  Trainer(quiet()).fit(module, singles({1}));
  EXPECT_EQ(defined, (std::vector<bool>{false, true}));
}

TEST(ManualOptimization, ToggleIsUndoneWhenTheRunFails) {
  auto module = manual([](Two& two, Batch&) -> StepOutput {
    two.toggle_optimizer(0);
    throw std::runtime_error("stop");
  });
  EXPECT_THROW(Trainer(quiet()).fit(module, singles({1})), std::runtime_error);
  EXPECT_TRUE(module->b.requires_grad());
}

TEST(ManualOptimization, OverflowUnder16MixedSkipsTheStep) {
  auto options = quiet();
  options.precision = Precision::k16Mixed;
  Trainer trainer(options);
  auto module = manual([](Two& two, Batch& batch) {
    two.zero_grad();
    two.manual_backward(two.loss(batch));
    two.step_optimizer(0);
    two.step_optimizer(1);
    return StepOutput();
  });
  module->to(torch::kFloat32);
  trainer.fit(module, std::vector<Batch>{{{torch::tensor({1e38f})}}, {{torch::tensor({1.0f})}}});
  EXPECT_EQ(module->value(), (std::vector<double>{-1, -10}));
  EXPECT_EQ(trainer.progress().global_step, 1);
  EXPECT_GE(trainer.progress().skipped_steps, 1);
}

TEST(ManualOptimization, WhatTheTrainerWouldDoIsRefused) {
  auto module = manual([](Two&, Batch&) { return StepOutput(); });
  auto options = quiet();
  options.accumulate_grad_batches = 2;
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { Trainer(options).fit(module, singles({1})); }),
                       "accumulate_grad_batches must be 1, got 2"));
  options = quiet();
  options.gradient_clip_val = 1;
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { Trainer(options).fit(module, singles({1})); }),
                       "clip_gradients()"));
}

TEST(ManualOptimization, CallsOutOfPlaceAreRefused) {
  const auto refusal = [](OptimizationMode mode, std::function<void(Two&, Batch&)> call) {
    auto module = std::make_shared<Two>(mode);
    module->step = [&](Two& two, Batch& batch) {
      call(two, batch);
      return StepOutput();
    };
    return message_of<ConfigError>([&] { Trainer(quiet()).fit(module, singles({1})); });
  };
  const auto automatic = OptimizationMode::kAutomatic;
  EXPECT_TRUE(contains(
      refusal(automatic, [](Two& two, Batch& batch) { two.manual_backward(two.loss(batch)); }),
      "kManual"));
  EXPECT_TRUE(contains(refusal(automatic, [](Two& two, Batch&) { two.step_optimizer(0); }),
                       "manual optimization"));
  EXPECT_TRUE(
      contains(refusal(OptimizationMode::kManual, [](Two& two, Batch&) { two.step_optimizer(2); }),
               "step_optimizer(2): configure_optimizers returned 2"));
  EXPECT_TRUE(contains(refusal(automatic, [](Two& two, Batch&) { two.optimizer(2); }),
                       "optimizer 2 does not exist"));
  EXPECT_TRUE(contains(refusal(automatic, [](Two& two, Batch&) { two.lr_scheduler(1); }),
                       "scheduler 0 of optimizer 1"));
  Two outside(automatic);
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { outside.optimizer(); }),
                       "no trainer runs this module"));
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { outside.log("x", 1.0); }),
                       "no trainer runs this module"));
}

// --- Optimizers ---

TEST(Optimizers, SeveralAreSteppedInEachBatchFromOneBackward) {
  int backwards = 0;
  std::vector<const Optimizer*> stepped;
  auto options = quiet();
  options.callbacks = {LambdaCallback::make(
      {.on_after_backward = [&](TrainerContext&, ModuleBase&) { ++backwards; },
       .on_before_optimizer_step = [&](TrainerContext&,
                                       ModuleBase&,
                                       Optimizer& optimizer) { stepped.push_back(&optimizer); }})};
  Trainer trainer(options);
  auto module = std::make_shared<Two>(OptimizationMode::kAutomatic);
  trainer.fit(module, singles({1, 2}));
  EXPECT_EQ(module->value(), (std::vector<double>{-3, -30}));
  EXPECT_EQ(backwards, 2);
  EXPECT_EQ(stepped.size(), 4u);
  EXPECT_NE(stepped[0], stepped[1]);
  EXPECT_EQ(trainer.progress().global_step, 2);
}

TEST(Optimizers, SchedulersOfAnEpochAreSteppedOnceAnEpoch) {
  std::vector<double> rates;
  auto options = quiet(3);
  options.callbacks = {
      LambdaCallback::make({.on_train_epoch_start = [&](TrainerContext& context, ModuleBase&) {
        rates.push_back(context.optimizer_configs()[0].optimizer->hyperparameter(0, "lr"));
      }})};
  Trainer(options).fit(std::make_shared<Two>(OptimizationMode::kAutomatic), singles({1, 1}));
  EXPECT_EQ(rates, (std::vector<double>{1, 0.5, 0.25}));
}

TEST(Optimizers, PlateauUsesTheMetricOfTheSameEpoch) {
  std::vector<double> rates;
  auto options = quiet(4);
  options.callbacks = {
      LambdaCallback::make({.on_train_epoch_start = [&](TrainerContext& context, ModuleBase&) {
        rates.push_back(context.optimizer_configs()[0].optimizer->hyperparameter(0, "lr"));
      }})};
  auto module = std::make_shared<Toy>();
  module->optimizers = [](Toy& toy) -> OptimizerConfigs {
    auto sgd = SGD::make(toy, {.lr = 1});
    return OptimizerConfig{
        .optimizer = sgd,
        .schedulers = {{.scheduler = ReduceLROnPlateau::make(sgd, {.factor = 0.5, .patience = 0}),
                        .monitor = "val_loss"}}};
  };
  module->eval_step = [](Toy& toy, Batch&, std::int64_t, std::int64_t) {
    constexpr double kLosses[] = {1, 2, 0.5, 0.6};  // Worse in epoch 1.
    toy.log("val_loss", kLosses[toy.current_epoch()]);
  };
  Trainer(options).fit(module, singles({1}), singles({1}));
  EXPECT_EQ(rates, (std::vector<double>{1, 1, 0.5, 0.5}));
}

TEST(Optimizers, PlateauWithoutItsMetricIsAnErrorThatListsTheOthers) {
  for (bool strict : {true, false}) {
    auto sink = std::make_shared<CapturingSink>();
    auto module = std::make_shared<Toy>();
    module->optimizers = [strict](Toy& toy) -> OptimizerConfigs {
      auto sgd = SGD::make(toy, {.lr = 1});
      return OptimizerConfig{
          .optimizer = sgd,
          .schedulers = {
              {.scheduler = ReduceLROnPlateau::make(sgd), .monitor = "acc", .strict = strict}}};
    };
    Trainer trainer(quiet(2, sink));
    if (strict) {
      const auto message =
          message_of<ConfigError>([&] { trainer.fit(module, singles({1}), singles({1})); });
      EXPECT_TRUE(contains(message, "\"acc\""));
      EXPECT_TRUE(contains(message, "val_loss"));
    } else {
      trainer.fit(module, singles({1}), singles({1}));
      EXPECT_EQ(sink->count(LogLevel::kWarning, "\"acc\""), 1);
    }
  }
}

TEST(Optimizers, NoneTrainsNothingWithAWarningAlsoWithoutAGraph) {
  for (bool graph : {true, false}) {
    auto sink = std::make_shared<CapturingSink>();
    Trainer trainer(quiet(1, sink));
    auto module = std::make_shared<Toy>();
    module->optimizers = [](Toy&) { return OptimizerConfigs(); };
    if (!graph)
      module->step = [](Toy& toy, Batch& batch, std::int64_t) { return toy.loss(batch).detach(); };
    trainer.fit(module, singles({1, 1}));
    EXPECT_EQ(module->value(), 0);
    EXPECT_EQ(module->training_steps, 2);
    EXPECT_EQ(trainer.progress().global_step, 0);
    EXPECT_EQ(sink->count(LogLevel::kWarning, "no optimizer"), 1);
  }
}

TEST(Optimizers, BadConfigurationsAreRefused) {
  const auto refusal = [](std::function<OptimizerConfigs(Toy&)> optimizers,
                          TrainerOptions options = quiet()) {
    auto module = std::make_shared<Toy>();
    module->optimizers = std::move(optimizers);
    return message_of<ConfigError>([&] { Trainer(options).fit(module, singles({1})); });
  };
  const auto with = [](SchedulerConfig scheduler) {
    return [scheduler](Toy& toy) -> OptimizerConfigs {
      return OptimizerConfig{.optimizer = SGD::make(toy), .schedulers = {scheduler}};
    };
  };
  EXPECT_TRUE(contains(refusal([](Toy&) -> OptimizerConfigs { return std::shared_ptr<SGD>(); }),
                       "null optimizer"));
  EXPECT_TRUE(contains(refusal(with({})), "null scheduler"));
  Toy other;
  auto scheduler = StepLR::make(SGD::make(other), {.step_size = 1});
  EXPECT_TRUE(contains(refusal(with({.scheduler = scheduler, .frequency = 0})),
                       "frequency of a scheduler must be at least 1, got 0"));
  auto plateau = ReduceLROnPlateau::make(SGD::make(other));
  EXPECT_TRUE(contains(refusal(with({.scheduler = plateau})), ".monitor"));
  const auto lbfgs = [](Toy& toy) -> OptimizerConfigs {
    return TorchOptimizer::make(
        std::make_unique<torch::optim::LBFGS>(toy.parameters(), torch::optim::LBFGSOptions(1)));
  };
  auto options = quiet();
  options.accumulate_grad_batches = 2;
  EXPECT_TRUE(contains(refusal(lbfgs, options), "accumulate_grad_batches = 1"));
}

TEST(Optimizers, LBFGSMinimizesWithSeveralEvaluationsInAStep) {
  auto module = std::make_shared<Toy>();
  module->optimizers = [](Toy& toy) -> OptimizerConfigs {
    return TorchOptimizer::make(std::make_unique<torch::optim::LBFGS>(
        toy.parameters(), torch::optim::LBFGSOptions(1).max_iter(10)));
  };
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    auto loss = (toy.w - batch.tensors[0]).square().mean();
    toy.log("loss", loss, {.on_epoch = true});
    return loss;
  };
  Trainer trainer(quiet());
  trainer.fit(module, singles({3}));
  EXPECT_NEAR(module->value(), 3, 1e-6);
  EXPECT_GT(module->training_steps, 1);
  EXPECT_EQ(trainer.progress().global_step, 1);
  EXPECT_LT(trainer.callback_metrics().at("loss_epoch"),
            9);  // Of the last evaluation, not the mean of all.
}

}  // namespace
}  // namespace fulmen
