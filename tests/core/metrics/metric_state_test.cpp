#include <gtest/gtest.h>
#include <torch/torch.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include "fulmen/core/metrics/metric_store.h"
#include "tests/core/metrics/metric_run.h"

namespace fulmen {
namespace {

using Metrics = std::map<std::string, double>;

/// As a file would give it back.
StateDict through_text(const StateDict& state) {
  StateDict result;
  result.values = boost::json::parse(boost::json::serialize(state.values)).as_object();
  for (const auto& [name, tensor] : state.tensors) result.tensors[name] = tensor.clone();
  return result;
}

/// Text that two maps share only if they hold the same names and bits.
std::string bits(const Metrics& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    std::uint64_t word = 0;
    std::memcpy(&word, &value, sizeof word);
    text += name + "=" + std::to_string(word) + " ";
  }
  return text;
}

std::string everything(const MetricStore& store) {
  std::string text = bits(store.callback_metrics()) + "| " + bits(store.progress_bar_metrics()) +
                     "| " + bits(store.logged_metrics());
  for (const MetricPhase phase : {MetricPhase::kTrain, MetricPhase::kValidate}) {
    text += "| " + bits(store.step_metrics(phase)) + "| " + bits(store.epoch_metrics(phase));
    for (const Metrics& result : store.dataloader_results(phase)) text += "| " + bits(result);
  }
  return text;
}

/// Two epochs of training batches, with an evaluation after the third batch of each.
class Program {
 public:
  static constexpr int kBatches = 5;

  explicit Program(CpuTensors place) : store(place) {}

  void begin() {
    store.begin_phase(MetricPhase::kTrain);
    store.begin_epoch();
  }
  void step(int index) {
    const int batch = index % kBatches;
    if (batch == 0) store.begin_epoch();
    // Thirds and odd weights, so that no sum is exact and the order of operations shows.
    const torch::Tensor value = torch::tensor(static_cast<float>(std::sin(index + 1.0) / 3.0));
    run.batch(HookPoint::kTrainingStep, 3 + 2 * batch, [&] {
      store.log("loss", value, {.prog_bar = true, .on_epoch = true});
      store.log(
          "low", value, {.on_step = false, .on_epoch = true, .reduce = MetricReduction::kMin});
      store.log("host", 0.1 * index, {.on_step = false, .on_epoch = true});
      store.log("step", 0.1 * index);
      if (batch == 1)
        store.log("nan", std::nan(""), {.on_epoch = true, .reduce = MetricReduction::kSum});
    });
    if (batch == 2) validate(index);
    if (batch == kBatches - 1) store.end_epoch();
  }

  MetricStore store;
  MetricRun run{store};

