#include "tests/trainer/toy.h"

namespace fulmen {

// Outside the anonymous namespace, as a user's batch would be.
struct Sample {
  at::Tensor x;
  at::Tensor y;
  std::string note;
};
void for_each_tensor(Sample& batch, const TensorVisitor& visit) {
  visit(batch.x);
  visit(batch.y);
}

namespace {

// --- Manual optimization ---

/// Two weights with an optimizer each.
class Two : public LightningModule<> {
 public:
  explicit Two(OptimizationMode mode) : LightningModule("Two"), mode_(mode) {
    a = register_parameter("a", torch::zeros({}, torch::kFloat64));
    b = register_parameter("b", torch::zeros({}, torch::kFloat64));
  }
  OptimizationMode optimization_mode() const override { return mode_; }
  StepOutput training_step(Batch& batch, std::int64_t) override {
    return step ? step(*this, batch) : StepOutput(loss(batch));
  }
  at::Tensor loss(const Batch& batch) const { return ((a + 10 * b) * batch.tensors[0]).mean(); }
  OptimizerConfigs configure_optimizers() override {
    auto first = SGD::make({a}, {.lr = 1});
    auto second = SGD::make({b}, {.lr = 1});
    return {{.optimizer = first, .schedulers = {{.scheduler = StepLR::make(first, {.step_size = 1, .gamma = 0.5})}}},
            {.optimizer = second}};
  }
  std::vector<double> value() const { return {a.item<double>(), b.item<double>()}; }

  at::Tensor a, b;
  std::function<StepOutput(Two&, Batch&)> step;

 private:
  OptimizationMode mode_;
};

std::shared_ptr<Two> manual(std::function<StepOutput(Two&, Batch&)> step) {
  auto module = std::make_shared<Two>(OptimizationMode::kManual);
  module->step = std::move(step);
  return module;
}

TEST(ManualOptimization, StepsWhatTheUserSteps) {
  Trainer trainer(quiet(2));
  auto module = manual([](Two& two, Batch& batch) {
    two.optimizer(0).zero_grad();
    two.optimizer(1).zero_grad();
    two.manual_backward(two.loss(batch));
    if (two.trainer().progress().batch_idx == 1) two.step_optimizer(1);
    two.step_optimizer(0);
    return StepOutput();
  });
  trainer.fit(module, singles({1, 2}));
  // No scheduler is stepped unless the user does.
  EXPECT_EQ(module->value(), (std::vector<double>{-6, -40}));
  EXPECT_EQ(trainer.progress().global_step, 4);  // One for a batch, however many optimizers.
  EXPECT_EQ(trainer.progress().total_batches, 4);
}

TEST(ManualOptimization, GradientsStayUntilTheUserDropsThem) {
  auto module = manual([](Two& two, Batch& batch) {
    two.manual_backward(two.loss(batch) / 2);
    if (two.trainer().progress().batch_idx % 2 == 1) {
      two.step_optimizer(0);
      two.optimizer(0).zero_grad();
    }
    return StepOutput();
  });
  Trainer trainer(quiet());
  trainer.fit(module, singles({1, 3, 5, 7}));
  EXPECT_EQ(module->a.item<double>(), -8);
  EXPECT_EQ(trainer.progress().global_step, 2);
}

TEST(ManualOptimization, TheUserStepsSchedulersAndClips) {
  auto module = manual([](Two& two, Batch& batch) {
    two.zero_grad();
    two.manual_backward(two.loss(batch));
    two.clip_gradients(two.optimizer(1), 0.5, ClipAlgorithm::kValue);
    two.step_optimizer(0);
    two.step_optimizer(1);
    two.lr_scheduler(0).step();
    return StepOutput();
  });
  Trainer(quiet()).fit(module, singles({8, 8}));
  EXPECT_EQ(module->value(), (std::vector<double>{-12, -1}));
}

TEST(ManualOptimization, ToggledOptimizerAloneGetsGradients) {
  std::vector<bool> defined;
  auto module = manual([&](Two& two, Batch& batch) {
    two.zero_grad();
    two.toggle_optimizer(1);
    EXPECT_FALSE(two.a.requires_grad());
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { two.toggle_optimizer(0); }), "untoggle_optimizer"));
    two.manual_backward(two.loss(batch));
    defined = {two.a.grad().defined(), two.b.grad().defined()};
    two.untoggle_optimizer();
    EXPECT_TRUE(two.a.requires_grad());
    return StepOutput();
  });
  Trainer(quiet()).fit(module, singles({1}));
  EXPECT_EQ(defined, (std::vector<bool>{false, true}));
}

