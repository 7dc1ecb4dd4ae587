#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

std::optional<std::int64_t> stepping_batches(const TrainerOptions& options) {
  std::optional<std::int64_t> result;
  auto module = std::make_shared<Toy>();
  module->optimizers = [&](Toy& toy) -> OptimizerConfigs {
    result = toy.trainer().estimated_stepping_batches();
    return SGD::make(toy, {.lr = 1});
  };
  Trainer trainer(options);
  trainer.fit(module, singles({1, 2, 3, 4, 5}));
  if (result) {
    EXPECT_EQ(trainer.progress().global_step, *result);
  }
  return result;
}

TEST(EstimatedSteppingBatches, AreTheStepsThatTheFitTakes) {
  auto options = quiet(3);
  EXPECT_EQ(stepping_batches(options), 15);
  options.accumulate_grad_batches = 2;
  EXPECT_EQ(stepping_batches(options), 9);
  options.max_steps = 4;
  EXPECT_EQ(stepping_batches(options), 4);
  options.max_steps.reset();
  options.limit_train_batches = batches(2);
  EXPECT_EQ(stepping_batches(options), 3);
}

TEST(RunLength, NoLimitMeansThousandEpochsAndAWarning) {
  auto sink = std::make_shared<CapturingSink>();
  auto options = quiet(1, sink);
  options.max_epochs = {};
  Trainer trainer(options);
  trainer.fit(std::make_shared<Toy>(), singles({1}));
  EXPECT_EQ(trainer.progress().epoch, 1000);
  EXPECT_EQ(sink->count(LogLevel::kWarning, "1000 epochs"), 1) << sink->all();
}

TEST(RunLength, MaxStepsEndsInsideAnEpoch) {
  auto options = quiet(-1);
  options.max_steps = 4;
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  const auto result = trainer.fit(module, singles({1, 1, 1}));
  EXPECT_EQ(trainer.progress().global_step, 4);
  EXPECT_EQ(trainer.progress().total_batches, 4);
  EXPECT_EQ(module->value(), -4);
  EXPECT_EQ(result.status, RunStatus::kFinished);
  EXPECT_EQ(result.stop_reason, "");
}

TEST(RunLength, MaxStepsCountsStepsAndNotMicroBatches) {
  auto options = quiet(-1);
  options.max_steps = 2;
  options.accumulate_grad_batches = 3;
  Trainer trainer(options);
  trainer.fit(std::make_shared<Toy>(), singles({1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(trainer.progress().total_batches, 6);
}

TEST(RunLength, ZeroEpochsOrStepsTrainNothing) {
  for (bool epochs : {true, false}) {
    auto options = quiet(epochs ? 0 : -1);
    if (!epochs) options.max_steps = 0;
    Trainer trainer(options);
    auto module = std::make_shared<Toy>();
    EXPECT_EQ(trainer.fit(module, singles({1})).status, RunStatus::kFinished);
    EXPECT_EQ(module->training_steps, 0);
  }
}

/// Asks to stop after each batch from `first` on.
std::shared_ptr<Callback> stops_after(std::int64_t first) {
  return LambdaCallback::make(
      {.on_train_batch_end =
           [first](
               TrainerContext& context, ModuleBase&, const StepOutput&, BatchView, std::int64_t) {
             if (context.progress().total_batches >= first) context.stop_training("enough");
           }});
}

TEST(RunLength, StopTrainingEndsAfterTheBatchAndIsReported) {
  auto options = quiet(5);
  options.callbacks = {stops_after(4)};
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  const auto result = trainer.fit(module, singles({1, 1, 1}), singles({1}));
  EXPECT_EQ(trainer.progress().total_batches, 4);
  EXPECT_EQ(result.stop_reason, "enough");
  EXPECT_EQ(result.status, RunStatus::kFinished);
  EXPECT_EQ(module->validation_steps,
            1 + 1 + 1);  // Sanity check, epoch 0, and the one that was cut.
}

TEST(RunLength, MinimumsHoldAStopBack) {
  auto options = quiet(5);
  options.callbacks = {stops_after(1)};
  options.min_epochs = 2;
  Trainer by_epochs(options);
  by_epochs.fit(std::make_shared<Toy>(), singles({1, 1, 1}));
  EXPECT_EQ(by_epochs.progress().total_batches, 6);

  options.min_epochs = {};
  options.min_steps = 5;
  Trainer by_steps(options);
  by_steps.fit(std::make_shared<Toy>(), singles({1, 1, 1}));
  EXPECT_EQ(by_steps.progress().total_batches, 5);
}

std::shared_ptr<EarlyStopping> stops_on_val_loss() {
  return EarlyStopping::make({.monitor = "val_loss", .patience = 1});
}

/// Runs with these validation losses, one an epoch; returns the epochs that ran.
std::int64_t epochs_with_losses(std::vector<double> losses,
                                std::optional<std::int64_t> min_epochs) {
  auto options = quiet(static_cast<std::int64_t>(losses.size()));
  options.min_epochs = min_epochs;
  options.num_sanity_val_steps = 0;
  options.callbacks = {stops_on_val_loss()};
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  module->eval_step = [&](Toy& toy, Batch&, std::int64_t, std::int64_t) {
    toy.log("val_loss", losses.at(static_cast<std::size_t>(toy.current_epoch())));
  };
  trainer.fit(module, singles({1}), singles({1}));
  return trainer.progress().epoch;
}

TEST(RunLength, EarlyStoppingHeldBackByMinEpochsForgetsWhenItImproves) {
  const std::vector<double> losses = {1, 2, 2, 0.5, 0.4, 0.3};
  EXPECT_EQ(epochs_with_losses(losses, {}), 2);
  EXPECT_EQ(epochs_with_losses(losses, 5), 6);  // Goes on while it improves.
  EXPECT_EQ(epochs_with_losses({1, 2, 2, 2, 2, 2}, 4), 4);
}

TEST(RunLength, MaxTimeEndsTheRun) {
  auto options = quiet(-1);
  options.max_time = Seconds(0.05);
  Trainer trainer(options);
  const auto start = std::chrono::steady_clock::now();
  const auto result = trainer.fit(std::make_shared<Toy>(), singles({1, 1}));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50));
  EXPECT_NE(result.stop_reason, "");
  EXPECT_EQ(result.status, RunStatus::kFinished);
}

TEST(EstimatedSteppingBatches, OutsideAFitAreRefused) {
  Trainer trainer(quiet());
  const auto ask = [&] { trainer.context().estimated_stepping_batches(); };
  EXPECT_TRUE(contains(message_of<ConfigError>(ask), "while fit runs only"));
  trainer.fit(std::make_shared<Toy>(), singles({1}));
  EXPECT_TRUE(contains(message_of<ConfigError>(ask), "while fit runs only"));
}

}  // namespace
}  // namespace fulmen
