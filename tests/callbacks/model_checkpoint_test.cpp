#include "fulmen/callbacks/model_checkpoint.h"

#include <cmath>
#include <fstream>

#include "fulmen/core/checkpoint/checkpoint.h"
#include "fulmen/core/support/error.h"
#include "tests/callbacks/model_checkpoint_fixture.h"

namespace fulmen {
namespace {

using Names = std::set<std::string>;

std::string refusal(ModelCheckpointOptions options) {
  try {
    ModelCheckpoint::make(std::move(options));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST(ModelCheckpoint, BadOptionsAreRefusedWithNameAndValue) {
  EXPECT_TRUE(contains(refusal({.save_top_k = -2}),
                       "save_top_k must be -1 (all), 0 (none) or more, got -2"));
  EXPECT_TRUE(contains(refusal({.save_top_k = 2}), "Set monitor"));
  EXPECT_TRUE(contains(refusal({.every_n_train_steps = 0}),
                       "every_n_train_steps must be at least 1, got 0"));
  EXPECT_TRUE(
      contains(refusal({.every_n_epochs = -1}), "every_n_epochs must be at least 1, got -1"));
  EXPECT_TRUE(
      contains(refusal({.train_time_interval = std::chrono::seconds(0)}), "train_time_interval"));
  EXPECT_TRUE(contains(refusal({.every_n_train_steps = 1, .every_n_epochs = 1}),
                       "2 of every_n_train_steps"));
  EXPECT_TRUE(contains(refusal({.filename = "a/b"}), "dirpath"));
  EXPECT_EQ(refusal({.monitor = "val_loss", .save_top_k = 3, .every_n_epochs = 2}), "");
}

TEST(ModelCheckpoint, WithoutMonitorKeepsTheNewestOfEachEpoch) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path());
  run.start();
  run.epoch(1);
  EXPECT_EQ(run.checkpoints(), Names{"epoch=0-step=1"});
  run.epoch(2);
  EXPECT_EQ(run.checkpoints(), Names{"epoch=1-step=2"});
  EXPECT_EQ(run.pointer("last"), "epoch=1-step=2");
  EXPECT_EQ(run.pointer("best"), "epoch=1-step=2");
  EXPECT_EQ(run.callback->best_model_path(), run.callback->dirpath() / "epoch=1-step=2");
  EXPECT_EQ(run.callback->best_model_score(), std::nullopt);
}

TEST(ModelCheckpoint, KeepsAllForMinusOneAndNoneForZero) {
  TemporaryDirectory folder;
  CheckpointRun all(folder.path() / "all", {.save_top_k = -1});
  all.start();
  CheckpointRun none(folder.path() / "none", {.save_top_k = 0});
  none.start();
  for (int i = 0; i < 3; ++i) {
    all.epoch(i);
    none.epoch(i);
  }
  none.finish();
  EXPECT_EQ(all.checkpoints().size(), 3u);
  EXPECT_TRUE(none.checkpoints().empty());
  EXPECT_TRUE(none.trainer.sink->lines.empty());
}

TEST(ModelCheckpoint, KeepsTheBestThreeOfSix) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(),
                    {.monitor = "val_loss", .mode = MonitorMode::kMax, .save_top_k = 3});
  run.start();
  for (const double score : {0.5, 0.9, 0.1, 0.7, 0.2, 0.8}) run.epoch(score);
  EXPECT_EQ(run.checkpoints(), (Names{"epoch=1-step=2", "epoch=3-step=4", "epoch=5-step=6"}));
  EXPECT_EQ(run.callback->best_model_score(), 0.9);
  EXPECT_EQ(run.callback->kth_value(), 0.7);
  EXPECT_EQ(run.callback->kth_best_model_path().filename(), "epoch=3-step=4");
  EXPECT_EQ(run.callback->best_k_models().size(), 3u);
  EXPECT_EQ(run.pointer("best"), "epoch=1-step=2");
  EXPECT_EQ(run.pointer("last"), "epoch=5-step=6");
}

// faults.md row 66.
TEST(ModelCheckpoint, NanIsNeverBestOnceThereIsANumber) {
  for (const auto mode : {MonitorMode::kMin, MonitorMode::kMax}) {
    TemporaryDirectory folder;
    CheckpointRun run(folder.path(), {.monitor = "val_loss", .mode = mode});
    run.start();
    run.epoch(std::nan(""));
    EXPECT_EQ(run.pointer("best"), "epoch=0-step=1");
    run.epoch(0.5);
    EXPECT_EQ(run.callback->best_model_score(), 0.5);
    run.epoch(mode == MonitorMode::kMin ? 0.4 : 0.6);
    run.epoch(std::nan(""));
    EXPECT_EQ(run.callback->best_model_score(), mode == MonitorMode::kMin ? 0.4 : 0.6);
    EXPECT_EQ(run.checkpoints(), Names{"epoch=2-step=3"});
    EXPECT_EQ(run.pointer("best"), "epoch=2-step=3");
  }
}