TEST(ManualOptimization, ToggleIsUndoneWhenTheRunFails) {
  auto module = manual([](Two& two, Batch&) -> StepOutput {
    two.toggle_optimizer(0);
    throw std::runtime_error("stop");
  });
  EXPECT_THROW(Trainer(quiet()).fit(module, singles({1})), std::runtime_error);
  EXPECT_TRUE(module->b.requires_grad());
}

TEST(ManualOptimization, OverflowUnder16MixedSkipsTheStep) {
  auto options = quiet();
  options.precision = Precision::k16Mixed;
  Trainer trainer(options);
  auto module = manual([](Two& two, Batch& batch) {
    two.zero_grad();
    two.manual_backward(two.loss(batch));
    two.step_optimizer(0);
    two.step_optimizer(1);
    return StepOutput();
  });
  module->to(torch::kFloat32);
  trainer.fit(module, std::vector<Batch>{{{torch::tensor({1e38f})}}, {{torch::tensor({1.0f})}}});
  EXPECT_EQ(module->value(), (std::vector<double>{-1, -10}));
  EXPECT_EQ(trainer.progress().global_step, 1);
  EXPECT_GE(trainer.progress().skipped_steps, 1);
}

TEST(ManualOptimization, WhatTheTrainerWouldDoIsRefused) {
  auto module = manual([](Two&, Batch&) { return StepOutput(); });
  auto options = quiet();
  options.accumulate_grad_batches = 2;
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { Trainer(options).fit(module, singles({1})); }),
                       "accumulate_grad_batches must be 1, got 2"));
  options = quiet();
  options.gradient_clip_val = 1;
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { Trainer(options).fit(module, singles({1})); }), "clip_gradients()"));
}

TEST(ManualOptimization, CallsOutOfPlaceAreRefused) {
  const auto refusal = [](OptimizationMode mode, std::function<void(Two&, Batch&)> call) {
    auto module = std::make_shared<Two>(mode);
    module->step = [&](Two& two, Batch& batch) {
      call(two, batch);
      return StepOutput();
    };
    return message_of<ConfigError>([&] { Trainer(quiet()).fit(module, singles({1})); });
  };
  const auto automatic = OptimizationMode::kAutomatic;
  EXPECT_TRUE(contains(refusal(automatic, [](Two& two, Batch& batch) { two.manual_backward(two.loss(batch)); }), "kManual"));
  EXPECT_TRUE(contains(refusal(automatic, [](Two& two, Batch&) { two.step_optimizer(0); }), "manual optimization"));
  EXPECT_TRUE(contains(refusal(OptimizationMode::kManual, [](Two& two, Batch&) { two.step_optimizer(2); }),
                       "step_optimizer(2): configure_optimizers returned 2"));
  EXPECT_TRUE(contains(refusal(automatic, [](Two& two, Batch&) { two.optimizer(2); }), "optimizer 2 does not exist"));
  EXPECT_TRUE(contains(refusal(automatic, [](Two& two, Batch&) { two.lr_scheduler(1); }), "scheduler 0 of optimizer 1"));
  Two outside(automatic);
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { outside.optimizer(); }), "no trainer runs this module"));
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { outside.log("x", 1.0); }), "no trainer runs this module"));
}

// --- Optimizers ---

