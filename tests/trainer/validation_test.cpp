#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

std::vector<Batch> ones(std::size_t count) {
  return std::vector<Batch>(count, column({1}));
}

/// Fits with a validation log; `count` training batches an epoch, one validation batch.
std::shared_ptr<ValidationLog> validations(TrainerOptions options,
                                           std::size_t count,
                                           std::shared_ptr<Toy> module = std::make_shared<Toy>()) {
  auto log = std::make_shared<ValidationLog>();
  options.callbacks.push_back(log);
  Trainer(options).fit(module, ones(count), ones(1));
  return log;
}

using Numbers = std::vector<std::int64_t>;

TEST(ValidationInterval, EveryBatchAndOncePerEpochAreDifferentTypes) {
  auto options = quiet();
  options.val_check_interval = every_n_batches(1);
  EXPECT_EQ(validations(options, 64)->batches.size(), 64u);
  options.val_check_interval = every_fraction(1.0);
  EXPECT_EQ(validations(options, 64)->batches, Numbers{64});
}

TEST(ValidationInterval, FractionsAreOfTheEpoch) {
  auto options = quiet(2);
  options.val_check_interval = every_fraction(0.25);
  EXPECT_EQ(validations(options, 8)->batches, (Numbers{2, 4, 6, 8, 10, 12, 14, 16}));
  options.val_check_interval = every_fraction(0.5);
  EXPECT_EQ(validations(options, 5)->batches, (Numbers{2, 4, 7, 9}));
  options.val_check_interval = every_fraction(0.01);  // Less than a batch: after each.
  EXPECT_EQ(validations(options, 2)->batches, (Numbers{1, 2, 3, 4}));
}

TEST(ValidationInterval, FractionsAreOfTheLimitedEpoch) {
  auto options = quiet(2);
  options.limit_train_batches = batches(4);
  options.val_check_interval = every_fraction(0.5);
  EXPECT_EQ(validations(options, 100)->batches, (Numbers{2, 4, 6, 8}));
}

TEST(ValidationInterval, BatchesCountWithinEachEpoch) {
  auto options = quiet(2);
  options.val_check_interval = every_n_batches(4);
  EXPECT_EQ(validations(options, 10)->batches, (Numbers{4, 8, 14, 18}));
}

TEST(ValidationInterval, BatchesAcrossEpochsGoOnCounting) {
  auto options = quiet(4);
  options.val_check_interval = every_n_batches_across_epochs(10);
  EXPECT_EQ(validations(options, 15)->batches, (Numbers{10, 20, 30, 40, 50, 60}));
}

TEST(ValidationInterval, StepsAreOptimizerSteps) {
  auto options = quiet(3);
  options.accumulate_grad_batches = 4;  // 10 batches: steps after 4, 8 and 10.
  options.val_check_interval = every_n_steps(3);
  auto log = validations(options, 10);
  EXPECT_EQ(log->steps, (Numbers{3, 6, 9}));
  EXPECT_EQ(log->batches, (Numbers{10, 20, 30}));
  options.val_check_interval = every_n_steps(2);
  log = validations(options, 10);
  EXPECT_EQ(log->steps, (Numbers{2, 4, 6, 8}));
  EXPECT_EQ(log->batches, (Numbers{8, 14, 20, 28}));
}

TEST(ValidationInterval, TimeIsCheckedAfterEachBatch) {
  auto options = quiet(2);
  options.val_check_interval = every_duration(std::chrono::nanoseconds(1));
  EXPECT_EQ(validations(options, 3)->batches, (Numbers{1, 2, 3, 4, 5, 6}));
  options.val_check_interval = every_duration(std::chrono::hours(1));
  EXPECT_EQ(validations(options, 3)->batches, Numbers{});
}

TEST(ValidationInterval, EveryNEpochs) {
  auto options = quiet(5);
  options.check_val_every_n_epoch = 2;
  EXPECT_EQ(validations(options, 3)->batches, (Numbers{6, 12}));
  options.val_check_interval = every_n_batches(2);
  EXPECT_EQ(validations(options, 3)->batches, (Numbers{5, 11}));
  // Counted over all epochs: the epoch does not matter.
  options.val_check_interval = every_n_batches_across_epochs(5);
  EXPECT_EQ(validations(options, 3)->batches, (Numbers{5, 10, 15}));
}

