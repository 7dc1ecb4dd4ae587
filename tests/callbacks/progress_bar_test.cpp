#include "fulmen/callbacks/progress_bar.h"

#include <gtest/gtest.h>

#include <sstream>

#include "callbacks/progress_text.h"
#include "fulmen/core/support/error.h"
#include "tests/support/fake_trainer.h"

namespace fulmen {
namespace {

/// Drives a bar as the trainer does, one second a training batch.
struct ShownRun {
  explicit ShownRun(ProgressBarOptions options) {
    options.output = &out;
    options.clock = clock;
    bar = ProgressBar::make(std::move(options));
    trainer.run_plan.train_batches = 4;
    trainer.run_plan.has_validation = true;
    trainer.run_plan.eval_batches = {1, 1};
    bar->setup(trainer, module, Stage::kFit);
  }
  void batch(double seconds = 1) {
    auto& counters = trainer.counters;
    clock.advance(std::chrono::duration<double>(seconds));
    bar->on_train_batch_end(trainer, module, {}, {}, counters.batch_idx);
    ++counters.batch_idx;
  }
  void validate() {
    bar->on_validation_start(trainer, module);
    for (std::int64_t loader = 0; loader < 2; ++loader) {
      clock.advance(std::chrono::milliseconds(500));
      bar->on_validation_batch_end(trainer, module, {}, {}, 0, loader);
    }
    bar->on_validation_end(trainer, module);
  }
  void start_epoch() { bar->on_train_epoch_start(trainer, module); }
  void end_epoch() {
    bar->on_train_epoch_end(trainer, module);
    ++trainer.counters.epoch;
    trainer.counters.batch_idx = 0;
  }
  /// What was written since the last call.
  std::string text() {
    auto result = out.str();
    out.str("");
    return result;
  }

