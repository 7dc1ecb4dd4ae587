#include <cmath>

#include "fulmen/callbacks/model_checkpoint.h"
#include "fulmen/core/support/error.h"
#include "tests/callbacks/model_checkpoint_fixture.h"

namespace fulmen {
namespace {

using Names = std::set<std::string>;

// faults.md row 65.
TEST(ModelCheckpointResume, ExactlyTheBestThreeOfBothRunsAreKept) {
  TemporaryDirectory folder;
  const ModelCheckpointOptions options{.monitor = "val_loss", .save_top_k = 3};
  CheckpointRun first(folder.path(), options);
  first.start();
  for (const double score : {0.9, 0.3, 0.5}) first.epoch(score);
  CheckpointRun second(folder.path(), options);
  second.start(folder.path() / "epoch=2-step=3");
  EXPECT_EQ(second.callback->best_k_models().size(), 3u);
  EXPECT_EQ(second.callback->kth_value(), 0.9);
  for (const double score : {0.8, 0.2, 0.7}) second.epoch(score);
  EXPECT_EQ(second.checkpoints(), (Names{"epoch=1-step=2", "epoch=2-step=3", "epoch=4-step=5"}));
  EXPECT_EQ(second.callback->best_model_score(), 0.2);
  EXPECT_EQ(second.pointer("best"), "epoch=4-step=5");
  EXPECT_EQ(second.warnings(""), 0) << second.trainer.sink->all();
}

// faults.md row 64.
TEST(ModelCheckpointResume, AFileOfAnotherRunIsNeverRemoved) {
  TemporaryDirectory folder;
  const ModelCheckpointOptions options{.monitor = "val_loss"};
  CheckpointRun a(folder.path() / "a", options);
  a.start();
  a.epoch(0.5);
  CheckpointRun b(folder.path() / "b", options);
  b.start(folder.path() / "a" / "epoch=0-step=1");
  EXPECT_EQ(b.callback->best_model_path(), folder.path() / "a" / "epoch=0-step=1");
  EXPECT_EQ(b.callback->best_model_score(), std::nullopt);
  b.epoch(0.9);
  b.epoch(0.1);
  EXPECT_EQ(a.checkpoints(), Names{"epoch=0-step=1"});
  EXPECT_EQ(b.checkpoints(), Names{"epoch=2-step=3"});
}

TEST(ModelCheckpointResume, WhatTheRunIsRestoredFromIsRemovedByTheNextRunOnly) {
  TemporaryDirectory folder;
  CheckpointRun first(folder.path());
  first.start();
  first.epoch(1);
  CheckpointRun second(folder.path());
  second.start(folder.path() / "epoch=0-step=1");
  second.epoch(1);
  second.epoch(1);
  EXPECT_EQ(second.checkpoints(), (Names{"epoch=0-step=1", "epoch=2-step=3"}));
  CheckpointRun third(folder.path());
  third.start(folder.path() / "epoch=2-step=3");
  EXPECT_EQ(third.checkpoints(), Names{"epoch=2-step=3"});
  EXPECT_EQ(third.warnings(""), 0) << third.trainer.sink->all();
}

TEST(ModelCheckpointResume, ARunKilledBetweenSaveAndRemovalIsCleanedUp) {
  TemporaryDirectory folder;
  CheckpointRun first(folder.path());
  first.start();
  first.epoch(1);
  const auto save = first.trainer.on_save;
  first.trainer.on_save = [&](const auto& path, auto scope) {
    save(path, scope);
    throw std::runtime_error("killed");
  };
  EXPECT_THROW(first.epoch(1), std::runtime_error);
  EXPECT_EQ(first.checkpoints(), (Names{"epoch=0-step=1", "epoch=1-step=2"}));
  CheckpointRun second(folder.path());
  second.start(folder.path() / "epoch=1-step=2");
  EXPECT_EQ(second.checkpoints(), Names{"epoch=1-step=2"});
}

TEST(ModelCheckpointResume, ANewerFileUnderAnOldNameIsNotRemoved) {
  TemporaryDirectory folder;
  CheckpointRun first(folder.path(), {.save_top_k = 1});
  first.start();
  first.epoch(1);
  first.epoch(1);
  // Its state says that epoch=0-step=1 is to go; somebody has made a new one since.
  write_state(folder.path() / "epoch=0-step=1", *first.callback, first.trainer.counters);
  std::filesystem::last_write_time(
      folder.path() / "epoch=0-step=1",
      std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  CheckpointRun second(folder.path());
  second.start(folder.path() / "epoch=1-step=2");
  EXPECT_EQ(second.checkpoints(), (Names{"epoch=0-step=1", "epoch=1-step=2"}));
}

TEST(ModelCheckpointResume, ABestFileThatIsGoneIsForgottenWithAWarning) {
  TemporaryDirectory folder;
  const ModelCheckpointOptions options{.monitor = "val_loss", .save_top_k = 2};
  CheckpointRun first(folder.path(), options);
  first.start();
  first.epoch(0.1);
  first.epoch(0.2);
  std::filesystem::remove_all(folder.path() / "epoch=0-step=1");
  CheckpointRun second(folder.path(), options);
  second.start(folder.path() / "epoch=1-step=2");
  EXPECT_EQ(second.warnings("was among the best and is gone"), 1);
  EXPECT_EQ(second.callback->best_model_score(), 0.2);
}

TEST(ModelCheckpointResume, NanScoresComeBack) {
  TemporaryDirectory folder;
  CheckpointRun first(folder.path(), {.monitor = "val_loss"});
  first.start();
  first.epoch(std::nan(""));
  CheckpointRun second(folder.path(), {.monitor = "val_loss"});
  second.start(folder.path() / "epoch=0-step=1");
  EXPECT_TRUE(std::isnan(second.callback->best_model_score().value()));
  second.epoch(0.5);
  EXPECT_EQ(second.callback->best_model_score(), 0.5);
}

TEST(ModelCheckpointResume, ANewCallbackInAResumedRunCountsStepsFromThere) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.save_top_k = -1, .every_n_train_steps = 5});
  run.trainer.counters.global_step = 7;
  run.trainer.counters.total_batches = 7;
  run.trainer.run_plan.train_batches = 100;
  run.start();
  for (int i = 0; i < 3; ++i) run.batch();
  EXPECT_EQ(run.checkpoints(), Names{"epoch=0-step=10"});
}

