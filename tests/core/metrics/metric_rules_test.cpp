#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "fulmen/core/metrics/metric_store.h"
#include "tests/core/metrics/metric_run.h"

namespace fulmen {
namespace {

using Metrics = std::map<std::string, double>;

class MetricRules : public testing::Test {
 protected:
  MetricStore store_;
  MetricRun run_{store_};
};

TEST_F(MetricRules, TrainingStepsLogTheStepUnlessAskedOtherwise) {
  run_.start(MetricPhase::kTrain);
  run_.batch(HookPoint::kTrainingStep, 2, [&] {
    store_.log("default", 1.0);
    store_.log("both", 2.0, {.on_epoch = true});
    store_.log("epoch", 3.0, {.on_step = false, .on_epoch = true});
  });
  EXPECT_EQ(store_.step_metrics(MetricPhase::kTrain),
            (Metrics{{"default", 1.0}, {"both_step", 2.0}}));
  EXPECT_TRUE(store_.epoch_metrics(MetricPhase::kTrain).empty()) << "the epoch has not ended";
  store_.end_epoch();
  EXPECT_EQ(store_.epoch_metrics(MetricPhase::kTrain),
            (Metrics{{"both_epoch", 2.0}, {"epoch", 3.0}}));
}

TEST_F(MetricRules, EvaluationStepsLogTheEpochUnlessAskedOtherwise) {
  for (const auto& [phase, hook] : {std::pair(MetricPhase::kValidate, HookPoint::kValidationStep),
                                    std::pair(MetricPhase::kTest, HookPoint::kTestStep)}) {
    run_.start(phase);
    run_.batch(hook, 2, [&] {
      store_.log("default", 1.0);
      store_.log("both", 2.0, {.on_step = true});
      store_.log("step", 3.0, {.on_step = true, .on_epoch = false});
    });
    EXPECT_EQ(store_.step_metrics(phase), (Metrics{{"both_step", 2.0}, {"step", 3.0}}));
    store_.end_epoch();
    EXPECT_EQ(store_.epoch_metrics(phase), (Metrics{{"default", 1.0}, {"both_epoch", 2.0}}));
    store_.end_phase();
  }
}

TEST_F(MetricRules, EpochHooksRefuseOnStep) {
  run_.start(MetricPhase::kTrain);
  for (const HookPoint hook :
       {HookPoint::kOnTrainStart, HookPoint::kOnTrainEpochStart, HookPoint::kOnTrainEpochEnd}) {
    store_.set_hook(hook);
    EXPECT_THROW_TEXT(store_.log("x", 1.0, {.on_step = true}),
                      ConfigError,
                      "'x'",
                      "on_step",
                      std::string(to_string(hook)));
    EXPECT_THROW_TEXT(store_.log("x", 1.0, {.on_epoch = false}), ConfigError, "'x'", "neither");
  }
}

TEST_F(MetricRules, ForbiddenHooksRefuseByName) {
  run_.start(MetricPhase::kTrain);
  for (const HookPoint hook : {HookPoint::kSetup,
                               HookPoint::kConfigureOptimizers,
                               HookPoint::kOnFitStart,
                               HookPoint::kOnSanityCheckEnd,
                               HookPoint::kOnTrainEnd,
                               HookPoint::kOnValidationEnd,
                               HookPoint::kPredictStep,
                               HookPoint::kTrainDataloader,
                               HookPoint::kTransferBatchToDevice,
                               HookPoint::kLrSchedulerStep,
                               HookPoint::kOnSaveCheckpoint,
                               HookPoint::kOnException}) {
    store_.set_hook(hook);
    EXPECT_THROW_TEXT(store_.log("x", 1.0), ConfigError, "'x'", std::string(to_string(hook)));
  }
  store_.set_hook(HookPoint::kOutside);
  EXPECT_THROW_TEXT(store_.log("x", 1.0), ConfigError, "'x'", "outside of a hook");
  store_.end_phase();
  store_.set_hook(HookPoint::kTrainingStep);
  EXPECT_THROW_TEXT(store_.log("x", 1.0), ConfigError, "'x'");
}

TEST_F(MetricRules, BothFlagsOffIsRefused) {
  run_.start(MetricPhase::kTrain);
  run_.enter(HookPoint::kTrainingStep, 2);
  EXPECT_THROW_TEXT(store_.log("x", 1.0, {.on_step = false}), ConfigError, "'x'", "training_step");
  store_.end_phase();
  run_.start(MetricPhase::kTest);
  run_.enter(HookPoint::kTestStep, 2);
  EXPECT_THROW_TEXT(store_.log("x", 1.0, {.on_epoch = false}), ConfigError, "'x'", "test_step");
}

TEST_F(MetricRules, NamesThatLoadersNeedOrNothingAreRefused) {
  run_.start(MetricPhase::kTrain);
  run_.enter(HookPoint::kTrainingStep, 2);
  EXPECT_THROW_TEXT(store_.log("x/dataloader_idx_0", 1.0), ConfigError, "x/dataloader_idx_0");
  EXPECT_THROW_TEXT(store_.log("", 1.0), ConfigError, "training_step", "empty");
}

TEST_F(MetricRules, OtherOptionsForTheSameKeyAreRefusedAlsoInLaterEpochs) {
  run_.start(MetricPhase::kTrain);
  run_.batch(HookPoint::kTrainingStep, 2, [&] { store_.log("x", 1.0, {.on_epoch = true}); });
  store_.end_epoch();
  store_.begin_epoch();
  run_.enter(HookPoint::kTrainingStep, 2);
  EXPECT_THROW_TEXT(store_.log("x", 1.0), ConfigError, "'x'", "training_step", "on_epoch: false");
  EXPECT_THROW_TEXT(store_.log("x", 1.0, {.prog_bar = true, .on_epoch = true}), ConfigError, "'x'");
  EXPECT_THROW_TEXT(store_.log("x", 1.0, {.logger = false, .on_epoch = true}), ConfigError, "'x'");
  EXPECT_THROW_TEXT(store_.log("x", 1.0, {.on_epoch = true, .reduce = MetricReduction::kMax}),
                    ConfigError,
                    "max");
  store_.log("x", 1.0, {.on_step = true, .on_epoch = true, .batch_size = 9});  // The same meaning.
}

TEST_F(MetricRules, OneNameInTwoHooksIsRefusedAndBothAreNamed) {
  run_.start(MetricPhase::kTrain);
  run_.batch(HookPoint::kTrainingStep, 2, [&] { store_.log("x", 1.0); });
  run_.enter(HookPoint::kOnTrainBatchEnd, 2);
  EXPECT_THROW_TEXT(
      store_.log("x", 1.0), ConfigError, "'x'", "training_step", "on_train_batch_end");
}

TEST_F(MetricRules, AForkedNameThatMeetsAnotherMetricIsRefused) {
  run_.start(MetricPhase::kTrain);
  run_.enter(HookPoint::kTrainingStep, 2);
  store_.log("x", 1.0, {.on_epoch = true});
  EXPECT_THROW_TEXT(store_.log("x_epoch", 1.0), ConfigError, "'x_epoch'", "'x'");
}

TEST_F(MetricRules, PhasesMayShareANameAndTheNewestWins) {
  run_.start(MetricPhase::kTrain);
  run_.batch(HookPoint::kTrainingStep, 2, [&] { store_.log("loss", 1.0, {.on_epoch = true}); });
  run_.start(MetricPhase::kValidate);
  run_.batch(HookPoint::kValidationStep, 2, [&] { store_.log("loss", 5.0); });
  EXPECT_EQ(store_.metric("loss"), 1.0);
  store_.end_epoch();
  store_.end_phase();
  EXPECT_EQ(store_.metric("loss"), 5.0);
  run_.batch(HookPoint::kTrainingStep, 2, [&] { store_.log("loss", 3.0, {.on_epoch = true}); });
  EXPECT_EQ(store_.metric("loss"), 3.0);
  store_.end_epoch();
  EXPECT_EQ(store_.metric("loss"), 2.0);
  EXPECT_EQ(store_.callback_metrics(),
            (Metrics{{"loss", 2.0}, {"loss_step", 3.0}, {"loss_epoch", 2.0}}));
}

TEST_F(MetricRules, SeveralLoadersGetASuffixAndResultsOfTheirOwn) {
  run_.start(MetricPhase::kValidate);
  const auto log = [&](double value) {
    return [this, value] { store_.log("x", value, {.on_step = true}); };
  };
  run_.loader_batch(HookPoint::kValidationStep, 0, 2, 4, log(1.0));
  run_.loader_batch(HookPoint::kValidationStep, 0, 2, 4, log(2.0));
  EXPECT_EQ(store_.step_metrics(MetricPhase::kValidate),
            (Metrics{{"x_step/dataloader_idx_0", 2.0}}));
  run_.loader_batch(HookPoint::kOnValidationBatchStart, 1, 2, 4, [&] { store_.log("y", 8.0); });
  run_.loader_batch(HookPoint::kValidationStep, 1, 2, 4, log(7.0));
  store_.end_epoch();
  store_.set_hook(HookPoint::kOnValidationEpochEnd);
  store_.log("z", 9.0);
  EXPECT_EQ(store_.epoch_metrics(MetricPhase::kValidate),
            (Metrics{{"x_epoch/dataloader_idx_0", 1.5},
                     {"x_epoch/dataloader_idx_1", 7.0},
                     {"y/dataloader_idx_1", 8.0},
                     {"z", 9.0}}));
  EXPECT_EQ(store_.dataloader_results(MetricPhase::kValidate),
            (std::vector<Metrics>{
                {{"x/dataloader_idx_0", 1.5}, {"x_epoch/dataloader_idx_0", 1.5}, {"z", 9.0}},
                {{"x/dataloader_idx_1", 7.0},
                 {"x_epoch/dataloader_idx_1", 7.0},
                 {"y/dataloader_idx_1", 8.0},
                 {"z", 9.0}},
            }));
}

TEST_F(MetricRules, WithoutTheSuffixNamesOfLoadersMustDiffer) {
  run_.start(MetricPhase::kValidate);
  const LogOptions plain = {.add_dataloader_idx = false};
  run_.loader_batch(HookPoint::kValidationStep, 0, 2, 4, [&] { store_.log("a", 1.0, plain); });
  run_.loader_batch(HookPoint::kValidationStep, 1, 2, 4, [&] {
    store_.log("b", 2.0, plain);
    EXPECT_THROW_TEXT(store_.log("a", 1.0, plain), ConfigError, "'a'", "add_dataloader_idx");
  });
  store_.end_epoch();
  EXPECT_EQ(store_.dataloader_results(MetricPhase::kValidate),
            (std::vector<Metrics>{{{"a", 1.0}}, {{"b", 2.0}}}));
}

TEST_F(MetricRules, OneLoaderHasNoSuffixAndOneResult) {
  run_.start(MetricPhase::kTest);
  run_.batch(HookPoint::kTestStep, 4, [&] { store_.log("x", 1.0, {.logger = false}); });
  store_.end_epoch();
  EXPECT_EQ(store_.dataloader_results(MetricPhase::kTest), (std::vector<Metrics>{{{"x", 1.0}}}));
  EXPECT_TRUE(store_.epoch_metrics(MetricPhase::kTest).empty());
}

TEST_F(MetricRules, DictionariesShowWhatLightningShows) {
  run_.start(MetricPhase::kTrain);
  run_.batch(HookPoint::kTrainingStep, 2, [&] {
    store_.log("x", 1.0, {.prog_bar = true, .on_epoch = true});
    store_.log("quiet", 2.0, {.logger = false});
  });
  EXPECT_EQ(store_.callback_metrics(), (Metrics{{"x", 1.0}, {"x_step", 1.0}, {"quiet", 2.0}}));
  EXPECT_EQ(store_.progress_bar_metrics(), (Metrics{{"x_step", 1.0}}));
  EXPECT_EQ(store_.logged_metrics(), (Metrics{{"x_step", 1.0}}));

  run_.start(MetricPhase::kValidate);
  run_.batch(HookPoint::kValidationStep, 2, [&] { store_.log("v", 4.0, {.on_step = true}); });
  EXPECT_FALSE(store_.metric("v")) << "callbacks get only epoch values of an evaluation";
  EXPECT_EQ(store_.logged_metrics(), (Metrics{{"x_step", 1.0}, {"v_step", 4.0}}));
  store_.end_epoch();
  store_.end_phase();

  run_.batch(HookPoint::kTrainingStep, 2, [&] {
    store_.log("x", 5.0, {.prog_bar = true, .on_epoch = true});
  });
  store_.end_epoch();
  EXPECT_EQ(store_.callback_metrics(),
            (Metrics{{"x", 3.0},
                     {"x_step", 5.0},
                     {"x_epoch", 3.0},
                     {"quiet", 2.0},
                     {"v", 4.0},
                     {"v_epoch", 4.0}}));
  EXPECT_EQ(store_.progress_bar_metrics(), (Metrics{{"x_step", 5.0}, {"x_epoch", 3.0}}));
  EXPECT_EQ(store_.logged_metrics(),
            (Metrics{{"x_step", 5.0}, {"x_epoch", 3.0}, {"v_step", 4.0}, {"v_epoch", 4.0}}));
}

TEST_F(MetricRules, StepMetricsAreThoseOfTheLastBatchOnly) {
  run_.start(MetricPhase::kTrain);
  EXPECT_FALSE(store_.has_step_logger_metrics(MetricPhase::kTrain));
  run_.batch(HookPoint::kTrainingStep, 2, [&] {
    store_.log("x", 1.0);
    store_.log("rare", 1.0);
  });
  EXPECT_TRUE(store_.has_step_logger_metrics(MetricPhase::kTrain));
  EXPECT_FALSE(store_.has_step_logger_metrics(MetricPhase::kValidate));
  run_.batch(HookPoint::kTrainingStep, 2, [&] { store_.log("x", 2.0); });
  EXPECT_EQ(store_.step_metrics(MetricPhase::kTrain), (Metrics{{"x", 2.0}}));
  store_.set_hook(HookPoint::kOnTrainBatchEnd);
  store_.log("late", 3.0);
  store_.commit();
  EXPECT_EQ(store_.step_metrics(MetricPhase::kTrain), (Metrics{{"x", 2.0}, {"late", 3.0}}));
}

TEST_F(MetricRules, AnEpochStartsNewSumsAndShowsTheOldResultUntilItEnds) {
  run_.start(MetricPhase::kTrain);
  const auto log = [&](double value) {
    run_.batch(HookPoint::kTrainingStep, 2, [&] {
      store_.log("x", value, {.on_step = false, .on_epoch = true});
    });
  };
  log(1.0);
  store_.end_epoch();
  store_.begin_epoch();
  log(5.0);
  EXPECT_EQ(store_.metric("x"), 1.0);
  store_.end_epoch();
  EXPECT_EQ(store_.metric("x"), 5.0);
  store_.begin_epoch();
  store_.end_epoch();
  EXPECT_TRUE(store_.epoch_metrics(MetricPhase::kTrain).empty())
      << "nothing was logged in this epoch";
  EXPECT_EQ(store_.metric("x"), 5.0);
}

TEST_F(MetricRules, WhatStartHooksLogBelongsToTheFirstEpoch) {
  store_.begin_phase(MetricPhase::kTrain);
  store_.set_hook(HookPoint::kOnTrainStart);
  store_.log("x", 1.0);
  store_.begin_epoch();
  store_.end_epoch();
  EXPECT_EQ(store_.epoch_metrics(MetricPhase::kTrain), (Metrics{{"x", 1.0}}));
}

TEST_F(MetricRules, AnEvaluationInsideAnEpochLeavesItsSumsAlone) {
  run_.start(MetricPhase::kTrain);
  const auto train = [&](double value) {
    run_.batch(HookPoint::kTrainingStep, 2, [&] { store_.log("x", value, {.on_epoch = true}); });
  };
  const auto validate = [&](double value) {
    run_.start(MetricPhase::kValidate);
    run_.batch(HookPoint::kValidationStep, 7, [&] { store_.log("v", value); });
    store_.end_epoch();
    store_.end_phase();
  };
  train(1.0);
  validate(10.0);
  train(3.0);
  validate(20.0);
  store_.end_epoch();
  EXPECT_EQ(store_.metric("x"), 2.0);
  EXPECT_EQ(store_.metric("v"), 20.0) << "the second evaluation starts new sums";
}

TEST_F(MetricRules, AnEvaluationThatWasCutStartsWhole) {
  run_.start(MetricPhase::kValidate);
  run_.batch(HookPoint::kValidationStep, 2, [&] { store_.log("v", 100.0); });
  store_.end_phase();
  run_.start(MetricPhase::kValidate);
  run_.batch(HookPoint::kValidationStep, 2, [&] { store_.log("v", 4.0); });
  store_.end_epoch();
  EXPECT_EQ(store_.metric("v"), 4.0);
}

TEST_F(MetricRules, TheSanityCheckLeavesNothing) {
  run_.start(MetricPhase::kTrain);
  run_.batch(HookPoint::kTrainingStep, 2, [&] { store_.log("v", 1.0); });
  const Metrics before = store_.callback_metrics();
  run_.start(MetricPhase::kSanityCheck);
  run_.batch(HookPoint::kValidationStep, 2, [&] { store_.log("v", 2.0, {.prog_bar = true}); });
  store_.end_epoch();
  EXPECT_EQ(store_.metric("v"), 2.0) << "hooks of the sanity check see its results";
  store_.end_phase();
  EXPECT_EQ(store_.callback_metrics(), before);
  EXPECT_TRUE(store_.progress_bar_metrics().empty());
  EXPECT_TRUE(store_.epoch_metrics(MetricPhase::kSanityCheck).empty());
}

TEST_F(MetricRules, ARunForgetsTheOneBefore) {
  run_.start(MetricPhase::kTrain);
  run_.batch(HookPoint::kTrainingStep, 2, [&] { store_.log("x", 1.0, {.on_epoch = true}); });
  store_.end_epoch();
  store_.begin_run();
  EXPECT_TRUE(store_.callback_metrics().empty());
  EXPECT_TRUE(store_.state_dict().empty());
  run_.start(MetricPhase::kTrain);
  run_.batch(
      HookPoint::kTrainingStep, 2, [&] { store_.log("x", 1.0); });  // Other options are fine now.
}

TEST_F(MetricRules, DiscardLeavesNothing) {
  run_.start(MetricPhase::kTrain);
  run_.batch(HookPoint::kTrainingStep, 2, [&] { store_.log("x", 1.0, {.on_epoch = true}); });
  const Metrics before = store_.callback_metrics();
  const StateDict state = store_.state_dict();

  run_.enter(HookPoint::kTrainingStep, 6);
  store_.log("x", 9.0, {.on_epoch = true});
  store_.log("new", 9.0);
  EXPECT_EQ(store_.callback_metrics(), before) << "pending values are not shown";
  store_.discard();
  EXPECT_EQ(store_.callback_metrics(), before);
  store_.commit();
  EXPECT_EQ(store_.callback_metrics(), before);
  EXPECT_EQ(store_.state_dict().values.at("train").at("entries"),
            state.values.at("train").at("entries"));
  store_.log("new", 9.0, {.reduce = MetricReduction::kMax});  // Its options were forgotten too.
  store_.discard();
  store_.end_epoch();
  EXPECT_EQ(store_.metric("x"), 1.0);
}

TEST_F(MetricRules, ManyMetricsAreKeptApartInAnyOrder) {
  run_.start(MetricPhase::kTrain);
  constexpr int kCount = 50;
  for (int round = 0; round < 3; ++round) {
    run_.batch(HookPoint::kTrainingStep, 2, [&] {
      for (int i = 0; i < kCount; ++i) {
        const int k = round == 1 ? kCount - 1 - i : (i * 7) % kCount;
        store_.log("m" + std::to_string(k), 1.0 * k * (round + 1));
      }
    });
  }
  const Metrics metrics = store_.step_metrics(MetricPhase::kTrain);
  ASSERT_EQ(metrics.size(), kCount);
  for (int k = 0; k < kCount; ++k) EXPECT_EQ(metrics.at("m" + std::to_string(k)), 3.0 * k);
}

}  // namespace
}  // namespace fulmen
