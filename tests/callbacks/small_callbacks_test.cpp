#include <gtest/gtest.h>

#include "fulmen/callbacks/gradient_accumulation_scheduler.h"
#include "fulmen/callbacks/lambda_callback.h"
#include "fulmen/callbacks/learning_rate_monitor.h"
#include "fulmen/callbacks/timer.h"
#include "fulmen/core/support/error.h"
#include "tests/support/fake_module.h"
#include "tests/support/fake_trainer.h"

namespace fulmen {
namespace {

class FakeOptimizer : public Optimizer {
 public:
  using Group = std::map<std::string, double, std::less<>>;
  FakeOptimizer(std::string name, std::vector<Group> groups)
      : name_(std::move(name)), groups_(std::move(groups)) {}
  std::string_view name() const override { return name_; }
  std::size_t group_count() const override { return groups_.size(); }
  std::span<const NamedParameter> parameters(std::size_t) const override { return {}; }
  std::vector<std::string> hyperparameter_names(std::size_t group) const override {
    std::vector<std::string> names;
    for (const auto& [key, value] : groups_[group]) names.push_back(key);
    return names;
  }
  double hyperparameter(std::size_t group, std::string_view key) const override {
    return groups_[group].find(key)->second;
  }
  void set_hyperparameter(std::size_t group, std::string_view key, double value) override {
    groups_[group].find(key)->second = value;
  }
  at::Tensor step(const Closure&) override { return {}; }
  void bind(const std::function<void(NamedParameter&)>&) override {}
  StateDict state_dict() const override { return {}; }
  void check_state(const StateDict&, std::vector<std::string>&) const override {}
  void load_state_dict(const StateDict&) override {}

 private:
  std::string name_;
  std::vector<Group> groups_;
};

std::shared_ptr<FakeOptimizer> optimizer(std::string name,
                                         std::vector<FakeOptimizer::Group> groups) {
  return std::make_shared<FakeOptimizer>(std::move(name), std::move(groups));
}

struct RateRun {
  explicit RateRun(LearningRateMonitorOptions options = {})
      : callback(LearningRateMonitor::make(options)) {
    trainer.logger_list = {logger};
    trainer.run_plan.log_every_n_steps = 2;
  }
  void start() { callback->on_train_start(trainer, trainer.module()); }
  void epoch_start() { callback->on_train_epoch_start(trainer, trainer.module()); }
  void batch_start(std::int64_t step) {
    trainer.counters.global_step = step;
    callback->on_train_batch_start(trainer, trainer.module(), {}, 0);
  }

  FakeTrainer trainer;
  std::shared_ptr<CapturingLogger> logger = std::make_shared<CapturingLogger>();
  std::shared_ptr<LearningRateMonitor> callback;
};

TEST(LearningRateMonitor, NamesGroupsAndOptimizersOfOneClassApart) {
  RateRun run({.log_momentum = true, .log_weight_decay = true});
  run.trainer.optimizers = {
      {.optimizer = optimizer("AdamW", {{{"lr", 0.1}, {"beta1", 0.9}, {"weight_decay", 0.5}}})},
      {.optimizer =
           optimizer("SGD", {{{"lr", 1}, {"momentum", 0.8}}, {{"lr", 2}, {"momentum", 0.7}}})},
      {.optimizer = optimizer("AdamW", {{{"lr", 0.3}}})},
  };
  run.start();
  run.epoch_start();
  EXPECT_EQ(run.callback->last_values(),
            (std::map<std::string, double>{{"lr-AdamW", 0.1},
                                           {"lr-AdamW-momentum", 0.9},
                                           {"lr-AdamW-weight_decay", 0.5},
                                           {"lr-SGD/pg1", 1},
                                           {"lr-SGD/pg2", 2},
                                           {"lr-SGD-momentum/pg1", 0.8},
                                           {"lr-SGD-momentum/pg2", 0.7},
                                           {"lr-AdamW-1", 0.3}}));
}

TEST(LearningRateMonitor, LogsEachOptimizerAtTheIntervalOfItsScheduler) {
  RateRun run;
  run.trainer.optimizers = {
      {.optimizer = optimizer("A", {{{"lr", 1}}}),
       .schedulers = {{.scheduler = {}, .interval = Interval::kStep}}},
      {.optimizer = optimizer("B", {{{"lr", 2}}}),
       .schedulers = {{.scheduler = {}, .name = "rate of B"}}},
  };
  run.start();
  run.epoch_start();
  ASSERT_EQ(run.logger->records.size(), 1u);
  EXPECT_EQ(run.logger->records[0].metrics,
            (std::map<std::string, double>{{"epoch", 0}, {"rate of B", 2}}));
  for (std::int64_t step = 0; step < 4; ++step) run.batch_start(step);
  ASSERT_EQ(run.logger->records.size(), 3u);
  EXPECT_EQ(run.logger->records[1].metrics,
            (std::map<std::string, double>{{"epoch", 0}, {"lr-A", 1}}));
  EXPECT_EQ(run.logger->records[1].step, 1);
  EXPECT_EQ(run.logger->records[2].step, 3);
}

TEST(LearningRateMonitor, LogsAStepOnceThoughItsWindowHasMoreBatches) {
  RateRun run({.logging_interval = Interval::kStep});
  run.trainer.optimizers = {{.optimizer = optimizer("A", {{{"lr", 1}}})}};
  run.start();
  run.epoch_start();
  for (int i = 0; i < 3; ++i) run.batch_start(1);
  EXPECT_EQ(run.logger->records.size(), 1u);
}

TEST(LearningRateMonitor, NeedsALogger) {
  RateRun run;
  run.trainer.logger_list.clear();
  EXPECT_THROW(run.start(), ConfigError);
}

struct TimedRun {
  explicit TimedRun(TimerOptions options) {
    options.clock = clock;
    callback = Timer::make(std::move(options));
  }
  void batch(double seconds) {
    clock.advance(std::chrono::duration<double>(seconds));
    callback->on_train_batch_end(trainer, trainer.module(), {}, {}, 0);
  }

