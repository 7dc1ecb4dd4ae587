#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

TrainerOptions accumulating(std::int64_t micro_batches, std::int64_t epochs = 1) {
  auto options = quiet(epochs);
  options.accumulate_grad_batches = micro_batches;
  return options;
}

TEST(Accumulation, GradientOfAStepIsTheMeanOverItsMicroBatches) {
  Trainer trainer(accumulating(2));
  auto module = std::make_shared<Toy>();
  trainer.fit(module, singles({2, 2}));
  EXPECT_EQ(module->value(), -2);  // Not -4.
  EXPECT_EQ(trainer.progress().global_step, 1);
  EXPECT_EQ(trainer.progress().total_batches, 2);
}

TEST(Accumulation, LossIsLoggedAndSeenUndivided) {
  for (std::int64_t micro_batches : {1, 2, 4}) {
    std::vector<double> before_backward, batch_end;
    auto options = accumulating(micro_batches);
    options.callbacks = {LambdaCallback::make(
        {.on_train_batch_end =
             [&](TrainerContext&, ModuleBase&, const StepOutput& output, BatchView, std::int64_t) {
               batch_end.push_back(output.loss.item<double>());
             },
         .on_before_backward =
             [&](TrainerContext&, ModuleBase&, const at::Tensor& loss) {
               before_backward.push_back(loss.item<double>());
             }})};
    Trainer trainer(options);
    auto module = std::make_shared<Toy>();
    module->step = [](Toy& toy, Batch& batch, std::int64_t) {
      auto loss = toy.loss(batch) * 0 + 4;
      toy.log("loss", loss, {.on_epoch = true});
      return loss;
    };
    trainer.fit(module, singles({1, 2, 3, 4}));
    const std::vector<double> fours(4, 4.0);
    EXPECT_EQ(before_backward, fours) << micro_batches;
    EXPECT_EQ(batch_end, fours) << micro_batches;
    EXPECT_EQ(trainer.callback_metrics().at("loss_step"), 4) << micro_batches;
    EXPECT_EQ(trainer.callback_metrics().at("loss_epoch"), 4) << micro_batches;
  }
}

TEST(Accumulation, EpochShorterThanAWindowStepsOncePerEpochDividedByWhatItHeld) {
  auto sink = std::make_shared<CapturingSink>();
  auto options = quiet(4, sink);
  options.accumulate_grad_batches = 4;
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  trainer.fit(module, singles({1, 3}));
  EXPECT_EQ(trainer.progress().global_step, 4);
  EXPECT_EQ(module->value(), -8);  // 4 steps of (1 + 3) / 2.
  EXPECT_EQ(sink->count(LogLevel::kWarning, "accumulate_grad_batches = 4"), 1) << sink->all();
}

TEST(Accumulation, WindowThatIsExactlyAnEpochWarnsOfNothing) {
  auto sink = std::make_shared<CapturingSink>();
  auto options = quiet(1, sink);
  options.accumulate_grad_batches = 2;
  Trainer(options).fit(std::make_shared<Toy>(), singles({1, 3}));
  EXPECT_EQ(sink->count(LogLevel::kWarning, ""), 0) << sink->all();
}

TEST(Accumulation, TailWindowIsDividedByItsOwnCount) {
  std::vector<double> weights;
  auto options = accumulating(2);
  options.callbacks = {LambdaCallback::make(
      {.on_train_batch_end =
           [&](TrainerContext&, ModuleBase& module, const StepOutput&, BatchView, std::int64_t) {
             weights.push_back(module.parameters()[0].item<double>());
           }})};
  Trainer trainer(options);
  trainer.fit(std::make_shared<Toy>(), singles({2, 4, 6, 8, 5}));
  EXPECT_EQ(weights, (std::vector<double>{0, -3, -3, -10, -15}));
  EXPECT_EQ(trainer.progress().global_step, 3);
}

TEST(Accumulation, HooksBeforeTheStepSeeTheDividedGradient) {
  std::vector<double> gradients;
  auto options = accumulating(2);
  options.callbacks = {LambdaCallback::make(
      {.on_before_optimizer_step = [&](TrainerContext&, ModuleBase& module, Optimizer&) {
        gradients.push_back(module.parameters()[0].grad().item<double>());
      }})};
  Trainer trainer(options);
  trainer.fit(std::make_shared<Toy>(), singles({2, 4, 5}));
  EXPECT_EQ(gradients, (std::vector<double>{3, 5}));
}