TEST(Optimizers, SeveralAreSteppedInEachBatchFromOneBackward) {
  int backwards = 0;
  std::vector<const Optimizer*> stepped;
  auto options = quiet();
  options.callbacks = {LambdaCallback::make(
      {.on_after_backward = [&](TrainerContext&, ModuleBase&) { ++backwards; },
       .on_before_optimizer_step = [&](TrainerContext&, ModuleBase&, Optimizer& optimizer) { stepped.push_back(&optimizer); }})};
  Trainer trainer(options);
  auto module = std::make_shared<Two>(OptimizationMode::kAutomatic);
  trainer.fit(module, singles({1, 2}));
  EXPECT_EQ(module->value(), (std::vector<double>{-3, -30}));
  EXPECT_EQ(backwards, 2);
  EXPECT_EQ(stepped.size(), 4u);
  EXPECT_NE(stepped[0], stepped[1]);
  EXPECT_EQ(trainer.progress().global_step, 2);
}

TEST(Optimizers, SchedulersOfAnEpochAreSteppedOnceAnEpoch) {
  std::vector<double> rates;
  auto options = quiet(3);
  options.callbacks = {LambdaCallback::make({.on_train_epoch_start = [&](TrainerContext& context, ModuleBase&) {
    rates.push_back(context.optimizer_configs()[0].optimizer->hyperparameter(0, "lr"));
  }})};
  Trainer(options).fit(std::make_shared<Two>(OptimizationMode::kAutomatic), singles({1, 1}));
  EXPECT_EQ(rates, (std::vector<double>{1, 0.5, 0.25}));
}

TEST(Optimizers, PlateauUsesTheMetricOfTheSameEpoch) {
  std::vector<double> rates;
  auto options = quiet(4);
  options.callbacks = {LambdaCallback::make({.on_train_epoch_start = [&](TrainerContext& context, ModuleBase&) {
    rates.push_back(context.optimizer_configs()[0].optimizer->hyperparameter(0, "lr"));
  }})};
  auto module = std::make_shared<Toy>();
  module->optimizers = [](Toy& toy) -> OptimizerConfigs {
    auto sgd = SGD::make(toy, {.lr = 1});
    return OptimizerConfig{
        .optimizer = sgd,
        .schedulers = {{.scheduler = ReduceLROnPlateau::make(sgd, {.factor = 0.5, .patience = 0}), .monitor = "val_loss"}}};
  };
  module->eval_step = [](Toy& toy, Batch&, std::int64_t, std::int64_t) {
    constexpr double kLosses[] = {1, 2, 0.5, 0.6};  // Worse in epoch 1.
    toy.log("val_loss", kLosses[toy.current_epoch()]);
  };
  Trainer(options).fit(module, singles({1}), singles({1}));
  EXPECT_EQ(rates, (std::vector<double>{1, 1, 0.5, 0.5}));
}

TEST(Optimizers, PlateauWithoutItsMetricIsAnErrorThatListsTheOthers) {
  for (bool strict : {true, false}) {
    auto sink = std::make_shared<CapturingSink>();
    auto module = std::make_shared<Toy>();
    module->optimizers = [strict](Toy& toy) -> OptimizerConfigs {
      auto sgd = SGD::make(toy, {.lr = 1});
      return OptimizerConfig{.optimizer = sgd,
                             .schedulers = {{.scheduler = ReduceLROnPlateau::make(sgd), .monitor = "acc", .strict = strict}}};
    };
    Trainer trainer(quiet(2, sink));
    if (strict) {
      const auto message = message_of<ConfigError>([&] { trainer.fit(module, singles({1}), singles({1})); });
      EXPECT_TRUE(contains(message, "\"acc\""));
      EXPECT_TRUE(contains(message, "val_loss"));
    } else {
      trainer.fit(module, singles({1}), singles({1}));
      EXPECT_EQ(sink->count(LogLevel::kWarning, "\"acc\""), 1);
    }
  }
}