 private:
  void validate(int index) {
    run.start(MetricPhase::kValidate);
    for (std::int64_t loader = 0; loader < 2; ++loader) {
      for (int i = 0; i < 3; ++i) {
        run.loader_batch(HookPoint::kValidationStep, loader, 2, 2 + i, [&] {
          store.log("val", torch::tensor(static_cast<float>(std::cos(index + i) / 7.0)));
        });
      }
    }
    store.end_epoch();
    store.end_phase();
  }
};

class MetricState : public testing::TestWithParam<CpuTensors> {};

INSTANTIATE_TEST_SUITE_P(Both,
                         MetricState,
                         testing::Values(CpuTensors::kReadAtOnce, CpuTensors::kKeep),
                         [](const auto& place) {
                           return place.param == CpuTensors::kKeep ? "OnDevice" : "OnHost";
                         });

TEST_P(MetricState, ARunResumedAfterAnyBatchShowsTheSameBits) {
  constexpr int kSteps = 2 * Program::kBatches;
  for (int stop = 1; stop < kSteps; ++stop) {
    Program whole(GetParam());
    Program first(GetParam());
    whole.begin();
    first.begin();
    for (int i = 0; i < stop; ++i) {
      whole.step(i);
      first.step(i);
    }
    Program second(GetParam());
    second.store.load_state_dict(through_text(first.store.state_dict()));
    EXPECT_EQ(everything(second.store), everything(whole.store))
        << "right after the resume at " << stop;
    second.begin();
    for (int i = stop; i < kSteps; ++i) {
      whole.step(i);
      second.step(i);
      EXPECT_EQ(everything(second.store), everything(whole.store))
          << "stop " << stop << ", step " << i;
    }
  }
}

TEST_P(MetricState, WhatIsPendingIsNotSaved) {
  MetricStore store(GetParam());
  MetricRun run(store);
  run.start(MetricPhase::kTrain);
  run.batch(HookPoint::kTrainingStep, 2, [&] {
    store.log("x", torch::tensor(1.0F), {.on_epoch = true});
  });
  const std::string before =
      boost::json::serialize(store.state_dict().values["train"].at("entries"));
  run.enter(HookPoint::kTrainingStep, 2);
  store.log("x", torch::tensor(2.0F), {.on_epoch = true});
  store.log("y", torch::tensor(2.0F));
  const StateDict state = store.state_dict();
  EXPECT_EQ(boost::json::serialize(state.values.at("train").at("entries")), before);
  MetricStore other(GetParam());
  other.load_state_dict(state);
  EXPECT_EQ(other.callback_metrics(), (Metrics{{"x", 1.0}, {"x_step", 1.0}}));
}

TEST_P(MetricState, TheSanityCheckIsNotSavedAndDoesNotDisturbARestoredState) {
  MetricStore store(GetParam());
  MetricRun run(store);
  run.start(MetricPhase::kSanityCheck);
  run.batch(HookPoint::kValidationStep, 2, [&] { store.log("v", 1.0); });
  EXPECT_TRUE(store.state_dict().empty());

  Program program(GetParam());
  program.begin();
  for (int i = 0; i < Program::kBatches; ++i) program.step(i);
  MetricStore resumed(GetParam());
  resumed.load_state_dict(program.store.state_dict());
  const std::string before = everything(resumed);
  MetricRun check(resumed);
  resumed.load_state_dict(program.store.state_dict());
  check.start(MetricPhase::kSanityCheck);
  check.loader_batch(HookPoint::kValidationStep, 0, 2, 2, [&] { resumed.log("val", 77.0); });
  resumed.end_epoch();
  EXPECT_EQ(resumed.metric("val/dataloader_idx_0"), 77.0);
  resumed.end_phase();
  EXPECT_EQ(everything(resumed), before);
}

StateDict state_with(const LogOptions& options) {
  MetricStore store;
  MetricRun run(store);
  run.start(MetricPhase::kTrain);
  run.batch(HookPoint::kTrainingStep, 2, [&] { store.log("x", 4.0, options); });
  return store.state_dict();
}

TEST(MetricStateOfAChangedProgram, HowAMetricIsShownMayChangeAndSumsGoOn) {
  MetricStore store;
  MetricRun run(store);
  store.load_state_dict(state_with({.on_epoch = true}));
  run.start(MetricPhase::kTrain);
  run.batch(HookPoint::kTrainingStep, 2, [&] {
    store.log("x", 2.0, {.prog_bar = true, .logger = false, .on_epoch = true});
    EXPECT_THROW(store.log("x", 2.0, {.on_epoch = true}), ConfigError);
  });
  EXPECT_FALSE(store.has_step_logger_metrics(MetricPhase::kTrain));
  EXPECT_EQ(store.progress_bar_metrics(), (Metrics{{"x_step", 2.0}}));
  store.end_epoch();
  EXPECT_EQ(store.metric("x"), 3.0);
}

TEST(MetricStateOfAChangedProgram, AMetricOfAnotherMeaningStartsAnew) {
  const LogOptions sum = {.on_epoch = true, .reduce = MetricReduction::kSum};
  MetricStore store;
  MetricRun run(store);
  store.load_state_dict(state_with({.on_epoch = true}));
  run.start(MetricPhase::kTrain);
  run.batch(HookPoint::kTrainingStep, 2, [&] { store.log("x", 2.0, sum); });
  store.end_epoch();
  EXPECT_EQ(store.callback_metrics(), (Metrics{{"x", 2.0}, {"x_step", 2.0}, {"x_epoch", 2.0}}));

  store.begin_run();
  store.load_state_dict(state_with({.on_epoch = true}));
  run.start(MetricPhase::kTrain);
  run.batch(HookPoint::kOnTrainBatchEnd, 2, [&] { store.log("x", 2.0); });
  store.end_epoch();
  EXPECT_EQ(store.callback_metrics(), (Metrics{{"x", 2.0}}));
}

TEST(MetricStateOfAFile, DamageIsRefusedAndNothingChanges) {
  const StateDict good = state_with({.on_epoch = true});
  MetricStore store;
  MetricRun run(store);
  run.start(MetricPhase::kTrain);
  run.batch(HookPoint::kTrainingStep, 2, [&] { store.log("mine", 1.0); });

  const auto refused = [&](const std::function<void(StateDict&)>& damage, const std::string& text) {
    StateDict bad = through_text(good);
    damage(bad);
    EXPECT_THROW_TEXT(store.load_state_dict(bad), CheckpointError, text);
    EXPECT_EQ(store.callback_metrics(), (Metrics{{"mine", 1.0}}));
  };
  const auto entry = [](StateDict& state) -> boost::json::object& {
    return state.values.at("train").at("entries").at(0).as_object();
  };
  refused([](StateDict& state) { state.tensors.clear(); }, "'train' is missing");
  refused(
      [](StateDict& state) {
        state.tensors["train"] = torch::ones({2, 4}, torch::kDouble);
      },
      "[2, 4]");
  refused([](StateDict& state) { state.tensors["train"] = torch::ones({1, 4}); }, "float64");
  refused([](StateDict& state) { state.values.erase("clock"); }, "clock");
  refused([](StateDict& state) { state.values["train"] = 3; }, "train");
  refused(
      [](StateDict& state) {
        state.values.at("train").as_object().at("entries").as_array()[0] = 1;
      },
      "entry 0");
  refused([&](StateDict& state) { entry(state)["hook"] = "on_nothing"; }, "on_nothing");
  refused([&](StateDict& state) { entry(state)["hook"] = "setup"; }, "setup");
  refused([&](StateDict& state) { entry(state)["reduce"] = "median"; }, "median");
  refused([&](StateDict& state) { entry(state).erase("count"); }, "count");
}

}  // namespace
}  // namespace fulmen