using Weigh = std::function<StepOutput(at::Tensor, double)>;

struct WeightCase {
  const char* name;
  Weigh weigh;
};

const WeightCase kWeightCases[] = {
    {"number", [](at::Tensor loss, double weight) { return StepOutput(loss, weight); }},
    {"tensor",
     [](at::Tensor loss, double weight) {
       return StepOutput(loss, torch::tensor(weight, torch::kFloat64));
     }},
    {"tensor of shape [1]",
     [](at::Tensor loss, double weight) {
       return StepOutput(loss, torch::full({1}, weight, torch::kFloat64));
     }},
    {"integer tensor",
     [](at::Tensor loss, double weight) {
       return StepOutput(loss, torch::tensor(static_cast<std::int64_t>(weight)));
     }},
    {"both", [](at::Tensor loss, double weight) {
       return weight > 1 ? StepOutput(loss, weight)
                         : StepOutput(loss, torch::tensor(weight, torch::kFloat64));
     }}};

/// x and weight of each micro-batch, the weight after.
double weighted(const Weigh& weigh,
                std::vector<std::pair<double, double>> micro_batches,
                std::int64_t window) {
  std::vector<Batch> batches;
  for (auto [x, weight] : micro_batches) batches.push_back(column({x}));
  Trainer trainer(accumulating(window));
  auto module = std::make_shared<Toy>();
  module->step = [&](Toy& toy, Batch& batch, std::int64_t idx) {
    return weigh(toy.loss(batch), micro_batches[static_cast<std::size_t>(idx)].second);
  };
  trainer.fit(module, batches);
  return module->value();
}

TEST(Accumulation, WeightsDecideAMicroBatchsShare) {
  for (const auto& [name, weigh] : kWeightCases) {
    // faults.md 6: one token with gradient 4, three with 0: 4 / 4 tokens.
    EXPECT_EQ(weighted(weigh, {{4, 1}, {0, 3}}, 2), -1.0) << name;
    // faults.md 7: three samples of gradient 1, one of 5.
    EXPECT_EQ(weighted(weigh, {{1, 3}, {5, 1}}, 2), -2.0) << name;
    // A tail of one: its weight cancels out. (1 * 2 + 6 * 2) / 4, then 8.
    EXPECT_EQ(weighted(weigh, {{1, 2}, {6, 2}, {8, 7}}, 2), -3.5 - 8) << name;
    // A window of one throughout.
    EXPECT_EQ(weighted(weigh, {{1, 3}, {5, 2}}, 1), -6.0) << name;
  }
}

TEST(Accumulation, RowsCanBeTheWeights) {
  auto options = accumulating(2);
  options.window_weighting = WindowWeighting::kRows;
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  trainer.fit(module, std::vector<Batch>{column({1, 1, 1}), column({5})});
  EXPECT_EQ(module->value(), -2);  // 3 with equal micro-batches.

  auto explicit_weight = std::make_shared<Toy>();
  explicit_weight->step = [](Toy& toy, Batch& batch, std::int64_t) {
    return StepOutput(toy.loss(batch), 1.0);
  };
  trainer.fit(explicit_weight, std::vector<Batch>{column({1, 1, 1}), column({5})});
  EXPECT_EQ(explicit_weight->value(), -3);  // What the step says wins.
}

TEST(Accumulation, WeightThatIsNotAboveZeroIsRefused) {
  for (double weight : {0.0, -1.0, std::nan(""), static_cast<double>(INFINITY)}) {
    Trainer trainer(accumulating(2));
    auto module = std::make_shared<Toy>();
    module->step = [&](Toy& toy, Batch& batch, std::int64_t) {
      return StepOutput(toy.loss(batch), weight);
    };
    const auto message = message_of<TrainingError>([&] { trainer.fit(module, singles({1, 1})); });
    EXPECT_TRUE(contains(message, "weight")) << weight;
    EXPECT_TRUE(contains(message, "batch 0")) << weight;
    EXPECT_EQ(module->value(), 0);
  }
}

/// tanh network in float64; rows of a batch are (features, target).
class Net : public LightningModule<> {
 public:
  Net() : LightningModule("Net") {
    torch::manual_seed(3);
    first_ = register_module("first", torch::nn::Linear(3, 4));
    last_ = register_module("last", torch::nn::Linear(4, 1));
    to(torch::kFloat64);
  }
  StepOutput training_step(Batch& batch, std::int64_t) override {
    auto [x, y] = batch.unpack<2>();
    return torch::mse_loss(last_->forward(torch::tanh(first_->forward(x))).squeeze(1), y);
  }
  OptimizerConfigs configure_optimizers() override {
    return SGD::make(*this, {.lr = 0.1, .momentum = 0.9});
  }