TEST(Optimizers, NoneTrainsNothingWithAWarningAlsoWithoutAGraph) {
  for (bool graph : {true, false}) {
    auto sink = std::make_shared<CapturingSink>();
    Trainer trainer(quiet(1, sink));
    auto module = std::make_shared<Toy>();
    module->optimizers = [](Toy&) { return OptimizerConfigs(); };
    if (!graph) module->step = [](Toy& toy, Batch& batch, std::int64_t) { return toy.loss(batch).detach(); };
    trainer.fit(module, singles({1, 1}));
    EXPECT_EQ(module->value(), 0);
    EXPECT_EQ(module->training_steps, 2);
    EXPECT_EQ(trainer.progress().global_step, 0);
    EXPECT_EQ(sink->count(LogLevel::kWarning, "no optimizer"), 1);
  }
}

TEST(Optimizers, BadConfigurationsAreRefused) {
  const auto refusal = [](std::function<OptimizerConfigs(Toy&)> optimizers, TrainerOptions options = quiet()) {
    auto module = std::make_shared<Toy>();
    module->optimizers = std::move(optimizers);
    return message_of<ConfigError>([&] { Trainer(options).fit(module, singles({1})); });
  };
  const auto with = [](SchedulerConfig scheduler) {
    return [scheduler](Toy& toy) -> OptimizerConfigs {
      return OptimizerConfig{.optimizer = SGD::make(toy), .schedulers = {scheduler}};
    };
  };
  EXPECT_TRUE(contains(refusal([](Toy&) -> OptimizerConfigs { return std::shared_ptr<SGD>(); }), "null optimizer"));
  EXPECT_TRUE(contains(refusal(with({})), "null scheduler"));
  Toy other;
  auto scheduler = StepLR::make(SGD::make(other), {.step_size = 1});
  EXPECT_TRUE(contains(refusal(with({.scheduler = scheduler, .frequency = 0})), "frequency of a scheduler must be at least 1, got 0"));
  auto plateau = ReduceLROnPlateau::make(SGD::make(other));
  EXPECT_TRUE(contains(refusal(with({.scheduler = plateau})), ".monitor"));
  const auto lbfgs = [](Toy& toy) -> OptimizerConfigs {
    return TorchOptimizer::make(std::make_unique<torch::optim::LBFGS>(toy.parameters(), torch::optim::LBFGSOptions(1)));
  };
  auto options = quiet();
  options.accumulate_grad_batches = 2;
  EXPECT_TRUE(contains(refusal(lbfgs, options), "accumulate_grad_batches = 1"));
}

TEST(Optimizers, LBFGSMinimizesWithSeveralEvaluationsInAStep) {
  auto module = std::make_shared<Toy>();
  module->optimizers = [](Toy& toy) -> OptimizerConfigs {
    return TorchOptimizer::make(
        std::make_unique<torch::optim::LBFGS>(toy.parameters(), torch::optim::LBFGSOptions(1).max_iter(10)));
  };
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    auto loss = (toy.w - batch.tensors[0]).square().mean();
    toy.log("loss", loss, {.on_epoch = true});
    return loss;
  };
  Trainer trainer(quiet());
  trainer.fit(module, singles({3}));
  EXPECT_NEAR(module->value(), 3, 1e-6);
  EXPECT_GT(module->training_steps, 1);
  EXPECT_EQ(trainer.progress().global_step, 1);
  EXPECT_LT(trainer.callback_metrics().at("loss_epoch"), 9);  // Of the last evaluation, not the mean of all.
}

// --- configure_sharded_model ---

/// Tells whether its context is open.
class ContextStrategy final : public FakeStrategy {
 public:
  struct Context final : ShardedContext {
    explicit Context(bool& flag) : open(flag) { open = true; }
    ~Context() override { open = false; }
    bool& open;
  };
  std::string key() const override { return name; }
  std::unique_ptr<ShardedContext> model_sharded_context(ModuleBase&) override { return std::make_unique<Context>(open); }

