#include <cmath>

#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

/// Weights a vector w of two, loss = w . x, SGD lr 1: the gradient is x.
class Pair : public LightningModule<> {
 public:
  explicit Pair(c10::ScalarType dtype = torch::kFloat64) : LightningModule("Pair") {
    w = register_parameter("w", torch::zeros({2}, dtype));
  }
  StepOutput training_step(Batch& batch, std::int64_t) override {
    return (w * batch.tensors[0]).sum();
  }
  OptimizerConfigs configure_optimizers() override { return SGD::make(*this, {.lr = 1}); }
  std::vector<double> value() const { return {w[0].item<double>(), w[1].item<double>()}; }

  at::Tensor w;
};

std::vector<Batch> vectors(std::initializer_list<std::vector<double>> rows,
                           c10::ScalarType dtype = torch::kFloat64) {
  std::vector<Batch> result;
  for (const auto& row : rows) result.push_back({{torch::tensor(row, dtype)}});
  return result;
}

TEST(Clipping, IsDoneOncePerStepOnTheMeanGradient) {
  auto options = quiet();
  options.accumulate_grad_batches = 2;
  options.gradient_clip_val = 1;
  auto module = std::make_shared<Pair>();
  Trainer(options).fit(module, vectors({{3, 0}, {0, 4}}));
  // The mean is (1.5, 2) of norm 2.5. Clipping each micro-batch would give (0.5, 0.5).
  EXPECT_NEAR(module->value()[0], -0.6, 1e-6);  // 1e-6 / norm from the divisor.
  EXPECT_NEAR(module->value()[1], -0.8, 1e-6);
}

TEST(Clipping, LeavesSmallGradientsAlone) {
  auto options = quiet();
  options.gradient_clip_val = 5.1;
  auto module = std::make_shared<Pair>();
  Trainer(options).fit(module, vectors({{3, 4}}));
  EXPECT_EQ(module->value(), (std::vector<double>{-3, -4}));
}

TEST(Clipping, ByValueClampsEachElement) {
  auto options = quiet();
  options.gradient_clip_val = 0.5;
  options.gradient_clip_algorithm = ClipAlgorithm::kValue;
  auto module = std::make_shared<Pair>();
  Trainer(options).fit(module, vectors({{3, -0.25}}));
  EXPECT_EQ(module->value(), (std::vector<double>{-0.5, 0.25}));
}

TEST(Clipping, SeesUnscaledGradients) {
  auto options = quiet();
  options.precision = Precision::k16Mixed;
  options.gradient_clip_val = 1;
  std::vector<double> norms;
  options.callbacks = {LambdaCallback::make(
      {.on_before_optimizer_step = [&](TrainerContext&, ModuleBase& module, Optimizer&) {
        norms.push_back(module.parameters()[0].grad().norm().item<double>());
      }})};
  auto module = std::make_shared<Pair>(torch::kFloat32);
  Trainer(options).fit(module, vectors({{3, 4}}, torch::kFloat32));
  EXPECT_EQ(norms, std::vector<double>{5});
  EXPECT_NEAR(module->w.norm().item<double>(), 1, 1e-6);
}

TEST(Clipping, DoesNotHideNaN) {
  auto options = quiet();
  options.gradient_clip_val = 1;
  auto module = std::make_shared<Pair>();
  Trainer(options).fit(module, vectors({{NAN, 1}}));
  EXPECT_TRUE(std::isnan(module->value()[0]));
  EXPECT_TRUE(std::isnan(module->value()[1]));  // The norm is NaN, and every gradient with it.
}

TEST(Clipping, OverrideCanLogTheNormBeforeIt) {
  class LogsNorm : public Pair {
   public:
    using Pair::Pair;
    void configure_gradient_clipping(Optimizer& optimizer,
                                     std::optional<double> value,
                                     ClipAlgorithm) override {
      EXPECT_EQ(value, std::optional<double>(1));
      std::vector<at::Tensor> tensors;
      for (const auto& parameter : optimizer.parameters(0)) tensors.push_back(parameter.tensor);
      log("norm", clip_grad_norm(tensors, *value));
    }
  };
  auto logger = std::make_shared<CapturingLogger>();
  auto options = quiet();
  options.loggers = std::vector<std::shared_ptr<Logger>>{logger};
  options.gradient_clip_val = 1;
  options.log_every_n_steps = 1;
  Trainer(options).fit(std::make_shared<LogsNorm>(), vectors({{3, 4}, {0.6, 0.8}, {6, 8}}));
  ASSERT_EQ(logger->records.size(), 3u);
  EXPECT_DOUBLE_EQ(logger->records[0].metrics.at("norm"), 5);
  EXPECT_DOUBLE_EQ(logger->records[1].metrics.at("norm"), 1);
  EXPECT_DOUBLE_EQ(logger->records[2].metrics.at("norm"), 10);
}

