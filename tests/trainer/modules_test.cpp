#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

// --- configure_sharded_model ---

/// Tells whether its context is open.
class ContextStrategy final : public FakeStrategy {
 public:
  struct Context final : ShardedContext {
    Context(const DeviceMesh& mesh, bool& flag) : ShardedContext(mesh), open(flag) { open = true; }
    ~Context() override { open = false; }
    bool& open;
  };
  std::string key() const override { return name; }
  std::unique_ptr<ShardedContext> model_sharded_context(ModuleBase&) override {
    return std::make_unique<Context>(mesh(), open);
  }

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
  options.callbacks = {
      LambdaCallback::make({.on_configure_sharded_model = [&](TrainerContext&, ModuleBase&) {
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
  EXPECT_EQ(message_of<std::runtime_error>([&] { trainer.fit(module, singles({1})); }),
            "no memory for the layer");
  EXPECT_FALSE(strategy->open);
  EXPECT_EQ(at::get_default_dtype(), caffe2::TypeMeta::Make<float>());
  // The trainer can be used again, the half-built module cannot (SecondFit).
  auto fresh = std::make_shared<Lazy>(*strategy);
  trainer.fit(fresh, singles({1}));
  EXPECT_EQ(fresh->w.item<double>(), -1);
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
    std::vector<std::shared_ptr<Callback>> configure_callbacks() override {
      return {std::make_shared<Named>("module")};
    }
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
  EXPECT_TRUE(contains(message_of<ConfigError>(
                           [] { Trainer(quiet()).fit(std::make_shared<Brings>(), singles({1})); }),
                       "configure_callbacks returned a null"));
}

// --- DataModule ---

class Data : public DataModule<> {
 public:
  void prepare_data() override { events += "p"; }
  void setup(Stage stage) override { events += "s" + std::string(to_string(stage)).substr(0, 1); }
  void teardown(Stage stage) override {
    events += "d" + std::string(to_string(stage)).substr(0, 1);
  }
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
    void on_before_batch_transfer(Batch& batch, std::int64_t) override {
      batch.tensors[0] = batch.tensors[0] + 1;
    }
    void on_after_batch_transfer(Batch& batch, std::int64_t) override {
      batch.tensors[0] = batch.tensors[0] * 10;
    }
  };
  class Overrides : public Data {
   public:
    void on_after_batch_transfer(Batch& batch, std::int64_t) override {
      batch.tensors[0] = batch.tensors[0] * 100;
    }
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

}  // namespace
}  // namespace fulmen