TEST(ValidationInterval, MoreBatchesThanAnEpochHasIsRefusedAndNotSilent) {
  auto options = quiet(2);
  options.val_check_interval = every_n_batches(11);
  const auto message = message_of<ConfigError>([&] { validations(options, 10); });
  EXPECT_TRUE(contains(message, "every_n_batches(11)"));
  EXPECT_TRUE(contains(message, "10 batches"));
  EXPECT_TRUE(contains(message, "every_n_batches_across_epochs"));
}

TEST(ValidationInterval, MaxStepsOnTheLastBatchStillValidates) {
  auto options = quiet(-1);
  options.max_steps = 3;
  EXPECT_EQ(validations(options, 3)->batches, Numbers{3});
}

auto stream(std::int64_t length, int* started = nullptr) {
  return stream_loader([=] {
    if (started != nullptr) ++*started;
    return [=, given = std::int64_t(0)]() mutable -> std::optional<Batch> {
      if (length >= 0 && given == length) return std::nullopt;
      ++given;
      return column({1});
    };
  });
}

TEST(UnknownLength, StreamIsValidatedAtItsEnd) {
  auto log = std::make_shared<ValidationLog>();
  auto options = quiet(2);
  options.callbacks = {log};
  options.accumulate_grad_batches = 2;
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  trainer.fit(module, stream(3), stream(2));
  EXPECT_EQ(log->batches, (Numbers{3, 6}));
  EXPECT_EQ(trainer.progress().global_step, 4);  // The tail of one is applied.
  EXPECT_EQ(module->value(), -4);
}

TEST(UnknownLength, LimitedEndlessStreamIsValidatedAfterItsLimit) {
  auto log = std::make_shared<ValidationLog>();
  auto options = quiet(2);
  options.callbacks = {log};
  options.limit_train_batches = batches(5);
  Trainer trainer(options);
  trainer.fit(std::make_shared<Toy>(), stream(-1), ones(1));
  EXPECT_EQ(log->batches, (Numbers{5, 10}));
  EXPECT_EQ(trainer.progress().total_batches, 10);
}

TEST(UnknownLength, EndlessValidationStreamWithALimit) {
  auto options = quiet();
  options.limit_val_batches = batches(100);
  options.num_sanity_val_steps = 0;
  auto module = std::make_shared<Toy>();
  Trainer(options).fit(module, ones(1), stream(-1));
  EXPECT_EQ(module->validation_steps, 100);
}

TEST(UnknownLength, FractionsAreRefused) {
  auto options = quiet();
  options.limit_val_batches = fraction(0.5);
  Trainer limit(options);
  EXPECT_TRUE(contains(
      message_of<ConfigError>([&] { limit.fit(std::make_shared<Toy>(), ones(2), stream(4)); }),
      "limit_val_batches"));
  options = quiet();
  options.val_check_interval = every_fraction(0.5);
  Trainer interval(options);
  EXPECT_TRUE(contains(
      message_of<ConfigError>([&] { interval.fit(std::make_shared<Toy>(), stream(4), ones(2)); }),
      "val_check_interval"));
}

TEST(UnknownLength, SkippingTheEpochAtItsFirstBatchIsNotAnEmptyEpoch) {
  auto module = std::make_shared<Toy>();
  module->batch_start = [](Batch&, std::int64_t) { return BatchAction::kSkipEpoch; };
  Trainer trainer(quiet(2));
  trainer.fit(module, stream(3));
  EXPECT_EQ(trainer.progress().epoch, 2);
  EXPECT_EQ(module->value(), 0);
}

TEST(UnknownLength, EmptyStreamIsAnError) {
  Trainer trainer(quiet());
  EXPECT_TRUE(contains(
      message_of<DataError>([&] { trainer.fit(std::make_shared<Toy>(), stream(0)); }), "no batch"));
}

TEST(Limits, FractionOfLessThanABatchIsAnErrorWithTheProduct) {
  auto options = quiet();
  options.limit_train_batches = fraction(0.1);
  Trainer train(options);
  const auto message =
      message_of<ConfigError>([&] { train.fit(std::make_shared<Toy>(), ones(9)); });
  EXPECT_TRUE(contains(message, "limit_train_batches"));
  EXPECT_TRUE(contains(message, "9 x 0.1 < 1"));

  options = quiet();
  options.limit_val_batches = fraction(0.1);
  Trainer val(options);
  EXPECT_TRUE(
      contains(message_of<ConfigError>([&] { val.fit(std::make_shared<Toy>(), ones(1), ones(9)); }),
               "limit_val_batches"));
}