 private:
  torch::nn::Linear first_{nullptr}, last_{nullptr};
};

/// The weights after training on batches of these sizes.
at::Tensor train_net(TrainerOptions options, const std::vector<std::int64_t>& sizes) {
  torch::manual_seed(5);
  const auto x = torch::randn({12, 3}, torch::kFloat64);
  const auto y = torch::randn({12}, torch::kFloat64);
  std::vector<Batch> batches;
  std::int64_t row = 0;
  for (auto size : sizes) {
    batches.push_back({{x.slice(0, row, row + size), y.slice(0, row, row + size)}});
    row += size;
  }
  auto module = std::make_shared<Net>();
  Trainer(std::move(options)).fit(module, batches);
  std::vector<at::Tensor> flat;
  for (const auto& parameter : module->parameters()) flat.push_back(parameter.detach().flatten());
  return torch::cat(flat);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

// Sums of a dozen numbers of size 1 in another order: some 1e-16 each, over 6 steps.
constexpr double kRounding = 1e-13;

TEST(Accumulation, MicroBatchesEqualOneBigBatchAlsoInTheTail) {
  const auto micro = train_net(accumulating(3, 3), {2, 2, 2, 2, 2});  // Windows of 6 and 4 rows.
  const auto big = train_net(quiet(3), {6, 4});
  EXPECT_LT(difference(micro, big), kRounding);
  EXPECT_GT(difference(big, train_net(quiet(3), {4, 6})), 1e-3);  // The test can tell.
}

TEST(Accumulation, UnequalMicroBatchesEqualOneBigBatchWithRowsAsWeights) {
  auto options = accumulating(3, 2);
  const auto by_count = train_net(options, {1, 3, 4, 2, 2});
  options.window_weighting = WindowWeighting::kRows;
  const auto by_rows = train_net(options, {1, 3, 4, 2, 2});
  const auto big = train_net(quiet(2), {8, 4});
  EXPECT_LT(difference(by_rows, big), kRounding);
  EXPECT_GT(difference(by_count, big), 1e-3);
}

TEST(Accumulation, MicroBatchWithoutLossDoesNotCount) {
  for (std::int64_t empty : {0, 1}) {
    Trainer trainer(accumulating(2));
    auto module = std::make_shared<Toy>();
    module->step = [empty](Toy& toy, Batch& batch, std::int64_t idx) {
      return idx == empty ? StepOutput() : StepOutput(toy.loss(batch));
    };
    trainer.fit(module, singles({4, 4}));
    EXPECT_EQ(module->value(), -4) << empty;
    EXPECT_EQ(trainer.progress().global_step, 1) << empty;
  }
}

TEST(Accumulation, WindowWithoutAnyLossTakesNoStep) {
  int before_step = 0;
  auto options = accumulating(2);
  options.callbacks = {
      LambdaCallback::make({.on_before_optimizer_step =
                                [&](TrainerContext&, ModuleBase&, Optimizer&) { ++before_step; }})};
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  module->step = [](Toy& toy, Batch& batch, std::int64_t idx) {
    return idx < 2 ? StepOutput() : StepOutput(toy.loss(batch));
  };
  trainer.fit(module, singles({4, 4, 1, 3}));
  EXPECT_EQ(module->value(), -2);
  EXPECT_EQ(before_step, 1);
  EXPECT_EQ(trainer.progress().global_step, 1);
  EXPECT_EQ(trainer.progress().skipped_steps, 0);
  EXPECT_EQ(trainer.progress().total_batches, 4);
}

TEST(Accumulation, SkippingTheEpochAppliesTheOpenWindow) {
  auto log = std::make_shared<ValidationLog>();
  auto options = accumulating(4, 2);
  options.callbacks = {log};
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  module->batch_start = [](Batch&, std::int64_t idx) {
    return idx == 2 ? BatchAction::kSkipEpoch : BatchAction::kContinue;
  };
  trainer.fit(module, singles({1, 3, 100, 100, 100}), singles({1}));
  EXPECT_EQ(module->value(), -4);  // Two epochs of (1 + 3) / 2.
  EXPECT_EQ(trainer.progress().global_step, 2);
  EXPECT_EQ(trainer.progress().total_batches, 4);
  EXPECT_EQ(trainer.progress().epoch, 2);
  EXPECT_EQ(log->batches, (std::vector<std::int64_t>{2, 4}));
}

TEST(Accumulation, SkippingTheEpochWithoutAnOpenWindowTakesNoStep) {
  Trainer trainer(accumulating(2));
  auto module = std::make_shared<Toy>();
  module->batch_start = [](Batch&, std::int64_t idx) {
    return idx == 2 ? BatchAction::kSkipEpoch : BatchAction::kContinue;
  };
  trainer.fit(module, singles({1, 3, 100}));
  EXPECT_EQ(module->value(), -2);
  EXPECT_EQ(trainer.progress().global_step, 1);
}

TEST(Accumulation, WindowsDoNotReachIntoTheNextEpoch) {
  Trainer trainer(accumulating(2, 2));
  auto module = std::make_shared<Toy>();
  trainer.fit(module, singles({2, 4, 6}));
  EXPECT_EQ(module->value(), -18);  // 3 + 6 in each epoch.
  EXPECT_EQ(trainer.progress().global_step, 4);
}

TEST(Accumulation, StepSchedulersCountStepsNotMicroBatches) {
  auto options = accumulating(2, 2);
  std::vector<double> rates;
  options.callbacks = {LambdaCallback::make(
      {.on_before_optimizer_step = [&](TrainerContext&, ModuleBase&, Optimizer& optimizer) {
        rates.push_back(optimizer.hyperparameter(0, "lr"));
      }})};
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  module->optimizers = [](Toy& toy) -> OptimizerConfigs {
    auto sgd = SGD::make(toy, {.lr = 8});
    return OptimizerConfig{
        .optimizer = sgd,
        .schedulers = {{.scheduler = StepLR::make(sgd, {.step_size = 1, .gamma = 0.5}),
                        .interval = Interval::kStep}}};
  };
  trainer.fit(module, singles({1, 1, 1}));
  EXPECT_EQ(rates, (std::vector<double>{8, 4, 2, 1}));
}

TEST(Accumulation, SchedulerCallbackChangesTheWindowByEpoch) {
  auto options = quiet(3);
  options.callbacks = {GradientAccumulationScheduler::make({.scheduling = {{1, 2}, {2, 4}}})};
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  std::vector<std::int64_t> steps;
  module->step = [&](Toy& toy, Batch& batch, std::int64_t) {
    steps.push_back(toy.global_step());
    return toy.loss(batch);
  };
  trainer.fit(module, singles({1, 1, 1, 1}));
  EXPECT_EQ(steps, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6}));
  EXPECT_EQ(module->value(), -7);
}