// faults.md row 67.
TEST(ModelCheckpoint, TheBestAndTheNewestAreKeptAndTheMiddleOneGoes) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.monitor = "val_loss", .save_last = SaveLast::kPointer});
  run.start();
  for (const double score : {0.1, 0.3, 0.2}) run.epoch(score);
  EXPECT_EQ(run.checkpoints(), (Names{"epoch=0-step=1", "epoch=2-step=3"}));
  EXPECT_EQ(run.pointer("best"), "epoch=0-step=1");
  EXPECT_EQ(run.pointer("last"), "epoch=2-step=3");
}

TEST(ModelCheckpoint, OnlyTheLastIsKeptWithSaveLastAndNoTopK) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.save_top_k = 0, .save_last = SaveLast::kPointer});
  run.start();
  run.epoch(1);
  run.epoch(1);
  EXPECT_EQ(run.checkpoints(), Names{"epoch=1-step=2"});
  EXPECT_EQ(run.pointer("last"), "epoch=1-step=2");
  EXPECT_TRUE(run.callback->best_model_path().empty());
}

// faults.md row 63: what is removed goes after the new one is there and named.
TEST(ModelCheckpoint, TheOldOneIsThereWhileTheNewOneIsWritten) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path());
  run.start();
  run.epoch(1);
  const auto save = run.trainer.on_save;
  Names seen;
  run.trainer.on_save = [&](const auto& path, auto scope) {
    save(path, scope);
    seen = run.checkpoints();
    EXPECT_EQ(run.pointer("last"), "epoch=0-step=1");
  };
  run.epoch(1);
  EXPECT_EQ(seen, (Names{"epoch=0-step=1", "epoch=1-step=2"}));
}

TEST(ModelCheckpoint, AFailedSaveChangesNothing) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.monitor = "val_loss"});
  run.start();
  run.epoch(0.5);
  const auto save = std::exchange(run.trainer.on_save,
                                  [](const auto&, auto) { throw CheckpointError("disk full"); });
  EXPECT_THROW(run.epoch(0.4), CheckpointError);
  EXPECT_EQ(run.checkpoints(), Names{"epoch=0-step=1"});
  EXPECT_EQ(run.callback->best_model_score(), 0.5);
  EXPECT_EQ(run.callback->last_model_path().filename(), "epoch=0-step=1");
  run.trainer.on_save = save;
  run.trainer.counters = {.epoch = 1, .total_batches = 1, .global_step = 1};
  run.epoch(0.4);
  EXPECT_EQ(run.checkpoints(), Names{"epoch=1-step=2"});
}

// faults.md row 70.
TEST(ModelCheckpoint, ARemovedOldCheckpointIsAWarningOnly) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path());
  run.start();
  run.epoch(1);
  std::filesystem::remove_all(folder.path() / "epoch=0-step=1");
  run.epoch(1);
  EXPECT_EQ(run.warnings("epoch=0-step=1' was to be removed and is gone already"), 1)
      << run.trainer.sink->all();
  EXPECT_EQ(run.checkpoints(), Names{"epoch=1-step=2"});
}

TEST(ModelCheckpoint, AnOldCheckpointWithForeignFilesStaysWithAWarning) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path());
  run.start();
  run.epoch(1);
  std::ofstream(folder.path() / "epoch=0-step=1" / "notes.txt") << "mine";
  run.epoch(1);
  EXPECT_EQ(run.warnings("could not be removed"), 1);
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "epoch=0-step=1" / "notes.txt"));
}

// faults.md row 68.
TEST(ModelCheckpoint, ASecondSaverOfTheSameNamesIsDistinctAndSaidSo) {
  TemporaryDirectory folder;
  CheckpointRun first(folder.path(), {.save_top_k = -1});
  CheckpointRun second(folder.path(), {.save_top_k = -1});
  first.start();
  second.start();
  first.epoch(1);
  second.epoch(1);
  EXPECT_EQ(first.checkpoints(), (Names{"epoch=0-step=1", "epoch=0-step=1-v1"}));
  EXPECT_EQ(second.warnings("saving as 'epoch=0-step=1-v1'"), 1) << second.trainer.sink->all();
  EXPECT_EQ(first.pointer("last"), "epoch=0-step=1-v1");
  second.epoch(1);
  EXPECT_EQ(first.pointer("last"), "epoch=1-step=2");
}

