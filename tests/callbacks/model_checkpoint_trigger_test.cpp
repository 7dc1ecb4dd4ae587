#include "fulmen/callbacks/model_checkpoint.h"
#include "fulmen/core/support/error.h"
#include "tests/callbacks/model_checkpoint_fixture.h"

namespace fulmen {
namespace {

using Names = std::set<std::string>;

TEST(ModelCheckpointTrigger, EveryNStepsSavesAtMultiples) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.save_top_k = -1, .every_n_train_steps = 2});
  run.trainer.run_plan.train_batches = 5;
  run.start();
  for (int i = 0; i < 5; ++i) run.batch();
  run.validate(1);
  run.end_epoch();
  EXPECT_EQ(run.checkpoints(), (Names{"epoch=0-step=2", "epoch=0-step=4"}));
}

TEST(ModelCheckpointTrigger, AStepIsSavedOnceThoughItsWindowHasMoreBatches) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.save_top_k = -1, .every_n_train_steps = 2});
  run.trainer.run_plan.train_batches = 9;
  run.start();
  auto& counters = run.trainer.counters;
  for (int batch = 0; batch < 9; ++batch) {
    counters.global_step = (batch + 1) / 2;
    counters.batch_idx = batch;
    counters.total_batches = batch + 1;
    run.callback->on_train_batch_end(run.trainer, run.trainer.module(), {}, {}, batch);
  }
  EXPECT_EQ(run.checkpoints(), (Names{"epoch=0-step=2", "epoch=0-step=4"}));
}

TEST(ModelCheckpointTrigger, AStepThatJumpsOverAMultipleStillSaves) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.save_top_k = -1, .every_n_train_steps = 3});
  run.trainer.run_plan.train_batches = 9;
  run.start();
  for (int i = 0; i < 4; ++i) {
    ++run.trainer.counters.global_step;  // Two steps a batch, in manual optimization.
    run.batch();
  }
  EXPECT_EQ(run.checkpoints(), (Names{"epoch=0-step=4", "epoch=0-step=6"}));
}

TEST(ModelCheckpointTrigger, EveryNEpochsCountsFromOne) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.save_top_k = -1, .every_n_epochs = 2});
  run.start();
  for (int i = 0; i < 4; ++i) run.epoch(1);
  EXPECT_EQ(run.checkpoints(), (Names{"epoch=1-step=2", "epoch=3-step=4"}));
}

TEST(ModelCheckpointTrigger, TimeIntervalSavesAfterTheBatchWhereItIsOver) {
  TemporaryDirectory folder;
  const FakeClock clock;
  CheckpointRun run(
      folder.path(),
      {.save_top_k = -1, .train_time_interval = std::chrono::seconds(10), .clock = clock});
  run.trainer.run_plan.train_batches = 100;
  run.start();
  for (int i = 0; i < 7; ++i) {
    clock.advance(std::chrono::seconds(4));
    run.batch();
  }
  EXPECT_EQ(run.checkpoints(), (Names{"epoch=0-step=3", "epoch=0-step=6"}));
}

TEST(ModelCheckpointTrigger, TimeIntervalWaitsForTheEndOfAWindow) {
  TemporaryDirectory folder;
  const FakeClock clock;
  CheckpointRun run(
      folder.path(),
      {.save_top_k = -1, .train_time_interval = std::chrono::seconds(10), .clock = clock});
  run.trainer.run_plan.train_batches = 100;
  run.start();
  run.batch();
  clock.advance(std::chrono::seconds(11));
  auto& counters = run.trainer.counters;
  ++counters.total_batches;  // No step.
  run.callback->on_train_batch_end(run.trainer, run.trainer.module(), {}, {}, counters.batch_idx++);
  EXPECT_TRUE(run.checkpoints().empty());
  run.batch();
  EXPECT_EQ(run.checkpoints(), Names{"epoch=0-step=2"});
}