/// SGD whose rate halves with each step taken.
OptimizerConfigs halving(Toy& toy) {
  auto sgd = SGD::make(toy, {.lr = 1});
  return OptimizerConfig{
      .optimizer = sgd,
      .schedulers = {{.scheduler = StepLR::make(sgd, {.step_size = 1, .gamma = 0.5}),
                      .interval = Interval::kStep}}};
}

/// In float32, with these gradients one after the other.
std::shared_ptr<Toy> scaled_run(Trainer& trainer,
                                std::vector<double> gradients,
                                std::shared_ptr<Toy> module) {
  std::vector<Batch> batches;
  for (double gradient : gradients)
    batches.push_back({{torch::tensor({gradient}, torch::kFloat32)}});
  module->optimizers = halving;
  trainer.fit(module, batches);
  return module;
}

constexpr double kOverflow =
    1e38;  // Times 65536 it is infinite in float32, and so in the scaled gradient.

TEST(GradScaling, OverflowSkipsTheStepAndItsScheduler) {
  auto options = quiet();
  options.precision = Precision::k16Mixed;
  double rate = 0;
  int before_step = 0;
  options.callbacks = {LambdaCallback::make(
      {.on_train_end =
           [&](TrainerContext& context, ModuleBase&) {
             rate = context.optimizer_configs()[0].optimizer->hyperparameter(0, "lr");
           },
       .on_before_optimizer_step =
           [&](TrainerContext&, ModuleBase&, Optimizer&) { ++before_step; }})};
  Trainer trainer(options);
  auto module = scaled_run(
      trainer, {kOverflow, 1, 1}, std::make_shared<Toy>(ToyOptions{.dtype = torch::kFloat32}));
  EXPECT_EQ(module->value(), -1.5);  // 1 * 1 + 0.5 * 1.
  EXPECT_EQ(rate, 0.25);
  EXPECT_EQ(before_step, 2);
  EXPECT_EQ(trainer.progress().global_step, 2);
  EXPECT_EQ(trainer.progress().skipped_steps, 1);
  EXPECT_EQ(trainer.progress().total_batches, 3);
}

TEST(GradScaling, OverflowInAnyMicroBatchSkipsTheWholeWindow) {
  for (std::size_t overflow : {0, 1}) {
    auto options = quiet();
    options.precision = Precision::k16Mixed;
    options.accumulate_grad_batches = 2;
    Trainer trainer(options);
    std::vector<double> gradients = {1, 1, 2, 4};
    gradients[overflow] = kOverflow;
    auto module =
        scaled_run(trainer, gradients, std::make_shared<Toy>(ToyOptions{.dtype = torch::kFloat32}));
    EXPECT_EQ(module->value(), -3) << overflow;
    EXPECT_EQ(trainer.progress().global_step, 1) << overflow;
    EXPECT_EQ(trainer.progress().skipped_steps, 1) << overflow;
  }
}

TEST(GradScaling, StepLeftOutByTheUserLeavesNoTraceInTheNextWindow) {
  class SkipsFirst : public Toy {
   public:
    using Toy::Toy;
    void optimizer_step(std::int64_t epoch,
                        std::int64_t batch_idx,
                        Optimizer& optimizer,
                        const Optimizer::Closure& closure) override {
      if (batch_idx == 0) {
        closure();
      } else {
        Toy::optimizer_step(epoch, batch_idx, optimizer, closure);
      }
    }
  };
  for (auto precision : {Precision::k16Mixed, Precision::k32True}) {
    auto options = quiet();
    options.precision = precision;
    Trainer trainer(options);
    auto module = scaled_run(
        trainer, {8, 2, 4}, std::make_shared<SkipsFirst>(ToyOptions{.dtype = torch::kFloat32}));
    EXPECT_EQ(module->value(), -(2 + 0.5 * 4));
    EXPECT_EQ(trainer.progress().global_step, 2);
    EXPECT_EQ(trainer.progress().skipped_steps, 0);
  }
}

TEST(OptimizerStep, OverrideMayCallTheOptimizerItself) {
  class Direct : public Toy {
   public:
    using Toy::Toy;
    void optimizer_step(std::int64_t,
                        std::int64_t,
                        Optimizer& optimizer,
                        const Optimizer::Closure& closure) override {
      optimizer.step(closure);
    }
  };
  for (auto precision : {Precision::k32True, Precision::k16Mixed}) {
    auto options = quiet();
    options.precision = precision;
    options.nonfinite_loss = NonFiniteLoss::kSkipStep;
    Trainer trainer(options);
    const double bad = precision == Precision::k16Mixed ? kOverflow : NAN;
    auto module = scaled_run(
        trainer, {2, bad, 4}, std::make_shared<Direct>(ToyOptions{.dtype = torch::kFloat32}));
    EXPECT_EQ(module->value(), -(2 + 0.5 * 4)) << to_string(precision);
    EXPECT_EQ(trainer.progress().global_step, 2) << to_string(precision);
    EXPECT_EQ(trainer.progress().skipped_steps, 1) << to_string(precision);
  }
}