  bool open = false;
  std::string name = "context";
};

class Lazy : public LightningModule<> {
 public:
  explicit Lazy(ContextStrategy& strategy) : LightningModule("Lazy"), strategy_(strategy) {}
  void configure_sharded_model() override {
    events.emplace_back("module");
    EXPECT_TRUE(strategy_.open);
    dtype = c10::typeMetaToScalarType(at::get_default_dtype());
    if (fails) throw std::runtime_error("no memory for the layer");
    w = register_parameter("w", torch::zeros({}));
  }
  StepOutput training_step(Batch& batch, std::int64_t) override {
    EXPECT_FALSE(strategy_.open);
    return (w * batch.tensors[0]).mean();
  }
  StepOutput validation_step(Batch& batch, std::int64_t, std::int64_t) override {
    log("val", (w * batch.tensors[0]).mean());
    return {};
  }
  StepOutput test_step(Batch& batch, std::int64_t, std::int64_t) override {
    log("test", (w * batch.tensors[0]).mean());
    return {};
  }
  OptimizerConfigs configure_optimizers() override { return SGD::make(*this, {.lr = 1}); }

  at::Tensor w;
  std::vector<std::string> events;
  c10::ScalarType dtype{};
  bool fails = false;

 private:
  ContextStrategy& strategy_;
};

TEST(ShardedModel, IsConfiguredOnceInTheContextAndKeepsItsWeightsOverStages) {
  auto strategy = std::make_shared<ContextStrategy>();
  auto module = std::make_shared<Lazy>(*strategy);
  auto options = quiet();
  options.strategy = strategy;
  options.precision = Precision::k64True;
  options.callbacks = {LambdaCallback::make({.on_configure_sharded_model = [&](TrainerContext&, ModuleBase&) {
    EXPECT_TRUE(strategy->open);
    module->events.emplace_back("callback");
  }})};
  Trainer trainer(options);
  trainer.fit(module, singles({2, 3}));
  EXPECT_EQ(module->dtype, torch::kFloat64);
  EXPECT_EQ(module->w.scalar_type(), torch::kFloat64);
  EXPECT_EQ(module->w.item<double>(), -5);  // So it is in the optimizer.
  EXPECT_FALSE(strategy->open);
  const auto* weight = module->w.unsafeGetTensorImpl();
  EXPECT_EQ(trainer.validate(module, singles({1}), {.verbose = false})[0].at("val"), -5);
  EXPECT_EQ(trainer.test(module, singles({1}), {.verbose = false})[0].at("test"), -5);
  Trainer second(options);
  second.fit(module, singles({1}));
  EXPECT_EQ(module->w.item<double>(), -6);
  EXPECT_EQ(module->w.unsafeGetTensorImpl(), weight);
  EXPECT_EQ(module->events, (std::vector<std::string>{"module", "callback"}));
}

TEST(ShardedModel, ThrowLeavesTheContextAndTheDefaultDtype) {
  auto strategy = std::make_shared<ContextStrategy>();
  auto module = std::make_shared<Lazy>(*strategy);
  module->fails = true;
  auto options = quiet();
  options.strategy = strategy;
  options.precision = Precision::k64True;
  Trainer trainer(options);
  EXPECT_EQ(message_of<std::runtime_error>([&] { trainer.fit(module, singles({1})); }), "no memory for the layer");
  EXPECT_FALSE(strategy->open);
  EXPECT_EQ(at::get_default_dtype(), caffe2::TypeMeta::Make<float>());
  module->fails = false;
  trainer.fit(module, singles({1}));
  EXPECT_EQ(module->w.item<double>(), -1);
}