TEST(Accumulation, AChangeInsideAWindowHoldsFromTheNextOn) {
  auto options = accumulating(2);
  options.callbacks = {LambdaCallback::make(
      {.on_train_batch_end =
           [](TrainerContext& context, ModuleBase&, const StepOutput&, BatchView, std::int64_t) {
             context.set_accumulate_grad_batches(3);
           }})};
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  trainer.fit(module, singles({1, 3, 2, 4, 6}));
  EXPECT_EQ(trainer.progress().global_step, 2);
  EXPECT_EQ(module->value(), -(2 + 4));
}

class Tied : public Toy {
 public:
  Tied() : Toy({.lr = 0.1, .w0 = 1}) { register_parameter("again", w); }
};

TEST(Accumulation, TiedParameterIsDividedAndSteppedOnce) {
  for (std::int64_t micro_batches : {1, 2}) {
    auto module = std::make_shared<Tied>();
    Trainer(accumulating(micro_batches)).fit(module, singles({1, 1}));
    EXPECT_NEAR(module->value(), micro_batches == 1 ? 0.8 : 0.9, 1e-15) << micro_batches;
  }
  auto module = std::make_shared<Tied>();
  Trainer(quiet()).fit(module, singles({1}));
  EXPECT_NEAR(module->value(), 0.9, 1e-15);
}

TEST(Accumulation, TiedParameterIsOneEntryOfTheNorm) {
  auto options = quiet();
  options.gradient_clip_val = 3;
  auto module = std::make_shared<Tied>();
  Trainer(options).fit(module, singles({3}));
  // The norm is 3, not 3 * sqrt(2): nothing is clipped (but for the 1e-6 in the divisor).
  EXPECT_NEAR(module->value(), 0.7, 1e-6);
}

}  // namespace
}  // namespace fulmen