TEST(ModelCheckpointResume, AHostileNameInTheStateIsRefused) {
  const auto callback = ModelCheckpoint::make();
  auto state = callback->state_dict();
  state.values["to_remove"] = boost::json::array{"../../home"};
  EXPECT_THROW(callback->load_state_dict(state), CheckpointError);
  state = callback->state_dict();
  state.values["last"] = "/etc";
  EXPECT_THROW(callback->load_state_dict(state), CheckpointError);
  state = callback->state_dict();
  state.values.erase("kept");
  EXPECT_THROW(callback->load_state_dict(state), CheckpointError);
}

TEST(ModelCheckpointInterrupt, SavesEverythingAndLastNamesIt) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.monitor = "val_loss", .save_weights_only = true});
  run.trainer.run_plan.train_batches = 5;
  run.start();
  run.batch();
  run.callback->on_interrupt(run.trainer, run.trainer.module(), "SIGTERM");
  ASSERT_EQ(run.trainer.saved.size(), 1u);
  EXPECT_EQ(run.trainer.saved[0].scope, CheckpointScope::kEverything);
  EXPECT_EQ(run.pointer("last"), "interrupted-epoch=0-step=1");
  EXPECT_EQ(run.pointer("best"), "");
}

TEST(ModelCheckpointInterrupt, AStateThatIsSavedAlreadyIsNotSavedAgain) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path());
  run.start();
  run.batch();
  run.validate(1);
  run.callback->on_train_epoch_end(run.trainer, run.trainer.module());
  run.callback->on_interrupt(run.trainer, run.trainer.module(), "SIGTERM");
  EXPECT_EQ(run.checkpoints(), Names{"epoch=0-step=1"});
  EXPECT_EQ(run.pointer("last"), "epoch=0-step=1");
}

TEST(ModelCheckpointInterrupt, ItsCheckpointGoesWhenTheRunIsTwoRestartsOn) {
  TemporaryDirectory folder;
  CheckpointRun first(folder.path());
  first.trainer.run_plan.train_batches = 5;
  first.start();
  first.batch();
  first.callback->on_interrupt(first.trainer, first.trainer.module(), "SIGTERM");
  CheckpointRun second(folder.path());
  second.start(folder.path() / "interrupted-epoch=0-step=1");
  second.epoch(1);
  EXPECT_EQ(second.checkpoints(), (Names{"epoch=1-step=2", "interrupted-epoch=0-step=1"}));
  CheckpointRun third(folder.path());
  third.start(folder.path() / "epoch=1-step=2");
  EXPECT_EQ(third.checkpoints(), Names{"epoch=1-step=2"});
}

TEST(ModelCheckpointInterrupt, CanBeTurnedOff) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.save_on_interrupt = false});
  run.start();
  run.batch();
  run.callback->on_interrupt(run.trainer, run.trainer.module(), "SIGTERM");
  EXPECT_TRUE(run.trainer.saved.empty());
}

TEST(ModelCheckpointException, SavesOnlyIfAskedAndNeverHidesTheError) {
  TemporaryDirectory folder;
  CheckpointRun off(folder.path());
  off.start();
  off.batch();
  off.callback->on_exception(off.trainer, off.trainer.module(), std::runtime_error("boom"));
  EXPECT_FALSE(off.callback->saves_on_exception());
  EXPECT_TRUE(off.trainer.saved.empty());

  CheckpointRun on(folder.path(), {.save_on_exception = true});
  on.start();
  on.batch();
  on.callback->on_exception(on.trainer, on.trainer.module(), std::runtime_error("boom"));
  EXPECT_TRUE(on.callback->saves_on_exception());
  EXPECT_EQ(on.pointer("last"), "exception-epoch=0-step=1");
  on.trainer.on_save = [](const auto&, auto) { throw CheckpointError("disk full"); };
  on.batch();
  EXPECT_NO_THROW(
      on.callback->on_exception(on.trainer, on.trainer.module(), std::runtime_error("boom")));
  EXPECT_EQ(on.trainer.sink->count(LogLevel::kError, "disk full"), 1);
}

}  // namespace
}  // namespace fulmen
