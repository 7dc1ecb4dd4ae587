#include "fulmen/core/optim/lr_schedulers.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fulmen/core/optim/adam.h"
#include "fulmen/core/optim/composed_lr.h"
#include "fulmen/core/optim/one_cycle_lr.h"
#include "fulmen/core/optim/reduce_lr_on_plateau.h"
#include "fulmen/core/optim/sgd.h"
#include "fulmen/core/support/error.h"
#include "tests/core/optim/golden.h"

namespace fulmen {
namespace {

using Object = boost::json::object;

std::int64_t integer(const Object& options, const char* key) {
  return options.at(key).is_null() ? 0 : options.at(key).to_number<std::int64_t>();
}

LRFunction function_of(const std::string& text) {
  if (text == "0.95^t")
    return [](std::int64_t t) { return std::pow(0.95, static_cast<double>(t)); };
  if (text == "1/(1+0.1*t)")
    return [](std::int64_t t) { return 1.0 / (1.0 + 0.1 * static_cast<double>(t)); };
  return [](std::int64_t t) { return std::min(1.0, static_cast<double>(t + 1) / 5.0); };
}

std::shared_ptr<SteppedLR> make_simple(const std::string& kind,
                                       const std::shared_ptr<Optimizer>& optimizer,
                                       const Object& o) {
  if (kind == "StepLR") {
    return StepLR::make(optimizer,
                        {.step_size = integer(o, "step_size"), .gamma = number(o, "gamma")});
  }
  if (kind == "MultiStepLR") {
    std::vector<std::int64_t> milestones;
    for (const double m : numbers(o.at("milestones")))
      milestones.push_back(static_cast<std::int64_t>(m));
    return MultiStepLR::make(optimizer, {.milestones = milestones, .gamma = number(o, "gamma")});
  }
  if (kind == "ExponentialLR") return ExponentialLR::make(optimizer, {.gamma = number(o, "gamma")});
  if (kind == "ConstantLR") {
    return ConstantLR::make(
        optimizer, {.factor = number(o, "factor"), .total_iters = integer(o, "total_iters")});
  }
  if (kind == "LinearLR") {
    return LinearLR::make(optimizer,
                          {.start_factor = number(o, "start_factor"),
                           .end_factor = number(o, "end_factor"),
                           .total_iters = integer(o, "total_iters")});
  }
  if (kind == "PolynomialLR") {
    return PolynomialLR::make(
        optimizer, {.total_iters = integer(o, "total_iters"), .power = number(o, "power")});
  }
  if (kind == "CosineAnnealingLR") {
    return CosineAnnealingLR::make(optimizer,
                                   {.t_max = integer(o, "T_max"), .eta_min = number(o, "eta_min")});
  }
  if (kind == "LambdaLR")
    return LambdaLR::make(optimizer, {.lr_lambda = function_of(text(o.at("lr_lambda")))});
  if (kind == "MultiplicativeLR") {
    return MultiplicativeLR::make(optimizer, {.lr_lambda = function_of(text(o.at("lr_lambda")))});
  }
  return nullptr;
}

std::shared_ptr<SteppedLR> make_one_cycle(const std::shared_ptr<Optimizer>& optimizer,
                                          const Object& o) {
  return OneCycleLR::make(
      optimizer,
      {.max_lr = number(o, "max_lr"),
       .total_steps = integer(o, "total_steps"),
       .epochs = integer(o, "epochs"),
       .steps_per_epoch = integer(o, "steps_per_epoch"),
       .pct_start = number(o, "pct_start"),
       .anneal_strategy =
           o.at("anneal_strategy") == "cos" ? AnnealStrategy::kCos : AnnealStrategy::kLinear,
       .cycle_momentum = o.at("cycle_momentum").as_bool(),
       .base_momentum = number(o, "base_momentum"),
       .max_momentum = number(o, "max_momentum"),
       .div_factor = number(o, "div_factor"),
       .final_div_factor = number(o, "final_div_factor"),
       .three_phase = o.at("three_phase").as_bool()});
}

std::shared_ptr<LRScheduler> make_plateau(const std::shared_ptr<Optimizer>& optimizer,
                                          const Object& o) {
  return ReduceLROnPlateau::make(
      optimizer,
      {.mode = o.at("mode") == "min" ? PlateauMode::kMin : PlateauMode::kMax,
       .factor = number(o, "factor"),
       .patience = integer(o, "patience"),
       .threshold = number(o, "threshold"),
       .threshold_mode =
           o.at("threshold_mode") == "rel" ? ThresholdMode::kRel : ThresholdMode::kAbs,
       .cooldown = integer(o, "cooldown"),
       .min_lr = number(o, "min_lr"),
       .eps = number(o, "eps")});
}

std::shared_ptr<LRScheduler> make_scheduler(const std::string& kind,
                                            const std::shared_ptr<Optimizer>& optimizer,
                                            const Object& o) {
  if (kind == "OneCycleLR") return make_one_cycle(optimizer, o);
  if (kind == "ReduceLROnPlateau") return make_plateau(optimizer, o);
  if (!o.contains("schedulers")) return make_simple(kind, optimizer, o);
  std::vector<std::shared_ptr<SteppedLR>> schedulers;
  for (const auto& inner : o.at("schedulers").as_array()) {
    schedulers.push_back(
        make_simple(text(inner.at("scheduler")), optimizer, inner.at("options").as_object()));
  }
  if (kind == "ChainedScheduler")
    return ChainedScheduler::make(optimizer, {.schedulers = schedulers});
  std::vector<std::int64_t> milestones;
  for (const double m : numbers(o.at("milestones")))
    milestones.push_back(static_cast<std::int64_t>(m));
  return SequentialLR::make(optimizer, {.schedulers = schedulers, .milestones = milestones});
}

// An optimizer with its scheduler, as a golden case describes them.
struct GoldenRun {
  explicit GoldenRun(const Object& c) : golden(c) {
    const double lr = number(c, "base_lr");
    const Parameters parameters = {parameter({0})};
    if (c.at("optimizer") == "Adam") {
      optimizer = Adam::make(parameters, {.lr = lr});
    } else {
      optimizer = SGD::make(
          parameters,
          {.lr = lr, .momentum = number(c.at("optimizer_options").as_object(), "momentum")});
    }
    scheduler = make_scheduler(text(c.at("scheduler")), optimizer, c.at("options").as_object());
  }
  double lr() const { return optimizer->hyperparameter(0, "lr"); }
  double momentum() const {
    return optimizer->hyperparameter(0, golden.at("optimizer") == "Adam" ? "beta1" : "momentum");
  }
  void step(std::size_t i) {
    optimizer->step();
    if (scheduler->needs_metric()) {
      scheduler->step(numbers(golden.at("metrics"))[i]);
    } else {
      scheduler->step();
    }
  }
  Object golden;
  std::shared_ptr<Optimizer> optimizer;
  std::shared_ptr<LRScheduler> scheduler;
};

// The formulas have the same operations as PyTorch's; 30 steps of a few roundings of 1.1e-16 each.
constexpr double kTolerance = 1e-12;

TEST(LRSchedulers, EqualPyTorchInEveryGoldenCase) {
  const auto cases = golden_cases("schedulers.json");
  ASSERT_GE(cases.size(), 30u);
  for (const auto& value : cases) {
    const auto& c = value.as_object();
    SCOPED_TRACE(text(c.at("name")));
    GoldenRun run(c);
    const auto lrs = numbers(c.at("lr"));
    const auto momenta = c.contains("momentum") ? numbers(c.at("momentum")) : std::vector<double>{};
    for (std::size_t i = 0; i < lrs.size(); ++i) {
      EXPECT_NEAR(run.lr(), lrs[i], kTolerance * lrs[i]) << i;
      if (!momenta.empty()) {
        EXPECT_NEAR(run.momentum(), momenta[i], kTolerance) << i;
      }
      run.step(i);
    }
  }
}

// The scheduler is made before or after the optimizer's state is restored: the rates are the same
// (faults.md 47-49).
TEST(LRSchedulers, AResumedSeriesIsBitwiseTheUnbrokenOneAtEveryStepAndInBothOrders) {
  for (const auto& value : golden_cases("schedulers.json")) {
    const auto& c = value.as_object();
    SCOPED_TRACE(text(c.at("name")));
    for (std::size_t stop = 0; stop < 28; stop += 3) {
      for (const bool scheduler_first : {true, false}) {
        GoldenRun unbroken(c);
        for (std::size_t i = 0; i < stop; ++i) unbroken.step(i);
        const auto optimizer_state = unbroken.optimizer->state_dict();
        const auto scheduler_state = unbroken.scheduler->state_dict();
        GoldenRun resumed(c);
        if (scheduler_first) resumed.scheduler->load_state_dict(scheduler_state);
        resumed.optimizer->load_state_dict(optimizer_state);
        if (!scheduler_first) {
          resumed.scheduler = make_scheduler(
              text(c.at("scheduler")), resumed.optimizer, c.at("options").as_object());
          resumed.scheduler->load_state_dict(scheduler_state);
        }
        for (std::size_t i = stop; i < 30; ++i) {
          ASSERT_EQ(resumed.lr(), unbroken.lr()) << stop << " " << i;
          ASSERT_EQ(resumed.momentum(), unbroken.momentum()) << stop << " " << i;
          unbroken.step(i);
          resumed.step(i);
        }
      }
    }
  }
}

TEST(LRSchedulers, MultiStepDropsTheRateAtItsEpochAlsoAfterAResume) {  // faults.md 46
  std::vector<double> rates;
  auto optimizer = SGD::make({parameter({0})}, {.lr = 100});
  auto scheduler = MultiStepLR::make(optimizer, {.milestones = {4}, .gamma = 0.1});
  for (int epoch = 0; epoch < 7; ++epoch) {
    rates.push_back(optimizer->hyperparameter(0, "lr"));
    scheduler->step();
    if (epoch != 2) continue;
    auto next = SGD::make({parameter({0})}, {.lr = 100});
    auto made = MultiStepLR::make(next, {.milestones = {4}, .gamma = 0.1});
    next->load_state_dict(optimizer->state_dict());
    made->load_state_dict(scheduler->state_dict());
    optimizer = next;
    scheduler = made;
  }
  EXPECT_EQ(rates, (std::vector<double>{100, 100, 100, 100, 10, 10, 10}));
}

TEST(LRSchedulers, LambdaWarmUpGoesOnAtItsStep) {  // faults.md 47
  const auto f = [](std::int64_t step) { return static_cast<double>(step) / 1000.0; };
  auto optimizer = SGD::make({parameter({0})}, {.lr = 2});
  auto scheduler = LambdaLR::make(optimizer, {.lr_lambda = f});
  for (int i = 0; i < 500; ++i) scheduler->step();
  auto resumed = SGD::make({parameter({0})}, {.lr = 2});
  auto made = LambdaLR::make(resumed, {.lr_lambda = f});
  made->load_state_dict(scheduler->state_dict());
  EXPECT_EQ(resumed->hyperparameter(0, "lr"), 2 * f(500));
}

TEST(LRSchedulers, ARateSetByHandStaysInForce) {
  auto optimizer = SGD::make({parameter({0})}, {.lr = 1});
  auto scheduler = StepLR::make(optimizer, {.step_size = 2, .gamma = 0.5});
  optimizer->set_hyperparameter(0, "lr", 8);
  scheduler->step();
  EXPECT_EQ(optimizer->hyperparameter(0, "lr"), 8);
  scheduler->step();
  EXPECT_EQ(optimizer->hyperparameter(0, "lr"), 4);
}

TEST(LRSchedulers, TheInitialRateDoesNotDependOnTheOrderInWhichSchedulersAreMade) {
  for (const bool warm_up_first : {true, false}) {
    auto optimizer = SGD::make({parameter({0})}, {.lr = 0.1});
    std::shared_ptr<SteppedLR> warm_up, cosine;
    if (warm_up_first) warm_up = LinearLR::make(optimizer, {.start_factor = 0.1, .total_iters = 5});
    cosine = CosineAnnealingLR::make(optimizer, {.t_max = 24});
    if (!warm_up_first)
      warm_up = LinearLR::make(optimizer, {.start_factor = 0.1, .total_iters = 5});
    auto both = SequentialLR::make(optimizer, {.schedulers = {warm_up, cosine}, .milestones = {5}});
    EXPECT_DOUBLE_EQ(optimizer->hyperparameter(0, "lr"), 0.01);
    for (int i = 0; i < 5; ++i) both->step();
    EXPECT_DOUBLE_EQ(optimizer->hyperparameter(0, "lr"), 0.1);
  }
}

TEST(LRSchedulers, GroupsKeepTheirRatios) {
  auto optimizer = SGD::make(
      {{.parameters = {parameter({0})}, .lr = 1.0}, {.parameters = {parameter({0})}, .lr = 0.25}});
  auto scheduler = LambdaLR::make(
      optimizer,
      {.lr_lambdas = {[](std::int64_t) { return 0.5; }, [](std::int64_t) { return 2.0; }}});
  EXPECT_EQ(optimizer->hyperparameter(0, "lr"), 0.5);
  EXPECT_EQ(optimizer->hyperparameter(1, "lr"), 0.5);
}

TEST(LRSchedulers, PlateauCountsNanAsBad) {
  auto optimizer = SGD::make({parameter({0})}, {.lr = 1});
  auto scheduler = ReduceLROnPlateau::make(optimizer, {.factor = 0.5, .patience = 1});
  scheduler->step(1.0);
  scheduler->step(std::nan(""));
  EXPECT_EQ(optimizer->hyperparameter(0, "lr"), 1);
  scheduler->step(std::nan(""));
  EXPECT_EQ(optimizer->hyperparameter(0, "lr"), 0.5);
  EXPECT_THROW(scheduler->step(), ConfigError);
}

TEST(LRSchedulers, RefuseOptionsOutOfRange) {
  auto optimizer = SGD::make({parameter({0})}, {.lr = 1});
  auto other = SGD::make({parameter({0})}, {.lr = 1});
  auto plain = std::make_shared<torch::nn::Linear>(1, 1);
  const std::vector<std::pair<std::string, std::function<void()>>> cases = {
      {"StepLR: step_size must be at least 1, got 0", [&] { StepLR::make(optimizer, {}); }},
      {"ExponentialLR: gamma must be above 0", [&] { ExponentialLR::make(optimizer, {}); }},
      {"CosineAnnealingLR: t_max must be at least 1",
       [&] { CosineAnnealingLR::make(optimizer, {}); }},
      {"LinearLR: start_factor must be in (0, 1], got 0",
       [&] { LinearLR::make(optimizer, {.start_factor = 0}); }},
      {"LinearLR: end_factor must be in [0, 1]",
       [&] { LinearLR::make(optimizer, {.end_factor = 2}); }},
      {"ConstantLR: factor must be in (0, 1]", [&] { ConstantLR::make(optimizer, {.factor = 0}); }},
      {"OneCycleLR: max_lr must be above 0",
       [&] { OneCycleLR::make(optimizer, {.total_steps = 3}); }},
      {"OneCycleLR: total_steps", [&] { OneCycleLR::make(optimizer, {.max_lr = 1}); }},
      {"LambdaLR: there are 0 functions", [&] { LambdaLR::make(optimizer, {}); }},
      {"StepLR: there is no optimizer", [&] { StepLR::make(nullptr, {.step_size = 1}); }},
      {"SequentialLR: schedulers is empty", [&] { SequentialLR::make(optimizer, {}); }},
      {"ChainedScheduler: scheduler 0 (StepLR) belongs to another optimizer",
       [&] {
         ChainedScheduler::make(optimizer, {.schedulers = {StepLR::make(other, {.step_size = 1})}});
       }},
      {"SequentialLR: there are 0 milestones for 2 schedulers",
       [&] {
         auto step = StepLR::make(optimizer, {.step_size = 1});
         SequentialLR::make(optimizer, {.schedulers = {step, step}});
       }},
      {"ReduceLROnPlateau: factor must be in (0, 1), got 1",
       [&] { ReduceLROnPlateau::make(optimizer, {.factor = 1}); }},
      {"OneCycleLR: step 2 is beyond total_steps = 1",
       [&] {
         auto cycle = OneCycleLR::make(optimizer, {.max_lr = 1, .total_steps = 1});
         cycle->step();
         cycle->step();
       }},
  };
  for (const auto& [expected, action] : cases) {
    const auto message = message_of<ConfigError>(action);
    EXPECT_TRUE(contains(message, expected)) << message;
  }
}

TEST(LRSchedulers, StateOfAnotherKindIsRefusedAndNothingChanges) {
  auto optimizer = SGD::make({parameter({0})}, {.lr = 1});
  auto step = StepLR::make(optimizer, {.step_size = 1});
  auto exponential = ExponentialLR::make(optimizer, {.gamma = 0.5});
  const auto message =
      message_of<CheckpointError>([&] { step->load_state_dict(exponential->state_dict()); });
  EXPECT_TRUE(contains(message, "StepLR: the state is that of a ExponentialLR")) << message;

  auto chain = ChainedScheduler::make(optimizer, {.schedulers = {step, exponential}});
  auto bad = chain->state_dict();
  bad.values["schedulers"].as_array()[1].as_object()["lrs"].as_array().clear();
  bad.values["schedulers"].as_array()[0].as_object()["step_count"] = 7;
  EXPECT_THROW(chain->load_state_dict(bad), CheckpointError);
  EXPECT_EQ(step->step_count(), 0);
  auto negative = step->state_dict();
  negative.values["lrs"].as_array()[0] = -1.0;
  EXPECT_THROW(step->load_state_dict(negative), CheckpointError);
}

}  // namespace
}  // namespace fulmen