TEST(ShardedModel, OfAnotherStrategyIsRefused) {
  auto first = std::make_shared<ContextStrategy>();
  auto second = std::make_shared<ContextStrategy>();
  second->name = "other";
  auto module = std::make_shared<Lazy>(*first);
  auto options = quiet();
  options.strategy = first;
  Trainer(options).fit(module, singles({1}));
  options.strategy = second;
  const auto message = message_of<ConfigError>([&] { Trainer(options).fit(module, singles({1})); });
  EXPECT_TRUE(contains(message, "\"context\""));
  EXPECT_TRUE(contains(message, "\"other\""));
}

// --- Callbacks of the module ---

class Named : public Callback {
 public:
  explicit Named(std::string text) : text_(std::move(text)) {}
  std::string state_key() const override { return "Named"; }
  void on_fit_start(Context&, Module& module) override { module.hyperparameters["by"] = text_; }

 private:
  std::string text_;
};

TEST(ConfigureCallbacks, ReplaceThoseOfTheSameKeyForTheRunOnly) {
  class Brings : public Toy {
   public:
    std::vector<std::shared_ptr<Callback>> configure_callbacks() override { return {std::make_shared<Named>("module")}; }
  };
  auto options = quiet();
  options.callbacks = {std::make_shared<Named>("trainer")};
  Trainer trainer(options);
  auto brings = std::make_shared<Brings>();
  trainer.fit(brings, singles({1}));
  EXPECT_EQ(brings->hyperparameters["by"].as_string(), "module");
  EXPECT_EQ(trainer.callbacks().size(), 1u);
  auto plain = std::make_shared<Toy>();
  trainer.fit(plain, singles({1}));
  EXPECT_EQ(plain->hyperparameters["by"].as_string(), "trainer");
}

TEST(ConfigureCallbacks, NullIsRefused) {
  class Brings : public Toy {
   public:
    std::vector<std::shared_ptr<Callback>> configure_callbacks() override { return {nullptr}; }
  };
  EXPECT_TRUE(contains(message_of<ConfigError>([] { Trainer(quiet()).fit(std::make_shared<Brings>(), singles({1})); }),
                       "configure_callbacks returned a null"));
}

// --- DataModule ---

class Data : public DataModule<> {
 public:
  void prepare_data() override { events += "p"; }
  void setup(Stage stage) override { events += "s" + std::string(to_string(stage)).substr(0, 1); }
  void teardown(Stage stage) override { events += "d" + std::string(to_string(stage)).substr(0, 1); }
  Loader<Batch> train_dataloader() override { return singles({1, 2}); }
  Loaders<Batch> val_dataloader() override { return {singles({3}), singles({4})}; }
  Loaders<Batch> test_dataloader() override { return singles({5}); }
  Loaders<Batch> predict_dataloader() override { return singles({6, 7}); }

  std::string events;
};

TEST(DataModuleRuns, GivesTheDataOfEachStage) {
  Trainer trainer(quiet());
  auto module = std::make_shared<Toy>();
  auto data = std::make_shared<Data>();
  trainer.fit(module, data);
  EXPECT_EQ(module->value(), -3);
  const auto validated = trainer.validate(module, data, {.verbose = false});
  ASSERT_EQ(validated.size(), 2u);
  EXPECT_EQ(validated[0].at("val_loss/dataloader_idx_0"), -9);
  EXPECT_EQ(validated[1].at("val_loss/dataloader_idx_1"), -12);
  EXPECT_EQ(trainer.test(module, data, {.verbose = false})[0].at("test_loss"), -15);
  const auto predictions = trainer.predict(module, data);
  ASSERT_EQ(predictions.size(), 2u);
  EXPECT_EQ(predictions[1].item<double>(), -21);
  EXPECT_EQ(data->events, "psfdfpsvdvpstdtpspdp");
}