  FakeTrainer trainer;
  FakeClock clock;
  std::shared_ptr<Timer> callback;
};

TEST(Timer, StopsAfterTheBatchWhereTheTimeIsOver) {
  TimedRun run({.max_time = std::chrono::seconds(10)});
  run.callback->on_train_start(run.trainer, run.trainer.module());
  run.batch(6);
  EXPECT_TRUE(run.trainer.stop_reasons.empty());
  EXPECT_EQ(run.callback->remaining()->count(), 4);
  run.batch(5);
  ASSERT_EQ(run.trainer.stop_reasons.size(), 1u);
  EXPECT_EQ(run.trainer.stop_reasons[0],
            "training took 11 s of the 10 s that Timer::max_time allows.");
  EXPECT_EQ(run.callback->remaining()->count(), 0);
}

TEST(Timer, ChecksEpochsOnlyIfAskedTo) {
  TimedRun run({.max_time = std::chrono::seconds(10), .interval = Interval::kEpoch});
  run.callback->on_train_start(run.trainer, run.trainer.module());
  run.batch(20);
  EXPECT_TRUE(run.trainer.stop_reasons.empty());
  run.callback->on_train_epoch_end(run.trainer, run.trainer.module());
  EXPECT_EQ(run.trainer.stop_reasons.size(), 1u);
}

TEST(Timer, TimeGoesOnOverARestart) {
  TimedRun first({.max_time = std::chrono::seconds(10)});
  first.callback->on_train_start(first.trainer, first.trainer.module());
  first.batch(8);
  TimedRun second({.max_time = std::chrono::seconds(10)});
  second.callback->load_state_dict(first.callback->state_dict());
  second.callback->on_train_start(second.trainer, second.trainer.module());
  second.batch(1.5);
  EXPECT_TRUE(second.trainer.stop_reasons.empty());
  second.batch(0.5);
  EXPECT_EQ(second.trainer.stop_reasons.size(), 1u);
  TimedRun third({.max_time = std::chrono::seconds(10)});
  third.callback->load_state_dict(second.callback->state_dict());
  third.callback->on_train_start(third.trainer, third.trainer.module());
  EXPECT_EQ(third.trainer.stop_reasons.size(), 1u);
}

TEST(Timer, MeasuresPartsApartAndLeavesTheSanityCheckOut) {
  TimedRun run({});
  auto& module = run.trainer.module();
  run.trainer.in_sanity_check = true;
  run.callback->on_validation_start(run.trainer, module);
  run.clock.advance(std::chrono::seconds(5));
  run.callback->on_validation_end(run.trainer, module);
  run.trainer.in_sanity_check = false;
  run.callback->on_train_start(run.trainer, module);
  run.callback->on_validation_start(run.trainer, module);
  run.clock.advance(std::chrono::seconds(2));
  run.callback->on_validation_end(run.trainer, module);
  run.batch(1);
  run.callback->on_train_end(run.trainer, module);
  run.clock.advance(std::chrono::seconds(50));
  run.callback->on_test_start(run.trainer, module);
  run.clock.advance(std::chrono::seconds(4));
  run.callback->on_test_end(run.trainer, module);
  EXPECT_EQ(run.callback->elapsed().count(), 3);
  EXPECT_EQ(run.callback->elapsed(Timer::Part::kValidate).count(), 2);
  EXPECT_EQ(run.callback->elapsed(Timer::Part::kTest).count(), 4);
  EXPECT_EQ(run.callback->remaining(), std::nullopt);
  EXPECT_TRUE(run.trainer.stop_reasons.empty());
}

TEST(Timer, RefusesALimitThatIsNotGreaterThanZero) {
  EXPECT_THROW(Timer::make({.max_time = std::chrono::seconds(0)}), ConfigError);
  EXPECT_THROW(Timer::make({.max_time = std::chrono::seconds(-1)}), ConfigError);
}

TEST(GradientAccumulationScheduler, UsesTheLastEntryThatIsReached) {
  FakeTrainer trainer;
  const auto callback = GradientAccumulationScheduler::make({.scheduling = {{2, 4}, {5, 8}}});
  for (std::int64_t epoch = 0; epoch < 7; ++epoch) {
    trainer.counters.epoch = epoch;
    callback->on_train_epoch_start(trainer, trainer.module());
  }
  EXPECT_EQ(trainer.accumulate, (std::vector<std::int64_t>{1, 1, 4, 4, 4, 8, 8}));
}

TEST(GradientAccumulationScheduler, SetsTheFactorOfARunResumedInsideAnEpoch) {
  FakeTrainer trainer;
  trainer.counters.epoch = 3;
  GradientAccumulationScheduler::make({.scheduling = {{2, 4}}})
      ->on_train_start(trainer, trainer.module());
  EXPECT_EQ(trainer.accumulate, std::vector<std::int64_t>{4});
}

TEST(GradientAccumulationScheduler, RefusesBadSchedulesAndManualOptimization) {
  EXPECT_THROW(GradientAccumulationScheduler::make({}), ConfigError);
  EXPECT_THROW(GradientAccumulationScheduler::make({.scheduling = {{-1, 2}}}), ConfigError);
  EXPECT_THROW(GradientAccumulationScheduler::make({.scheduling = {{0, 0}}}), ConfigError);
  FakeTrainer trainer;
  FakeModule module;
  module.mode = OptimizationMode::kManual;
  const auto callback = GradientAccumulationScheduler::make({.scheduling = {{0, 2}}});
  EXPECT_THROW(callback->on_train_start(trainer, module), ConfigError);
}

TEST(LambdaCallback, CallsTheFunctionsThatAreSetWithTheirArguments) {
  FakeTrainer trainer;
  std::vector<std::string> calls;
  const auto callback = LambdaCallback::make({
      .setup =
          [&](TrainerContext&, ModuleBase&, Stage stage) { calls.emplace_back(to_string(stage)); },
      .on_train_epoch_end =
          [&](TrainerContext& context, ModuleBase& module) {
            EXPECT_EQ(&context, &trainer);
            EXPECT_EQ(&module, &trainer.module());
            calls.emplace_back("epoch end");
          },
      .on_test_batch_end =
          [&](TrainerContext&,
              ModuleBase&,
              const StepOutput& outputs,
              BatchView,
              std::int64_t batch,
              std::int64_t loader) {
            calls.push_back(std::to_string(*outputs.weight) + " " + std::to_string(batch) + " " +
                            std::to_string(loader));
          },
  });
  StepOutput outputs;
  outputs.weight = 0.5;
  callback->setup(trainer, trainer.module(), Stage::kPredict);
  callback->on_train_epoch_start(trainer, trainer.module());
  callback->on_train_epoch_end(trainer, trainer.module());
  callback->on_test_batch_end(trainer, trainer.module(), outputs, {}, 7, 1);
  EXPECT_EQ(calls, (std::vector<std::string>{"predict", "epoch end", "0.500000 7 1"}));
}

TEST(Callback, StateKeyIsTheClassName) {
  EXPECT_EQ(Timer::make()->state_key(), "Timer");
  EXPECT_EQ(LambdaCallback::make({})->state_key(), "LambdaCallback");
}

}  // namespace
}  // namespace fulmen