  FakeTrainer trainer;
  ModuleBase& module = trainer.module();
  FakeClock clock;
  std::ostringstream out;
  std::shared_ptr<ProgressBar> bar;
};

TEST(ProgressBar, PlainWritesOneLineAnEpochWithItsMetrics) {
  ShownRun run({});
  run.trainer.in_sanity_check = true;
  run.bar->on_sanity_check_start(run.trainer, run.module);
  run.validate();
  run.bar->on_sanity_check_end(run.trainer, run.module);
  run.trainer.in_sanity_check = false;
  EXPECT_EQ(run.text(), "Sanity check: 2/2, 2.0 it/s, elapsed 0:01\n");
  run.bar->on_train_start(run.trainer, run.module);
  run.start_epoch();
  for (int i = 0; i < 4; ++i) run.batch(0.5);
  run.validate();
  run.end_epoch();
  EXPECT_EQ(run.text(), "");
  EXPECT_EQ(run.trainer.bar_reads, 0);
  run.trainer.metrics = {{"loss", 0.12345}, {"val_loss", 2e-5}};
  run.start_epoch();
  EXPECT_EQ(run.text(), "Epoch 0: 4/4, 2.0 it/s, elapsed 0:02, loss=0.123 val_loss=2.00e-05\n");
  EXPECT_EQ(run.trainer.bar_reads, 1);
  for (int i = 0; i < 4; ++i) run.batch();
  run.end_epoch();
  run.bar->on_train_end(run.trainer, run.module);
  EXPECT_EQ(run.text(), "Epoch 1: 4/4, 1.0 it/s, elapsed 0:04, loss=0.123 val_loss=2.00e-05\n");
}

TEST(ProgressBar, PlainWritesWithinAnEpochIfAsked) {
  ShownRun run({.refresh_rate = 2});
  run.bar->on_train_start(run.trainer, run.module);
  run.start_epoch();
  for (int i = 0; i < 4; ++i) run.batch();
  EXPECT_EQ(run.text(), "Epoch 0: 2/4, 1.0 it/s, eta 0:02\n");
  run.end_epoch();
  run.bar->on_train_end(run.trainer, run.module);
  EXPECT_EQ(run.text(), "Epoch 0: 4/4, 1.0 it/s, elapsed 0:04\n");
}

TEST(ProgressBar, PlainWritesValidationsInsideAnEpoch) {
  ShownRun run({});
  run.trainer.run_plan.validates_once_per_epoch = false;
  run.bar->on_train_start(run.trainer, run.module);
  run.start_epoch();
  run.batch();
  run.trainer.metrics = {{"val_loss", 0.5}};
  run.validate();
  EXPECT_EQ(run.text(), "Epoch 0 validation: 2/2, 2.0 it/s, elapsed 0:01, val_loss=0.500\n");
}

TEST(ProgressBar, TtyRedrawsOneLineAndLeavesTheFinishedOne) {
  ShownRun run({.style = ProgressBarStyle::kTty});
  run.trainer.metrics = {{"loss", 0.5}};
  run.bar->on_train_start(run.trainer, run.module);
  run.start_epoch();
  run.batch();
  EXPECT_EQ(run.text(),
            "\rEpoch 0: 1/4 [=====>              ] 1.0 it/s, eta 0:03, loss=0.500\x1b[K");
  run.validate();
  EXPECT_EQ(run.text(),
            "\rEpoch 0 validation: 1/2 [==========>         ] 2.0 it/s, eta 0:01\x1b[K"
            "\rEpoch 0 validation: 2/2 [====================] 2.0 it/s, elapsed 0:01\x1b[K"
            "\rEpoch 0: 1/4 [=====>              ] 1.0 it/s, eta 0:03, loss=0.500\x1b[K");
  for (int i = 0; i < 3; ++i) run.batch();
  run.text();
  run.end_epoch();
  run.bar->on_train_end(run.trainer, run.module);
  EXPECT_EQ(run.text(),
            "\rEpoch 0: 4/4 [====================] 1.0 it/s, elapsed 0:04, loss=0.500\x1b[K\n");
}

TEST(ProgressBar, TtyDrawsNoOftenerThanItsIntervalAndReadsMetricsOnlyThen) {
  ShownRun run(
      {.style = ProgressBarStyle::kTty, .min_refresh_interval = std::chrono::milliseconds(100)});
  run.trainer.run_plan.train_batches = 1000;
  run.bar->on_train_start(run.trainer, run.module);
  run.start_epoch();
  for (int i = 0; i < 1000; ++i) run.batch(0.001);
  // The first batch, then every 100 ms of a second.
  EXPECT_EQ(run.trainer.bar_reads, 10);
}

TEST(ProgressBar, RefreshRateThinsTheLiveLine) {
  ShownRun run({.refresh_rate = 3,
                .style = ProgressBarStyle::kTty,
                .min_refresh_interval = std::chrono::seconds(0)});
  run.bar->on_train_start(run.trainer, run.module);
  run.start_epoch();
  for (int i = 0; i < 4; ++i) run.batch();
  EXPECT_EQ(run.trainer.bar_reads, 2);  // Batches 3 and 4, the last.
}

// faults.md row 85.
TEST(ProgressBar, UnknownLengthIsShownOpen) {
  ShownRun run({.style = ProgressBarStyle::kTty});
  run.trainer.run_plan.train_batches.reset();
  run.trainer.run_plan.eval_batches = {3, std::nullopt};
  run.bar->on_train_start(run.trainer, run.module);
  run.start_epoch();
  run.batch(2);
  EXPECT_EQ(run.text(), "\rEpoch 0: 1/?, 2.0 s/it, elapsed 0:02\x1b[K");
  run.bar->on_validation_start(run.trainer, run.module);
  run.clock.advance(std::chrono::seconds(1));
  run.bar->on_validation_batch_end(run.trainer, run.module, {}, {}, 0, 0);
  EXPECT_EQ(run.text(), "\rEpoch 0 validation: 1/?, 1.0 it/s, elapsed 0:01\x1b[K");
}

TEST(ProgressBar, LiveLineIsCutToTheWidth) {
  ShownRun run({.style = ProgressBarStyle::kTty, .width = 20});
  run.bar->on_train_start(run.trainer, run.module);
  run.start_epoch();
  run.batch();
  EXPECT_EQ(run.text(), "\rEpoch 0: 1/4 [=====\x1b[K");
}

TEST(ProgressBar, AResumedEpochStartsInTheMiddleAndRatesOnlyWhatItDid) {
  ShownRun run({.refresh_rate = 1});
  run.trainer.counters.batch_idx = 2;
  run.bar->on_train_start(run.trainer, run.module);
  run.batch();
  EXPECT_EQ(run.text(), "Epoch 0: 3/4, 1.0 it/s, eta 0:01\n");
}

TEST(ProgressBar, OtherStagesHaveALineEach) {
  ShownRun run({});
  run.trainer.run_plan.eval_batches = {2};
  run.bar->on_test_start(run.trainer, run.module);
  run.clock.advance(std::chrono::seconds(4));
  run.bar->on_test_batch_end(run.trainer, run.module, {}, {}, 0, 0);
  run.bar->on_test_batch_end(run.trainer, run.module, {}, {}, 1, 0);
  run.bar->on_test_end(run.trainer, run.module);
  EXPECT_EQ(run.text(), "Testing: 2/2, 2.0 s/it, elapsed 0:04\n");
  run.bar->on_validation_start(run.trainer, run.module);
  run.bar->on_validation_end(run.trainer, run.module);
  EXPECT_EQ(run.text(), "Validating: 0/2, ? it/s, elapsed 0:00\n");
  run.bar->on_predict_start(run.trainer, run.module);
  run.bar->on_predict_end(run.trainer, run.module);
  EXPECT_EQ(run.text(), "Predicting: 0/2, ? it/s, elapsed 0:00\n");
}

TEST(ProgressBar, AFailedRunEndsTheLineWithoutReadingMetrics) {
  ShownRun run({.style = ProgressBarStyle::kTty});
  run.bar->on_train_start(run.trainer, run.module);
  run.start_epoch();
  run.batch();
  const int reads = run.trainer.bar_reads;
  run.text();
  run.bar->on_exception(run.trainer, run.module, std::runtime_error("x"));
  EXPECT_EQ(run.text(), "\rEpoch 0: 1/4 [=====>              ] 1.0 it/s, eta 0:03\x1b[K\n");
  EXPECT_EQ(run.trainer.bar_reads, reads);
  run.bar->on_train_end(run.trainer, run.module);
  EXPECT_EQ(run.text(), "");
}

TEST(ProgressBar, OtherRanksWriteNothing) {
  ShownRun run({.refresh_rate = 1});
  run.trainer.fake_strategy.place = {.rank = 1, .local_rank = 1, .world_size = 2};
  run.bar->setup(run.trainer, run.module, Stage::kFit);
  run.bar->on_train_start(run.trainer, run.module);
  run.start_epoch();
  for (int i = 0; i < 4; ++i) run.batch();
  run.bar->on_train_end(run.trainer, run.module);
  EXPECT_EQ(run.text(), "");
  EXPECT_EQ(run.trainer.bar_reads, 0);
}

TEST(ProgressBar, BadOptionsAreRefused) {
  EXPECT_THROW(ProgressBar::make({.refresh_rate = -1}), ConfigError);
  EXPECT_THROW(ProgressBar::make({.min_refresh_interval = std::chrono::seconds(-1)}), ConfigError);
  EXPECT_THROW(ProgressBar::make({.width = -1}), ConfigError);
}

TEST(ProgressText, WritesLongTimesLargeNumbersAndEmptyEpochs) {
  EXPECT_EQ(
      detail::format_progress({.label = "E", .done = 1, .counted = 1, .total = 7201, .seconds = 1}),
      "E: 1/7201, 1.0 it/s, eta 2:00:00");
  EXPECT_EQ(detail::format_progress({.label = "E", .total = 0, .bar_width = 4}),
            "E: 0/0 [====] ? it/s, elapsed 0:00");
  EXPECT_EQ(
      detail::format_progress({.label = "E", .metrics = {{"a", 123456}, {"b", -0.5}, {"c", 0}}}),
      "E: 0/?, ? it/s, elapsed 0:00, a=1.23e+05 b=-0.500 c=0.000");
}

// With the steady clock: what a batch costs that draws nothing. The bound is 100 ns; 1 us leaves
// room for a busy machine and unoptimized builds and still fails if a line is built or memory
// allocated every time.
TEST(ProgressBar, ABatchThatDrawsNothingIsCheap) {
  FakeTrainer trainer;
  std::ostringstream out;
  const auto bar = ProgressBar::make({.style = ProgressBarStyle::kTty,
                                      .min_refresh_interval = std::chrono::hours(1),
                                      .output = &out});
  bar->setup(trainer, trainer.module(), Stage::kFit);
  bar->on_train_start(trainer, trainer.module());
  bar->on_train_epoch_start(trainer, trainer.module());
  const StepOutput outputs;
  double best = 1;
  for (int repeat = 0; repeat < 20; ++repeat) {
    constexpr int kCalls = 10000;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i)
      bar->on_train_batch_end(trainer, trainer.module(), outputs, {}, i);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / kCalls);
  }
  EXPECT_LT(best, 1e-6);
  RecordProperty("nanoseconds", static_cast<int>(best * 1e9));
  EXPECT_EQ(trainer.bar_reads, 1);
}

}  // namespace
}  // namespace fulmen