TEST(DataModuleRuns, ItsTransferHooksWinAndTheDefaultsCallTheModules) {
  class Adds : public Toy {
   public:
    void on_before_batch_transfer(Batch& batch, std::int64_t) override { batch.tensors[0] = batch.tensors[0] + 1; }
    void on_after_batch_transfer(Batch& batch, std::int64_t) override { batch.tensors[0] = batch.tensors[0] * 10; }
  };
  class Overrides : public Data {
   public:
    void on_after_batch_transfer(Batch& batch, std::int64_t) override { batch.tensors[0] = batch.tensors[0] * 100; }
  };
  auto options = quiet();
  options.limit_val_batches = batches(0);
  auto alone = std::make_shared<Adds>();
  Trainer(options).fit(alone, singles({1, 2}));
  EXPECT_EQ(alone->value(), -50);
  auto plain = std::make_shared<Adds>();
  Trainer(options).fit(plain, std::make_shared<Data>());
  EXPECT_EQ(plain->value(), -50);
  auto overridden = std::make_shared<Adds>();
  Trainer(options).fit(overridden, std::make_shared<Overrides>());
  EXPECT_EQ(overridden->value(), -500);
}

TEST(DataModuleRuns, HooksOfTheModuleGiveLoadersToo) {
  class Own : public Toy {
   public:
    Loader<Batch> train_dataloader() override { return singles({1, 2}); }
    Loaders<Batch> val_dataloader() override { return singles({3}); }
    Loaders<Batch> test_dataloader() override { return singles({4}); }
    Loaders<Batch> predict_dataloader() override { return singles({5}); }
  };
  Trainer trainer(quiet());
  auto module = std::make_shared<Own>();
  trainer.fit(module);
  EXPECT_EQ(module->value(), -3);
  EXPECT_EQ(trainer.validate(module, {}, {.verbose = false})[0].at("val_loss"), -9);
  EXPECT_EQ(trainer.test(module, {}, {.verbose = false})[0].at("test_loss"), -12);
  EXPECT_EQ(trainer.predict(module).at(0).item<double>(), -15);
}

// --- Types of batches ---

/// w times the sum of all of x.
template <class B>
class Typed : public LightningModule<B> {
 public:
  using Sum = at::Tensor (*)(B&);
  explicit Typed(Sum sum) : sum_(sum) { w = this->register_parameter("w", torch::zeros({}, torch::kFloat64)); }
  StepOutput training_step(B& batch, std::int64_t) override { return w * sum_(batch); }
  StepOutput validation_step(B& batch, std::int64_t, std::int64_t) override {
    this->log("val", w * sum_(batch));
    return {};
  }
  OptimizerConfigs configure_optimizers() override { return SGD::make(*this, {.lr = 1}); }
  at::Tensor w;

 private:
  Sum sum_;
};

/// Trains on these batches; under 64-true, so every tensor must have been found and converted.
template <class B>
double trained(std::vector<B> batches, at::Tensor (*sum)(B&)) {
  auto options = quiet();
  options.precision = Precision::k64True;
  auto module = std::make_shared<Typed<B>>(sum);
  Trainer(options).fit(module, batches, batches);
  return module->w.template item<double>();
}

at::Tensor checked(const at::Tensor& tensor) {
  EXPECT_EQ(tensor.scalar_type(), torch::kFloat64);
  return tensor.sum();
}

TEST(BatchTypes, AllKindsAreTrainedOn) {
  const auto one = torch::tensor({1.0f, 1.0f});
  const auto two = torch::tensor({2.0f, 2.0f});
  EXPECT_EQ((trained<at::Tensor>({one, two}, [](at::Tensor& batch) { return checked(batch); })), -6);
  EXPECT_EQ((trained<std::vector<at::Tensor>>({{one, two}}, [](std::vector<at::Tensor>& batch) {
              return checked(batch[0]) + checked(batch[1]);
            })),
            -6);
  using Map = std::map<std::string, at::Tensor>;
  EXPECT_EQ((trained<Map>({{{"x", one}, {"y", two}}}, [](Map& batch) { return checked(batch["x"]) + checked(batch["y"]); })),
            -6);
  using Tuple = std::tuple<at::Tensor, std::pair<at::Tensor, int>>;
  EXPECT_EQ((trained<Tuple>({Tuple(one, {two, 7})}, [](Tuple& batch) {
              return checked(std::get<0>(batch)) + checked(std::get<1>(batch).first) + std::get<1>(batch).second;
            })),
            -13);
  using Example = torch::data::Example<>;
  EXPECT_EQ((trained<Example>({Example(one, two)}, [](Example& batch) { return checked(batch.data) + checked(batch.target); })),
            -6);
  EXPECT_EQ((trained<Sample>({{one, two, "note"}}, [](Sample& batch) {
              EXPECT_EQ(batch.note, "note");
              return checked(batch.x) + checked(batch.y);
            })),
            -6);
}