TEST(Limits, CountAndFractionCutEachStage) {
  auto options = quiet();
  options.limit_train_batches = fraction(0.5);
  options.limit_val_batches = batches(3);
  options.limit_test_batches = fraction(0.2);
  options.limit_predict_batches = batches(4);
  options.num_sanity_val_steps = 0;
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  trainer.fit(module, ones(9), ones(10));
  EXPECT_EQ(module->training_steps, 4);
  EXPECT_EQ(module->validation_steps, 3);
  int tested = 0;
  module->eval_step = [&](Toy&, Batch&, std::int64_t, std::int64_t) { ++tested; };
  trainer.test(module, ones(10), {.verbose = false});
  EXPECT_EQ(tested, 2);
  EXPECT_EQ(trainer.predict(module, ones(10)).size(), 4u);
}

TEST(Limits, ValidationThatIsOffTouchesNoLoader) {
  class Untouchable : public Toy {
   public:
    Loaders<Batch> val_dataloader() override {
      throw std::runtime_error("val_dataloader was called");
    }
  };
  auto options = quiet();
  options.limit_val_batches = batches(0);
  auto module = std::make_shared<Untouchable>();
  Trainer trainer(options);
  int started = 0;
  trainer.fit(module, ones(2), stream(3, &started));
  trainer.fit(module, ones(2));
  EXPECT_EQ(started, 0);
  EXPECT_EQ(module->validation_steps, 0);
  EXPECT_EQ(module->value(), -4);
}

TEST(Limits, TrainingThatIsOffTrainsNothing) {
  auto options = quiet();
  options.limit_train_batches = batches(0);
  auto module = std::make_shared<Toy>();
  Trainer(options).fit(module, ones(2));
  EXPECT_EQ(module->training_steps, 0);
}

TEST(SanityCheck, RunsThatManyBatchesOfEachLoaderAndLeavesNoMetric) {
  struct Case {
    std::int64_t option, expected;
  };
  for (auto [option, expected] : {Case{0, 0}, Case{2, 4}, Case{-1, 8}, Case{100, 8}}) {
    auto options = quiet(0);
    options.num_sanity_val_steps = option;
    Trainer trainer(options);
    auto module = std::make_shared<Toy>();
    trainer.fit(module, ones(2), {ones(5), ones(3)});
    EXPECT_EQ(module->validation_steps, expected) << option;
    EXPECT_TRUE(trainer.callback_metrics().empty());
  }
}

TEST(SanityCheck, NeverRunsMoreThanAValidationWould) {
  auto options = quiet(0);
  options.limit_val_batches = batches(1);
  auto module = std::make_shared<Toy>();
  Trainer(options).fit(module, ones(2), ones(5));
  EXPECT_EQ(module->validation_steps, 1);
}

TEST(SanityCheck, DrawsNoRandomNumbersOfTheTraining) {
  const auto drawn = [](std::int64_t sanity_steps) {
    auto options = quiet();
    options.seed = 1;
    options.num_sanity_val_steps = sanity_steps;
    auto module = std::make_shared<Toy>();
    double first = 0;
    module->eval_step = [](Toy&, Batch&, std::int64_t, std::int64_t) { torch::rand({}); };
    module->step = [&](Toy& toy, Batch& batch, std::int64_t) {
      first = torch::rand({}).item<double>();
      return toy.loss(batch);
    };
    Trainer(options).fit(module, ones(1), ones(3));
    return first;
  };
  EXPECT_EQ(drawn(0), drawn(3));
}

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm", torch::nn::BatchNorm1d(2))),
        drop(register_module("drop", torch::nn::Dropout())) {}
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout drop;
};

