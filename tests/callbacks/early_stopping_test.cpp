#include "fulmen/callbacks/early_stopping.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fulmen/core/support/error.h"
#include "tests/support/fake_trainer.h"

namespace fulmen {
namespace {

/// Epochs with one validation at their end, as the trainer runs them.
struct StoppedRun {
  explicit StoppedRun(EarlyStoppingOptions options)
      : callback(EarlyStopping::make(std::move(options))) {
    trainer.run_plan.has_validation = true;
    callback->on_train_start(trainer, trainer.module());
  }
  /// Whether the callback asked to stop in this epoch.
  bool epoch(double value, const char* name = "val_loss") {
    const auto before = trainer.stop_reasons.size();
    trainer.metrics[name] = value;
    callback->on_validation_end(trainer, trainer.module());
    callback->on_train_epoch_end(trainer, trainer.module());
    ++trainer.counters.epoch;
    return trainer.stop_reasons.size() > before;
  }
  std::string reason() const {
    return trainer.stop_reasons.empty() ? "" : trainer.stop_reasons.back();
  }

  FakeTrainer trainer;
  std::shared_ptr<EarlyStopping> callback;
};

TEST(EarlyStopping, StopsAfterPatienceChecksWithoutImprovement) {
  StoppedRun run({.monitor = "val_loss", .patience = 2});
  EXPECT_FALSE(run.epoch(1.0));
  EXPECT_FALSE(run.epoch(0.5));
  EXPECT_FALSE(run.epoch(0.5));
  EXPECT_TRUE(run.epoch(0.6));
  EXPECT_EQ(run.reason(), "val_loss did not improve on 0.5 in the last 2 checks.");
  EXPECT_EQ(run.callback->stopped_epoch(), 3);
  EXPECT_EQ(run.callback->best_score(), 0.5);
}

TEST(EarlyStopping, MinDeltaMustBeExceededInBothModes) {
  StoppedRun low({.monitor = "val_loss", .min_delta = 0.25, .patience = 1});
  EXPECT_FALSE(low.epoch(1.0));
  EXPECT_FALSE(low.epoch(0.5));
  EXPECT_TRUE(low.epoch(0.25));
  StoppedRun high(
      {.monitor = "val_loss", .min_delta = 0.25, .patience = 1, .mode = MonitorMode::kMax});
  EXPECT_FALSE(high.epoch(1.0));
  EXPECT_FALSE(high.epoch(1.5));
  EXPECT_TRUE(high.epoch(1.75));
  EXPECT_EQ(high.reason(),
            "val_loss did not improve on 1.5 in the last 1 checks by more than 0.25.");
}

// faults.md row 51.
TEST(EarlyStopping, WaitCountGoesOnOverARestart) {
  StoppedRun first({.monitor = "val_loss", .patience = 3});
  for (const double value : {1.0, 1.1, 1.2}) EXPECT_FALSE(first.epoch(value));
  EXPECT_EQ(first.callback->wait_count(), 2);
  StoppedRun second({.monitor = "val_loss", .patience = 3});
  second.callback->load_state_dict(first.callback->state_dict());
  EXPECT_EQ(second.callback->wait_count(), 2);
  EXPECT_TRUE(second.epoch(1.05));
}

// faults.md row 52: the trainer forgets a request that min_epochs holds back.
TEST(EarlyStopping, AHeldBackStopIsTakenBackByAnImprovement) {
  StoppedRun run({.monitor = "val_loss", .patience = 1});
  const std::vector<double> losses = {1, 2, 2, 0.5, 0.4, 0.3};
  std::vector<bool> asked;
  for (const double loss : losses) asked.push_back(run.epoch(loss));
  EXPECT_EQ(asked, (std::vector<bool>{false, true, true, false, false, false}));
  EXPECT_EQ(run.callback->stopped_epoch(), std::nullopt);
  EXPECT_EQ(run.callback->reason(), "");
  EXPECT_TRUE(run.epoch(0.3));
}

TEST(EarlyStopping, PatienceOfTheOptionsWinsAfterARestart) {
  StoppedRun first({.monitor = "val_loss", .patience = 1});
  first.epoch(1);
  EXPECT_TRUE(first.epoch(1));
  StoppedRun second({.monitor = "val_loss", .patience = 3});
  second.callback->load_state_dict(first.callback->state_dict());
  EXPECT_FALSE(second.epoch(1));
  EXPECT_TRUE(second.epoch(1));
}

TEST(EarlyStopping, ValuesThatAreNotFiniteStopAtOnceUnlessUnchecked) {
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    StoppedRun run({.monitor = "val_loss"});
    EXPECT_FALSE(run.epoch(1));
    EXPECT_TRUE(run.epoch(value));
    EXPECT_NE(run.reason().find("is not finite; the best value before was 1"), std::string::npos)
        << run.reason();
  }
  StoppedRun unchecked({.monitor = "val_loss", .patience = 2, .check_finite = false});
  EXPECT_FALSE(unchecked.epoch(std::nan("")));
  EXPECT_FALSE(unchecked.epoch(1));
  EXPECT_EQ(unchecked.callback->best_score(), 1);
  EXPECT_FALSE(unchecked.epoch(std::nan("")));
  EXPECT_TRUE(unchecked.epoch(std::nan("")));
}

TEST(EarlyStopping, ThresholdsStopInTheRightDirection) {
  StoppedRun good({.monitor = "val_loss", .mode = MonitorMode::kMax, .stopping_threshold = 0.9});
  EXPECT_FALSE(good.epoch(0.9));
  EXPECT_TRUE(good.epoch(0.95));
  StoppedRun bad({.monitor = "val_loss", .divergence_threshold = 10});
  EXPECT_FALSE(bad.epoch(10));
  EXPECT_TRUE(bad.epoch(11));
  EXPECT_NE(bad.reason().find("worse than the divergence threshold 10"), std::string::npos);
}

TEST(EarlyStopping, ChecksOnceAtTheEndOfValidationIfThereAreSeveral) {
  StoppedRun run({.monitor = "val_loss", .patience = 1});
  run.trainer.run_plan.validates_once_per_epoch = false;
  run.trainer.metrics["val_loss"] = 1;
  run.callback->on_validation_end(run.trainer, run.trainer.module());
  run.callback->on_train_epoch_end(run.trainer, run.trainer.module());
  EXPECT_EQ(run.callback->wait_count(), 0);
  run.callback->on_validation_end(run.trainer, run.trainer.module());
  EXPECT_EQ(run.callback->wait_count(), 1);
}

// lightning.md section 5: time-based validation, so an epoch may end before the first one.
TEST(EarlyStopping, AnEpochBeforeTheFirstValidationIsNoError) {
  for (const auto choice : {std::optional<bool>(), std::optional(true)}) {
    StoppedRun run({.monitor = "val_loss", .patience = 1, .check_on_train_epoch_end = choice});
    run.trainer.run_plan.validates_once_per_epoch = false;
    EXPECT_NO_THROW(run.callback->on_train_epoch_end(run.trainer, run.trainer.module()));
    EXPECT_FALSE(run.epoch(1));
    EXPECT_TRUE(run.epoch(1));
  }
}

TEST(EarlyStopping, AMissingMetricIsAnErrorUnlessNotStrict) {
  StoppedRun strict({.monitor = "acc"});
  try {
    strict.epoch(1);
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'acc'"), std::string::npos) << text;
    EXPECT_NE(text.find("Logged were: 'val_loss'"), std::string::npos) << text;
  }
  StoppedRun lenient({.monitor = "acc", .strict = false});
  EXPECT_FALSE(lenient.epoch(1));
  EXPECT_FALSE(lenient.epoch(1));
  EXPECT_EQ(lenient.trainer.sink->count(LogLevel::kWarning, "'acc' was not logged"), 1);
}

TEST(EarlyStopping, SleepsInSanityChecksDryRunsAndOtherStages) {
  for (int which = 0; which < 3; ++which) {
    StoppedRun run({.monitor = "acc"});
    run.trainer.in_sanity_check = which == 0;
    run.trainer.run_plan.fast_dev_run = which == 1;
    run.trainer.current_stage = which == 2 ? Stage::kValidate : Stage::kFit;
    EXPECT_NO_THROW(run.epoch(1));
  }
}

TEST(EarlyStopping, BadOptionsAreRefused) {
  EXPECT_THROW(EarlyStopping::make({}), ConfigError);
  EXPECT_THROW(EarlyStopping::make({.monitor = "a", .min_delta = -1}), ConfigError);
  EXPECT_THROW(EarlyStopping::make({.monitor = "a", .min_delta = std::nan("")}), ConfigError);
  EXPECT_THROW(EarlyStopping::make({.monitor = "a", .patience = -1}), ConfigError);
  EXPECT_THROW(EarlyStopping::make({.monitor = "a", .stopping_threshold = std::nan("")}),
               ConfigError);
}

TEST(EarlyStopping, StateKeyNamesMonitorAndMode) {
  EXPECT_EQ(EarlyStopping::make({.monitor = "a"})->state_key(),
            "EarlyStopping{monitor=a, mode=min}");
  EXPECT_EQ(EarlyStopping::make({.monitor = "a"})->kind(), CallbackKind::kMonitor);
}

TEST(EarlyStopping, DamagedStateIsRefused) {
  const auto callback = EarlyStopping::make({.monitor = "a"});
  EXPECT_THROW(callback->load_state_dict({}), CheckpointError);
}

}  // namespace
}  // namespace fulmen