TEST(ModelCheckpointTrigger, UncountedManualStepsStillSave) {
  TemporaryDirectory folder;
  const FakeClock clock;
  CheckpointRun timed(
      folder.path() / "time",
      {.save_top_k = -1, .train_time_interval = std::chrono::seconds(1), .clock = clock});
  CheckpointRun epochs(folder.path() / "epochs", {.save_top_k = -1});
  for (auto* run : {&timed, &epochs}) {
    run->trainer.run_plan.train_batches = 10;
    run->start();
    clock.advance(std::chrono::seconds(2));
    run->trainer.counters.total_batches = 1;
    run->callback->on_train_batch_end(run->trainer, run->trainer.module(), {}, {}, 0);
    run->end_epoch();
    EXPECT_EQ(run->checkpoints(), Names{"epoch=0-step=0"});
  }
}

TEST(ModelCheckpointTrigger, NothingIsSavedBeforeTheFirstBatchOrTwiceForAStep) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.save_top_k = -1, .save_on_train_epoch_end = false});
  run.start();
  run.validate(1);
  EXPECT_TRUE(run.trainer.saved.empty());
  run.batch();
  run.validate(1);
  run.validate(1);
  EXPECT_EQ(run.trainer.saved.size(), 1u);
}

TEST(ModelCheckpointTrigger, SanityCheckDryRunsAndOtherStagesSaveNothing) {
  TemporaryDirectory folder;
  for (int which = 0; which < 3; ++which) {
    CheckpointRun run(folder.path());
    run.start();
    run.trainer.in_sanity_check = which == 0;
    run.trainer.run_plan.fast_dev_run = which == 1;
    run.trainer.current_stage = which == 2 ? Stage::kValidate : Stage::kFit;
    run.epoch(1);
    run.callback->on_interrupt(run.trainer, run.trainer.module(), "SIGTERM");
    run.callback->on_exception(run.trainer, run.trainer.module(), std::runtime_error("x"));
    run.finish();
    EXPECT_TRUE(run.trainer.saved.empty()) << which;
    EXPECT_TRUE(run.trainer.sink->lines.empty()) << run.trainer.sink->all();
  }
}

TEST(ModelCheckpointTrigger, EpochsSaveAtTheirEndIfThatHasTheOnlyValidation) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path() / "end");
  run.start();
  run.batch();
  run.validate(1);
  EXPECT_TRUE(run.trainer.saved.empty());
  run.end_epoch();
  EXPECT_EQ(run.trainer.saved.size(), 1u);

  CheckpointRun validations(folder.path() / "validation", {.save_top_k = -1});
  validations.trainer.run_plan.validates_once_per_epoch = false;
  validations.start();
  validations.batch();
  validations.validate(1);
  EXPECT_EQ(validations.trainer.saved.size(), 1u);
  validations.end_epoch();
  EXPECT_EQ(validations.trainer.saved.size(), 1u);

  CheckpointRun none(folder.path() / "none");
  none.trainer.run_plan.validates_once_per_epoch = false;
  none.trainer.run_plan.has_validation = false;
  none.start();
  none.batch();
  none.end_epoch();
  EXPECT_EQ(none.trainer.saved.size(), 1u);
}

TEST(ModelCheckpointTrigger, AStepOnTheLastBatchWaitsForValidationIfAMetricDecides) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.monitor = "val_loss", .every_n_train_steps = 2});
  run.trainer.run_plan.train_batches = 2;
  run.start();
  run.trainer.metrics["val_loss"] = 9;
  run.batch();
  run.batch();
  EXPECT_TRUE(run.trainer.saved.empty());
  run.validate(0.5);
  EXPECT_EQ(run.checkpoints(), Names{"epoch=0-step=2"});
  EXPECT_EQ(run.callback->best_model_score(), 0.5);
}