/// Linear, BatchNorm that the user froze, and a block of BatchNorm and Dropout.
class Modes : public LightningModule<> {
 public:
  Modes() : LightningModule("Modes") {
    first = register_module("first", torch::nn::Linear(2, 2));
    frozen = register_module("frozen", torch::nn::BatchNorm1d(2));
    block = register_module("block", std::make_shared<BlockImpl>());
  }
  std::string modes() const {
    std::string text;
    for (const auto& module : this->modules()) text += module->is_training() ? 't' : 'e';
    return text;
  }
  at::Tensor compute(const Batch& batch) {
    auto hidden = frozen->forward(first->forward(batch.tensors[0]));
    return block->drop->forward(block->norm->forward(hidden)).square().mean();
  }
  void on_train_start() override { frozen->eval(); }
  StepOutput training_step(Batch& batch, std::int64_t) override {
    seen.push_back(modes());
    EXPECT_TRUE(at::GradMode::is_enabled());
    return compute(batch);
  }
  StepOutput validation_step(Batch& batch, std::int64_t, std::int64_t) override {
    EXPECT_EQ(modes(), std::string(6, 'e'));
    EXPECT_FALSE(at::GradMode::is_enabled());
    log("val_loss", compute(batch));
    return {};
  }
  OptimizerConfigs configure_optimizers() override { return SGD::make(*this, {.lr = 0.1}); }

  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d frozen{nullptr};
  std::shared_ptr<BlockImpl> block;
  std::vector<std::string> seen;
};

TEST(Modes, EverySubmoduleGetsItsOwnModeBackAfterValidation) {
  auto options = quiet(2);
  options.val_check_interval = every_n_batches(1);
  auto module = std::make_shared<Modes>();
  std::vector<Batch> data(3, Batch{{torch::tensor({{1.0f, 2.0f}, {3.0f, 5.0f}, {0.0f, 1.0f}})}});
  Trainer trainer(options);
  trainer.fit(module, data, data);
  EXPECT_EQ(module->seen,
            std::vector<std::string>(6, "ttettt"));  // Self, first, frozen, block and its two.
  EXPECT_EQ(module->modes(), "ttettt");
  // The frozen one never moved, the other one did, and evaluation moves neither.
  EXPECT_TRUE(module->frozen->running_mean.equal(torch::zeros({2})));
  const auto moved = module->block->norm->running_mean.clone();
  EXPECT_FALSE(moved.equal(torch::zeros({2})));
  trainer.validate(module, data, {.verbose = false});
  EXPECT_TRUE(module->block->norm->running_mean.equal(moved));
  EXPECT_EQ(module->modes(), "ttettt");
}

TEST(Modes, AreGivenBackAfterAnExceptionInValidation) {
  class Throws : public Modes {
   public:
    StepOutput validation_step(Batch&, std::int64_t, std::int64_t) override {
      throw std::runtime_error("no");
    }
  };
  auto module = std::make_shared<Throws>();
  module->frozen->eval();
  Trainer trainer(quiet());
  EXPECT_THROW(trainer.validate(module, ones(1)), std::runtime_error);
  EXPECT_EQ(module->modes(), "ttettt");
  EXPECT_TRUE(at::GradMode::is_enabled());
  EXPECT_FALSE(c10::InferenceMode::is_enabled());
}

TEST(Modes, InferenceModeIsOnInValidateUnlessTurnedOff) {
  for (bool on : {true, false}) {
    auto options = quiet();
    options.inference_mode = on;
    Trainer trainer(options);
    auto module = std::make_shared<Toy>();
    std::vector<bool> seen;
    module->eval_step = [&](Toy&, Batch&, std::int64_t, std::int64_t) {
      seen.push_back(c10::InferenceMode::is_enabled());
      EXPECT_FALSE(at::GradMode::is_enabled());
    };
    trainer.validate(module, ones(1), {.verbose = false});
    trainer.test(module, ones(1), {.verbose = false});
    EXPECT_EQ(seen, (std::vector<bool>{on, on}));
    seen.clear();
    trainer.fit(module, ones(1), ones(1));
    EXPECT_EQ(seen, (std::vector<bool>{false, false}));
  }
}

TEST(Validation, InsideAWindowKeepsItsGradients) {
  auto options = quiet();
  options.accumulate_grad_batches = 2;
  options.val_check_interval = every_n_batches(1);
  auto module = std::make_shared<Toy>();
  Trainer(options).fit(module, singles({2, 4}), ones(1));
  EXPECT_EQ(module->value(), -3);
}

}  // namespace
}  // namespace fulmen