TEST(ModelCheckpoint, ARestartInTheSameFolderLeavesTheOldFilesAndMovesLast) {
  TemporaryDirectory folder;
  {
    CheckpointRun old(folder.path());
    old.start();
    old.epoch(1);
    old.epoch(1);
  }
  CheckpointRun fresh(folder.path());
  fresh.start();
  fresh.epoch(1);
  EXPECT_EQ(fresh.pointer("last"), "epoch=0-step=1");
  fresh.epoch(1);
  EXPECT_EQ(fresh.pointer("last"), "epoch=1-step=2-v1");
  EXPECT_EQ(fresh.checkpoints(), (Names{"epoch=1-step=2", "epoch=1-step=2-v1"}));
  EXPECT_EQ(fresh.warnings("of another callback or an earlier run"), 1)
      << fresh.trainer.sink->all();
}

TEST(ModelCheckpoint, ATakenNameIsAnErrorWithoutTheVersionCounter) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(),
                    {.filename = "model", .save_top_k = -1, .enable_version_counter = false});
  run.start();
  run.epoch(1);
  EXPECT_THROW(run.epoch(1), CheckpointError);
  CheckpointRun counted(folder.path(), {.filename = "other", .save_top_k = -1});
  counted.start();
  counted.epoch(1);
  counted.epoch(1);
  counted.epoch(1);
  EXPECT_EQ(counted.checkpoints(), (Names{"model", "other", "other-v1", "other-v2"}));
  EXPECT_EQ(counted.warnings("exists already"), 0) << counted.trainer.sink->all();
}

// faults.md row 69.
TEST(ModelCheckpoint, AMetricNameWithASlashMakesNoFolder) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.filename = "{epoch}-{val/loss:.2f}", .monitor = "val/loss"});
  run.trainer.metrics["val/loss"] = 0.25;
  run.start();
  run.epoch(std::nullopt);
  ASSERT_EQ(run.checkpoints(), Names{"epoch=0-val%2Floss=0.25"});
  EXPECT_EQ(parse_checkpoint_name(run.pointer("best")).at("val/loss"), 0.25);
}

TEST(ModelCheckpoint, DefaultDirectoryIsTheFirstLoggersAndThenTheRoot) {
  TemporaryDirectory folder;
  FakeTrainer trainer;
  trainer.run_plan.default_root_dir = folder.path() / "root";
  const auto callback = ModelCheckpoint::make();
  callback->setup(trainer, trainer.module(), Stage::kFit);
  EXPECT_EQ(callback->dirpath(),
            std::filesystem::canonical(folder.path()) / "root" / "checkpoints");
  const auto nowhere = std::make_shared<CapturingLogger>();
  trainer.logger_list = {nowhere};
  callback->setup(trainer, trainer.module(), Stage::kFit);
  EXPECT_EQ(callback->dirpath(),
            std::filesystem::canonical(folder.path()) / "root" / "checkpoints");
  nowhere->directory = folder.path() / "logs";
  callback->setup(trainer, trainer.module(), Stage::kFit);
  EXPECT_EQ(callback->dirpath(),
            std::filesystem::canonical(folder.path()) / "logs" / "checkpoints");
}

TEST(ModelCheckpoint, LoggersHearOfEverySave) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path());
  const auto logger = std::make_shared<CapturingLogger>();
  run.trainer.logger_list = {logger};
  run.start();
  run.epoch(1);
  ASSERT_EQ(logger->checkpoints.size(), 1u);
  EXPECT_EQ(logger->checkpoints[0], run.callback->last_model_path());
}

TEST(ModelCheckpoint, WeightsOnlyIsPassedOn) {
  TemporaryDirectory folder;
  CheckpointRun run(folder.path(), {.save_weights_only = true});
  run.start();
  run.epoch(1);
  ASSERT_EQ(run.trainer.saved.size(), 1u);
  EXPECT_EQ(run.trainer.saved[0].scope, CheckpointScope::kWeightsOnly);
}

TEST(ModelCheckpoint, TwoOfThemHaveDifferentStateKeysUnlessTheyAreTheSame) {
  const auto key = [](ModelCheckpointOptions options) {
    return ModelCheckpoint::make(std::move(options))->state_key();
  };
  EXPECT_EQ(key({}), key({}));
  EXPECT_NE(key({}), key({.monitor = "a"}));
  EXPECT_NE(key({.monitor = "a"}), key({.monitor = "a", .mode = MonitorMode::kMax}));
  EXPECT_NE(key({}), key({.every_n_train_steps = 1}));
}

}  // namespace
}  // namespace fulmen