TEST(OptimizerStep, OverrideThatDoesNotCallItsClosureIsRefused) {
  class Forgets : public Toy {
   public:
    void optimizer_step(std::int64_t,
                        std::int64_t,
                        Optimizer& optimizer,
                        const Optimizer::Closure&) override {
      optimizer.step();
    }
  };
  Trainer trainer(quiet());
  const auto message =
      message_of<ConfigError>([&] { trainer.fit(std::make_shared<Forgets>(), singles({1})); });
  EXPECT_TRUE(contains(message, "optimizer_step did not call its closure"));
}

/// Gradients 1, NaN, 3 (or infinite in place of NaN).
std::shared_ptr<Toy> nonfinite(Trainer& trainer, double bad, std::int64_t position) {
  auto module = std::make_shared<Toy>();
  auto batches = singles({1, 2, 3, 4});
  batches[static_cast<std::size_t>(position)] = column({bad});
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    return toy.loss(batch) + batch.tensors[0].mean();
  };
  trainer.fit(module, batches);
  return module;
}

TEST(NonFinite, IsIgnoredByDefault) {
  Trainer trainer(quiet());
  EXPECT_TRUE(std::isnan(nonfinite(trainer, NAN, 1)->value()));
}

TEST(NonFinite, RaiseNamesValueBatchAndRemedyAndUpdatesNothing) {
  for (double bad :
       {static_cast<double>(NAN), static_cast<double>(INFINITY), -static_cast<double>(INFINITY)}) {
    auto options = quiet();
    options.nonfinite_loss = NonFiniteLoss::kRaise;
    Trainer trainer(options);
    auto module = std::make_shared<Toy>();
    module->step = [&](Toy& toy, Batch& batch, std::int64_t idx) {
      return idx == 2 ? toy.loss(batch) + bad : toy.loss(batch);
    };
    const auto message = message_of<TrainingError>([&] {
      trainer.fit(module, singles({1, 2, 4}));
    });
    EXPECT_TRUE(contains(message,
                         "the loss is " + std::string(std::isnan(bad) ? "nan"
                                                      : bad > 0       ? "inf"
                                                                      : "-inf")));
    EXPECT_TRUE(contains(message, "batch 2 of epoch 0 (step 2)"));
    EXPECT_TRUE(contains(message, "kSkipStep"));
    EXPECT_EQ(module->value(), -3);
  }
}

TEST(NonFinite, SkipLeavesOutTheStep) {
  auto options = quiet();
  options.nonfinite_loss = NonFiniteLoss::kSkipStep;
  Trainer trainer(options);
  EXPECT_EQ(nonfinite(trainer, NAN, 1)->value(), -(1 + 3 + 4));
  EXPECT_EQ(trainer.progress().global_step, 3);
  EXPECT_EQ(trainer.progress().skipped_steps, 1);
}

TEST(NonFinite, SkipLeavesOutTheWholeWindowWhicheverMicroBatchItIs) {
  for (std::int64_t position : {0, 1}) {
    auto options = quiet();
    options.nonfinite_loss = NonFiniteLoss::kSkipStep;
    options.accumulate_grad_batches = 2;
    Trainer trainer(options);
    EXPECT_EQ(nonfinite(trainer, INFINITY, position)->value(), -3.5) << position;
    EXPECT_EQ(trainer.progress().global_step, 1) << position;
    EXPECT_EQ(trainer.progress().skipped_steps, 1) << position;
  }
}

TEST(NonFinite, SkippedWindowStaysSkippedOverAResumeInsideIt) {
  TemporaryDirectory folder;
  const auto checkpoint = folder.path() / "inside";
  auto options = quiet();
  options.nonfinite_loss = NonFiniteLoss::kSkipStep;
  options.accumulate_grad_batches = 2;
  auto saves = options;
  saves.callbacks = {LambdaCallback::make(
      {.on_interrupt = [&](TrainerContext& context, ModuleBase&, std::string_view) {
        context.save_checkpoint(checkpoint);
      }})};
  Trainer stopped(saves);
  auto module = std::make_shared<Toy>();
  module->step = [&](Toy& toy, Batch& batch, std::int64_t) {
    stopped.request_stop();
    return toy.loss(batch) * NAN;
  };
  stopped.fit(module, singles({1, 2, 3, 5}));
  EXPECT_EQ(module->training_steps, 1);

  Trainer resumed(options);
  auto again = std::make_shared<Toy>();
  resumed.fit(again, singles({1, 2, 3, 5}), {}, {.checkpoint = checkpoint.string()});
  EXPECT_EQ(again->value(), -4);
  EXPECT_EQ(resumed.progress().skipped_steps, 1);
  EXPECT_EQ(resumed.progress().global_step, 1);
}

}  // namespace
}  // namespace fulmen