TEST(BatchTypes, LoadersOfTorchDataWork) {
  using Example = torch::data::Example<>;
  class Numbers : public torch::data::datasets::Dataset<Numbers> {
   public:
    Example get(std::size_t index) override {
      return {torch::full({1}, static_cast<double>(index), torch::kFloat64), torch::zeros({1})};
    }
    torch::optional<std::size_t> size() const override { return 5; }
  };
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Numbers().map(torch::data::transforms::Stack<>()), 2);
  auto module = std::make_shared<Typed<Example>>([](Example& batch) { return batch.data.sum(); });
  Trainer trainer(quiet(2));
  trainer.fit(module, std::move(loader));
  EXPECT_EQ(module->w.item<double>(), -20);
  EXPECT_EQ(trainer.progress().total_batches, 6);
}

// --- predict ---

TEST(Predict, ReturnsEveryBatchOfEveryLoaderInOrder) {
  class Tells : public LightningModule<Batch, std::pair<std::string, at::Tensor>> {
   public:
    std::pair<std::string, at::Tensor> predict_step(Batch& batch, std::int64_t batch_idx, std::int64_t loader) override {
      EXPECT_FALSE(is_training());
      return {std::to_string(loader) + "." + std::to_string(batch_idx), batch.tensors[0] * 2};
    }
    void on_predict_batch_end(const std::pair<std::string, at::Tensor>& prediction, Batch&, std::int64_t,
                              std::int64_t) override {
      seen += prediction.first + " ";
    }
    std::string seen;
  };
  Trainer trainer(quiet());
  auto module = std::make_shared<Tells>();
  const auto predictions = trainer.predict(module, {singles({1, 2, 3}), singles({4, 5})});
  std::string order;
  double sum = 0;
  for (const auto& [name, value] : predictions) {
    order += name + " ";
    sum = sum * 10 + value.item<double>() / 2;
  }
  EXPECT_EQ(order, "0.0 0.1 0.2 1.0 1.1 ");
  EXPECT_EQ(sum, 12345);
  EXPECT_EQ(module->seen, order);
  EXPECT_TRUE(module->is_training());
}

TEST(Predict, KeepsTheOrderOfADatasetForAnyNumberOfWorkers) {
  for (int workers : {0, 1, 3}) {
    DataLoader loader(tensor_dataset({torch::arange(103, torch::kFloat64)}), {.batch_size = 10, .num_workers = workers});
    auto module = std::make_shared<Toy>(ToyOptions{.w0 = 1});
    const auto rows = torch::cat(Trainer(quiet()).predict(module, loader));
    EXPECT_TRUE(rows.equal(torch::arange(103, torch::kFloat64))) << workers;
  }
}

TEST(Predict, RequestStopReturnsWhatThereIs) {
  Trainer trainer(quiet());
  class Stops : public Toy {
   public:
    at::Tensor predict_step(Batch& batch, std::int64_t batch_idx, std::int64_t) override {
      if (batch_idx == 1) stop();
      return batch.tensors[0];
    }
    std::function<void()> stop;
  };
  auto module = std::make_shared<Stops>();
  module->stop = [&] { trainer.request_stop(); };
  EXPECT_EQ(trainer.predict(module, singles({1, 2, 3, 4})).size(), 2u);
}

}  // namespace
}  // namespace fulmen
