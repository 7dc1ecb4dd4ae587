#include "fulmen/core/metrics/metric_store.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tests/core/metrics/metric_run.h"

namespace fulmen {
namespace {

using Metrics = std::map<std::string, double>;

// Every rule of values holds for numbers on the host and for tensors that wait on a device.
class MetricValues : public testing::TestWithParam<CpuTensors> {
 protected:
  MetricStore store_{GetParam()};
  MetricRun run_{store_};
};

INSTANTIATE_TEST_SUITE_P(Both,
                         MetricValues,
                         testing::Values(CpuTensors::kReadAtOnce, CpuTensors::kKeep),
                         [](const auto& place) {
                           return place.param == CpuTensors::kKeep ? "OnDevice" : "OnHost";
                         });

// faults.md, row 23: PL#2924.
TEST_P(MetricValues, MeanIsWeightedByTheRowsOfTheBatches) {
  run_.start(MetricPhase::kValidate);
  run_.batch(HookPoint::kValidationStep, 256, [&] {
    store_.log("acc", torch::tensor(0.7, torch::kDouble));
  });
  run_.batch(HookPoint::kValidationStep, 256, [&] {
    store_.log("acc", torch::tensor(0.8, torch::kDouble));
  });
  run_.batch(HookPoint::kValidationStep, 10, [&] {
    store_.log("acc", torch::tensor(0.9, torch::kDouble));
  });
  store_.end_epoch();
  // (179.2 + 204.8 + 9) / 522; the order of the sums may cost an ulp or two.
  EXPECT_NEAR(store_.metric("acc").value(), 393.0 / 522.0, 4e-16);
  EXPECT_NEAR(store_.metric("acc").value(), 0.752874, 5e-7);
}

// faults.md, row 26: PL#4141.
TEST_P(MetricValues, MeanOfEqualBatchesIsNotTheLastValue) {
  run_.start(MetricPhase::kTrain);
  for (const float value : {1.0F, 2.0F, 6.0F}) {
    run_.batch(HookPoint::kTrainingStep, 4, [&] {
      store_.log("loss", torch::tensor(value), {.on_epoch = true});
    });
  }
  store_.end_epoch();
  EXPECT_EQ(store_.epoch_metrics(MetricPhase::kTrain), (Metrics{{"loss_epoch", 3.0}}));
}

// faults.md, row 25: PL#9791.
TEST_P(MetricValues, SumIsNotWeighted) {
  run_.start(MetricPhase::kValidate);
  for (const std::int64_t rows : {4, 4, 2}) {
    run_.batch(HookPoint::kValidationStep, rows, [&] {
      store_.log("n", torch::tensor(1.0F), {.reduce = MetricReduction::kSum});
    });
  }
  store_.end_epoch();
  EXPECT_EQ(store_.metric("n"), 3.0);
}

// All on one side of 0, where a total that starts at 0 would win.
TEST_P(MetricValues, MinAndMaxKeepTheExtremes) {
  run_.start(MetricPhase::kValidate);
  for (const float value : {5.0F, 2.0F, 7.0F}) {
    run_.batch(HookPoint::kValidationStep, 3, [&] {
      store_.log("low", torch::tensor(value), {.reduce = MetricReduction::kMin});
      store_.log("high", torch::tensor(-value), {.reduce = MetricReduction::kMax});
    });
  }
  store_.end_epoch();
  EXPECT_EQ(store_.metric("low"), 2.0);
  EXPECT_EQ(store_.metric("high"), -2.0);
}

TEST_P(MetricValues, NanPassesThroughEveryReduction) {
  run_.start(MetricPhase::kValidate);
  for (const float value : {1.0F, std::numeric_limits<float>::quiet_NaN(), 2.0F}) {
    run_.batch(HookPoint::kValidationStep, 3, [&] {
      store_.log("mean", torch::tensor(value));
      store_.log("sum", torch::tensor(value), {.reduce = MetricReduction::kSum});
      store_.log("low", torch::tensor(value), {.reduce = MetricReduction::kMin});
      store_.log("high", torch::tensor(value), {.reduce = MetricReduction::kMax});
    });
  }
  store_.end_epoch();
  for (const char* name : {"mean", "sum", "low", "high"}) {
    EXPECT_TRUE(std::isnan(store_.metric(name).value())) << name;
  }
}

TEST_P(MetricValues, ABatchOfWeightZeroDoesNotCount) {
  run_.start(MetricPhase::kValidate);
  run_.batch(HookPoint::kValidationStep, 3, [&] { store_.log("x", torch::tensor(4.0F)); });
  run_.batch(HookPoint::kValidationStep, 3, [&] {
    store_.log("x", torch::tensor(std::nanf("")), {.batch_size = 0});
    store_.log("nothing", torch::tensor(1.0F), {.batch_size = 0});
  });
  store_.end_epoch();
  EXPECT_EQ(store_.metric("x"), 4.0);
  EXPECT_FALSE(store_.metric("nothing").has_value());
}

TEST_P(MetricValues, AValueIsACopyOfTheMomentOfTheCall) {
  for (const torch::ScalarType dtype : {torch::kFloat, torch::kDouble}) {
    store_.begin_run();
    run_.start(MetricPhase::kTrain);
    const torch::Tensor value = torch::tensor(1.5, dtype);
    run_.batch(HookPoint::kTrainingStep, 2, [&] {
      store_.log("x", value, {.on_epoch = true});
      value.fill_(100.0);
    });
    value.fill_(200.0);
    store_.end_epoch();
    EXPECT_EQ(store_.step_metrics(MetricPhase::kTrain), (Metrics{{"x_step", 1.5}}));
    EXPECT_EQ(store_.epoch_metrics(MetricPhase::kTrain), (Metrics{{"x_epoch", 1.5}}));
  }
}

TEST_P(MetricValues, AValueDoesNotKeepItsGraph) {
  run_.start(MetricPhase::kTrain);
  const torch::Tensor weight = torch::ones({3}, torch::requires_grad());
  torch::Tensor loss = weight.sum();
  const auto graph = loss.grad_fn();
  run_.batch(HookPoint::kTrainingStep, 2, [&] { store_.log("x", loss, {.on_epoch = true}); });
  loss = torch::Tensor();
  EXPECT_EQ(static_cast<int>(graph.use_count()), 1);
  EXPECT_EQ(store_.metric("x"), 3.0);
}

TEST_P(MetricValues, TensorsOfEveryDtypeAreTaken) {
  run_.start(MetricPhase::kValidate);
  const std::vector<torch::ScalarType> dtypes = {torch::kDouble,
                                                 torch::kFloat,
                                                 torch::kHalf,
                                                 torch::kBFloat16,
                                                 torch::kLong,
                                                 torch::kInt,
                                                 torch::kShort,
                                                 torch::kByte};
  run_.batch(HookPoint::kValidationStep, 2, [&] {
    for (std::size_t i = 0; i < dtypes.size(); ++i) {
      store_.log("x" + std::to_string(i), torch::full({1, 1}, 3, dtypes[i]));
    }
    store_.log("yes", torch::tensor(true));
    store_.log("negative",
               at::imag(at::conj(torch::complex(torch::tensor(1.0), torch::tensor(2.0)))));
  });
  store_.end_epoch();
  for (std::size_t i = 0; i < dtypes.size(); ++i)
    EXPECT_EQ(store_.metric("x" + std::to_string(i)), 3.0);
  EXPECT_EQ(store_.metric("yes"), 1.0);
  EXPECT_EQ(store_.metric("negative"), -2.0);
}

TEST_P(MetricValues, ViewsAreReadAtTheirOffset) {
  run_.start(MetricPhase::kValidate);
  run_.batch(
      HookPoint::kValidationStep, 2, [&] { store_.log("x", torch::arange(5, torch::kFloat)[3]); });
  store_.end_epoch();
  EXPECT_EQ(store_.metric("x"), 3.0);
}

// In float32 the sum stops at 2^24: 16777216 + 1 == 16777216.
TEST_P(MetricValues, SumsOfFloatsAndIntegersAreInDoublePrecision) {
  run_.start(MetricPhase::kValidate);
  const auto log = [&](float value) {
    run_.batch(HookPoint::kValidationStep, 1, [&] {
      store_.log("float", torch::tensor(value), {.reduce = MetricReduction::kSum});
      store_.log("int",
                 torch::tensor(static_cast<std::int64_t>(value)),
                 {.reduce = MetricReduction::kSum});
    });
  };
  log(16777216.0F);
  log(1.0F);
  log(1.0F);
  store_.end_epoch();
  EXPECT_EQ(store_.metric("float"), 16777218.0);
  EXPECT_EQ(store_.metric("int"), 16777218.0);
}

TEST_P(MetricValues, NumbersAndTensorsMix) {
  run_.start(MetricPhase::kValidate);
  for (const int i : {0, 1, 2, 3}) {
    run_.batch(HookPoint::kValidationStep, i + 1, [&] {
      for (const MetricReduction reduce :
           {MetricReduction::kMean, MetricReduction::kSum, MetricReduction::kMin}) {
        const std::string name = std::to_string(static_cast<int>(reduce));
        if (i % 2 == 0) store_.log(name, 1.0 - i, {.reduce = reduce});
        if (i % 2 == 1) store_.log(name, torch::tensor(1.0 - i), {.reduce = reduce});
      }
    });
  }
  store_.end_epoch();
  EXPECT_EQ(store_.metric("0"), -1.0);  // (1*1 + 2*0 - 3*1 - 4*2) / 10.
  EXPECT_EQ(store_.metric("1"), -2.0);
  EXPECT_EQ(store_.metric("2"), -2.0);
}

TEST_P(MetricValues, InferenceModeOfAnEvaluationDoesNoHarm) {
  run_.start(MetricPhase::kValidate);
  const auto log = [&] { store_.log("x", torch::tensor(2.0F) * 2); };
  {
    const c10::InferenceMode inference;
    run_.batch(HookPoint::kValidationStep, 1, log);
  }
  run_.batch(HookPoint::kValidationStep, 1, log);
  store_.end_epoch();
  EXPECT_EQ(store_.metric("x"), 4.0);
}

TEST_P(MetricValues, ValuesThatAreNotOneRealElementAreRefused) {
  run_.start(MetricPhase::kTrain);
  run_.enter(HookPoint::kTrainingStep, 2);
  EXPECT_THROW_TEXT(store_.log("x", torch::ones({2, 3})), ConfigError, "'x'", "[2, 3]");
  EXPECT_THROW_TEXT(store_.log("x", torch::ones({0})), ConfigError, "'x'", "[0]");
  EXPECT_THROW_TEXT(store_.log("x", torch::Tensor()), ConfigError, "'x'", "undefined");
  EXPECT_THROW_TEXT(
      store_.log("x", torch::ones({}, torch::kComplexDouble)), ConfigError, "'x'", "real");
  store_.commit();
  EXPECT_TRUE(store_.callback_metrics().empty());
}

// faults.md, row 24: PL#3668.
TEST(MetricWeights, RowsOfAMapAreItsRowsAndNotItsKeys) {
  MetricStore store;
  MetricRun run(store);
  run.start(MetricPhase::kValidate);
  std::map<std::string, torch::Tensor> five = {{"x", torch::ones({5, 2})}, {"y", torch::ones({5})}};
  run.batch_of(HookPoint::kValidationStep, five, [&] { store.log("v", 1.0); });
  run.batch(HookPoint::kValidationStep, 1, [&] { store.log("v", 7.0); });
  store.end_epoch();
  EXPECT_EQ(store.metric("v"), 2.0);  // (5*1 + 1*7) / 6; with weight 2 it would be 3.
}

TEST(MetricWeights, AnExplicitBatchSizeWinsAndMayChange) {
  MetricStore store;
  MetricRun run(store);
  run.start(MetricPhase::kValidate);
  run.batch(HookPoint::kValidationStep, 100, [&] { store.log("v", 1.0, {.batch_size = 3}); });
  run.batch(HookPoint::kValidationStep, 100, [&] { store.log("v", 5.0, {.batch_size = 1}); });
  store.end_epoch();
  EXPECT_EQ(store.metric("v"), 2.0);
  run.enter(HookPoint::kValidationStep, 2);
  EXPECT_THROW_TEXT(store.log("v", 5.0, {.batch_size = -1}), ConfigError, "'v'", "-1");
}

TEST(MetricWeights, AmbiguousRowsAreAnErrorOnlyWhereAMeanNeedsThem) {
  MetricStore store;
  MetricRun run(store);
  run.start(MetricPhase::kTrain);
  std::vector<torch::Tensor> odd = {torch::ones({7}), torch::ones({2, 3})};
  run.batch_of(HookPoint::kTrainingStep, odd, [&] {
    store.log("step", 1.0);
    store.log("sum", 1.0, {.on_epoch = true, .reduce = MetricReduction::kSum});
    EXPECT_THROW_TEXT(
        store.log("mean", 1.0, {.on_epoch = true}), DataError, "'mean'", ".batch_size");
    store.log("mean", 1.0, {.on_epoch = true, .batch_size = 2});
  });
  store.end_epoch();
  EXPECT_EQ(store.metric("mean"), 1.0);
}

TEST(MetricWeights, AKeyOfSomeBatchesIsAveragedOverThose) {
  MetricStore store;
  MetricRun run(store);
  run.start(MetricPhase::kValidate);
  run.batch(HookPoint::kValidationStep, 2, [&] { store.log("all", 1.0); });
  run.batch(HookPoint::kValidationStep, 6, [&] {
    store.log("all", 1.0);
    store.log("some", 5.0);
  });
  run.batch(HookPoint::kValidationStep, 2, [&] {
    store.log("all", 6.0);
    store.log("some", 1.0);
  });
  store.end_epoch();
  EXPECT_EQ(store.metric("all"), 2.0);   // (2 + 6 + 12) / 10.
  EXPECT_EQ(store.metric("some"), 4.0);  // (30 + 2) / 8.
}

TEST(MetricWeights, TheSameKeyTwiceCountsTwiceAndShowsTheLast) {
  MetricStore store;
  MetricRun run(store);
  run.start(MetricPhase::kTrain);
  run.batch(HookPoint::kTrainingStep, 4, [&] {
    store.log("x", 1.0, {.on_epoch = true});
    store.log("x", 5.0, {.on_epoch = true});
  });
  EXPECT_EQ(store.step_metrics(MetricPhase::kTrain), (Metrics{{"x_step", 5.0}}));
  store.end_epoch();
  EXPECT_EQ(store.epoch_metrics(MetricPhase::kTrain), (Metrics{{"x_epoch", 3.0}}));
}

TEST(MetricWeights, EpochHooksWeighOneWithoutABatch) {
  MetricStore store;
  MetricRun run(store);
  run.start(MetricPhase::kTrain);
  run.batch(HookPoint::kTrainingStep, 9, [] {});
  store.end_epoch();
  store.set_hook(HookPoint::kOnTrainEpochEnd);
  store.log("x", 1.0);
  EXPECT_EQ(store.metric("x"), 1.0) << "what follows in the same hooks must see it";
  store.log("x", 2.0);
  EXPECT_EQ(store.metric("x"), 1.5);
  store.log("x", 4.5, {.batch_size = 4});  // (1 + 2 + 18) / 6.
  EXPECT_EQ(store.epoch_metrics(MetricPhase::kTrain), (Metrics{{"x", 3.5}}));
}

}  // namespace
}  // namespace fulmen