TEST(ModelCheckpointTrigger, AStepBeforeTheMetricIsKnownWaitsForValidation) {
  TemporaryDirectory folder;
  for (const char* filename : {"{epoch}-{step}", "{step}-{val_loss:.1f}"}) {
    CheckpointRun run(folder.path() / filename,
                      {.filename = filename,
                       .monitor = filename[1] == 'e' ? "val_loss" : "",
                       .every_n_train_steps = 1});
    run.trainer.run_plan.train_batches = 3;
    run.start();
    run.batch();
    EXPECT_TRUE(run.trainer.saved.empty());
    EXPECT_TRUE(run.trainer.sink->lines.empty());
    run.validate(0.5);
    EXPECT_EQ(run.trainer.saved.size(), 1u) << filename;
    run.batch();
    EXPECT_EQ(run.trainer.saved.size(), filename[1] == 'e' ? 1u : 2u) << filename;
  }
}

TEST(ModelCheckpointTrigger, APostponedSaveHappensAtTheEpochsEndIfNoValidationCame) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.monitor = "val_loss", .every_n_train_steps = 1});
  run.start();
  run.trainer.metrics["val_loss"] = 0.5;
  run.batch();
  EXPECT_TRUE(run.trainer.saved.empty());
  run.end_epoch();
  EXPECT_EQ(run.trainer.saved.size(), 1u);
}

TEST(ModelCheckpointTrigger, APostponedSaveSurvivesARestart) {
  TemporaryDirectory folder;
  CheckpointRun first(folder.path(), {.monitor = "val_loss", .every_n_train_steps = 1});
  first.start();
  first.batch();
  first.callback->on_interrupt(first.trainer, first.trainer.module(), "SIGTERM");
  CheckpointRun second(folder.path(), {.monitor = "val_loss", .every_n_train_steps = 1});
  second.start(folder.path() / "interrupted-epoch=0-step=1");
  second.trainer.counters.epoch = 0;
  second.validate(0.5);
  EXPECT_EQ(second.callback->best_model_score(), 0.5);
  EXPECT_EQ(second.pointer("best"), "epoch=0-step=1");
}

TEST(ModelCheckpointTrigger, AMissingMonitorIsAWarningBeforeValidationAndAnErrorAfter) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.monitor = "val_los"});
  run.start();
  run.batch();
  run.end_epoch();
  run.batch();
  run.end_epoch();
  EXPECT_EQ(run.warnings("'val_los' of monitor is not logged"), 1) << run.trainer.sink->all();
  run.batch();
  run.validate(1);
  try {
    run.end_epoch();
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'val_los'"), std::string::npos) << text;
    EXPECT_NE(text.find("Logged were: 'val_loss'"), std::string::npos) << text;
  }
}

TEST(ModelCheckpointTrigger, AnUnknownMetricInTheNameIsAnErrorAtTheFirstSave) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.filename = "{epoch}-{acc:.2f}"});
  run.trainer.run_plan.has_validation = false;
  run.start();
  run.batch();
  EXPECT_THROW(run.end_epoch(), ConfigError);
}

TEST(ModelCheckpointTrigger, ARunThatTrainedAndSavedNothingSaysSo) {
  TemporaryDirectory folder;
  CheckpointRun never(folder.path() / "never", {.every_n_train_steps = 100});
  never.start();
  never.epoch(1);
  never.finish();
  EXPECT_EQ(never.warnings(
                "trained 1 batches and saved no checkpoint: every_n_train_steps was not reached"),
            1);

  CheckpointRun unknown(folder.path() / "unknown", {.monitor = "acc"});
  unknown.start();
  unknown.batch();
  unknown.end_epoch();
  unknown.finish();
  EXPECT_EQ(unknown.warnings("were not logged"), 1) << unknown.trainer.sink->all();

  CheckpointRun saved(folder.path() / "saved", {.monitor = "val_loss"});
  saved.start();
  saved.epoch(1);
  saved.finish();
  EXPECT_TRUE(saved.trainer.sink->lines.empty());
}

}  // namespace
}  // namespace fulmen
