#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

using Metrics = std::map<std::string, double>;

// --- Means and sums over an epoch ---

/// Validates with these values of a metric, one for each batch, of so many rows; returns the
/// result.
double validated(const std::vector<std::pair<double, std::int64_t>>& values,
                 LogOptions options = {}) {
  std::vector<Batch> data;
  for (const auto& [value, rows] : values)
    data.push_back({{torch::full({rows}, value, torch::kFloat64)}});
  auto module = std::make_shared<Toy>();
  module->eval_step = [&](Toy& toy, Batch& batch, std::int64_t, std::int64_t) {
    toy.log("metric", batch.tensors[0][0], options);
  };
  return Trainer(quiet()).validate(module, data, {.verbose = false})[0].at("metric");
}

TEST(Metrics, MeanIsWeightedByTheRowsOfEachBatch) {
  EXPECT_NEAR(validated({{0.7, 256}, {0.8, 256}, {0.9, 10}}),
              (0.7 * 256 + 0.8 * 256 + 0.9 * 10) / 522,
              1e-15);
  EXPECT_NEAR(validated({{0.7, 256}, {0.8, 256}, {0.9, 10}}), 0.752874, 5e-7);
  EXPECT_DOUBLE_EQ(validated({{1, 4}, {2, 4}, {6, 4}}), 3);
}

TEST(Metrics, BatchSizeThatIsGivenWins) {
  EXPECT_DOUBLE_EQ(validated({{0.7, 256}, {0.9, 1}}, {.batch_size = 5}), 0.8);
}

TEST(Metrics, SumMinAndMaxAreNotWeighted) {
  EXPECT_EQ(validated({{1, 4}, {1, 4}, {1, 2}}, {.reduce = MetricReduction::kSum}), 3);
  EXPECT_EQ(validated({{2, 4}, {1, 4}, {3, 2}}, {.reduce = MetricReduction::kMin}), 1);
  EXPECT_EQ(validated({{2, 4}, {1, 4}, {3, 2}}, {.reduce = MetricReduction::kMax}), 3);
}

TEST(Metrics, RowsOfAMapOfTensorsAreItsRowsAndNotItsEntries) {
  using Map = std::map<std::string, at::Tensor>;
  class Maps : public LightningModule<Map> {
   public:
    StepOutput validation_step(Map& batch, std::int64_t, std::int64_t) override {
      log("metric", batch["x"][0]);
      return {};
    }
  };
  std::vector<Map> data;
  for (auto [value, rows] : {std::pair<double, std::int64_t>(1, 5), {4, 1}}) {
    data.push_back(
        {{"x", torch::full({rows}, value, torch::kFloat64)}, {"y", torch::zeros({rows})}});
  }
  const auto results =
      Trainer(quiet()).validate(std::make_shared<Maps>(), data, {.verbose = false});
  EXPECT_DOUBLE_EQ(results[0].at("metric"), 1.5);  // (5 * 1 + 4) / 6; with 2 entries each: 2.5.
}

TEST(Metrics, TrainingHasStepAndEpochValues) {
  Trainer trainer(quiet(2));
  auto module = std::make_shared<Toy>();
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    toy.log("both", batch.tensors[0].mean(), {.on_epoch = true});
    toy.log("step", batch.tensors[0].mean());
    toy.log("epoch", batch.tensors[0].mean(), {.on_step = false, .on_epoch = true});
    return toy.loss(batch);
  };
  // "step" is the name of the loggers' axis as well; as a metric for callbacks it is like any
  // other.
  trainer.fit(module, std::vector<Batch>{column({1, 1, 1}), column({5})});
  EXPECT_EQ(trainer.callback_metrics(),
            (Metrics{{"both", 2}, {"both_step", 5}, {"both_epoch", 2}, {"step", 5}, {"epoch", 2}}));
}

TEST(Metrics, LastBatchesEpochMeanIsOfThisEpochOnly) {
  std::vector<double> epochs;
  auto options = quiet(3);
  options.callbacks = {LambdaCallback::make(
      {.on_train_end = [&](TrainerContext& context,
                           ModuleBase&) { epochs.push_back(*context.metric("loss_epoch")); },
       .on_train_epoch_start =
           [&](TrainerContext& context, ModuleBase&) {
             const auto value = context.metric("loss_epoch");
             epochs.push_back(value ? *value : -1);
           }})};
  auto module = std::make_shared<Toy>();
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    toy.log("loss",
            batch.tensors[0].mean() * static_cast<double>(toy.current_epoch() + 1),
            {.on_epoch = true});
    return toy.loss(batch);
  };
  Trainer(options).fit(module, singles({1, 3}));
  EXPECT_EQ(epochs, (std::vector<double>{-1, 2, 4, 6}));
}

TEST(Metrics, SeveralLoadersGetASuffixUnlessTurnedOff) {
  Trainer trainer(quiet());
  auto module = std::make_shared<Toy>();
  module->eval_step = [](Toy& toy, Batch& batch, std::int64_t, std::int64_t loader) {
    toy.log("loss", batch.tensors[0].mean());
    if (loader == 1) toy.log("own", batch.tensors[0].mean(), {.add_dataloader_idx = false});
  };
  const auto results =
      trainer.validate(module, {singles({1, 3}), singles({10, 20})}, {.verbose = false});
  EXPECT_EQ(
      results,
      (EvalResults{{{"loss/dataloader_idx_0", 2}}, {{"loss/dataloader_idx_1", 15}, {"own", 15}}}));
  EXPECT_EQ(trainer.callback_metrics(),
            (Metrics{{"loss/dataloader_idx_0", 2}, {"loss/dataloader_idx_1", 15}, {"own", 15}}));
  EXPECT_EQ(trainer.validate(module, singles({4}), {.verbose = false}),
            (EvalResults{{{"loss", 4}}}));
}

TEST(Metrics, ProgressBarAndLoggersGetWhatTheyAreMeantTo) {
  Trainer trainer(quiet());
  auto module = std::make_shared<Toy>();
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    toy.log("bar", 1.0, {.prog_bar = true, .logger = false});
    toy.log("log", 2.0);
    return toy.loss(batch);
  };
  trainer.fit(module, singles({1}));
  EXPECT_EQ(trainer.progress_bar_metrics(), (Metrics{{"bar", 1}}));
  EXPECT_EQ(trainer.logged_metrics(), (Metrics{{"log", 2}}));
}

// --- Where log() is allowed ---

TEST(LogRules, ForbiddenHooksSayWhichAndWhat) {
  const auto refusal = [](LambdaCallbackOptions hooks) {
    auto options = quiet();
    options.callbacks = {LambdaCallback::make(std::move(hooks))};
    Trainer trainer(options);
    return message_of<ConfigError>(
        [&] { trainer.fit(std::make_shared<Toy>(), singles({1}), singles({1})); });
  };
  const auto log = [](TrainerContext&, ModuleBase& module) { module.log("my_metric", 1.0); };
  const auto log_setup = [](TrainerContext&, ModuleBase& module, Stage) {
    module.log("my_metric", 1.0);
  };
  const std::pair<const char*, LambdaCallbackOptions> cases[] = {
      {"setup", {.setup = log_setup}},
      {"teardown", {.teardown = log_setup}},
      {"on_configure_sharded_model", {.on_configure_sharded_model = log}},
      {"on_fit_start", {.on_fit_start = log}},
      {"on_fit_end", {.on_fit_end = log}},
      {"on_sanity_check_start", {.on_sanity_check_start = log}},
      {"on_sanity_check_end", {.on_sanity_check_end = log}},
      {"on_train_end", {.on_train_end = log}},
      {"on_validation_end", {.on_validation_end = log}},
  };
  for (const auto& [hook, hooks] : cases) {
    const auto message = refusal(hooks);
    EXPECT_TRUE(contains(message, hook)) << hook;
    EXPECT_TRUE(contains(message, "my_metric")) << hook;
  }
}

TEST(LogRules, ForbiddenHooksOfTheModuleToo) {
  class Logs : public Toy {
   public:
    explicit Logs(std::string where) : where_(std::move(where)) {}
    void prepare_data() override { at("prepare_data"); }
    void configure_sharded_model() override { at("configure_sharded_model"); }
    OptimizerConfigs configure_optimizers() override {
      at("configure_optimizers");
      return Toy::configure_optimizers();
    }
    void on_before_batch_transfer(Batch&, std::int64_t) override { at("on_before_batch_transfer"); }
    void on_validation_model_eval() override { at("on_validation_model_eval"); }
    Loaders<Batch> predict_dataloader() override {
      return at("predict_dataloader"), Loaders<Batch>();
    }
    at::Tensor predict_step(Batch&, std::int64_t, std::int64_t) override {
      return at("predict_step"), at::Tensor();
    }

   private:
    void at(const char* hook) {
      if (where_ == hook) log("my_metric", 1.0);
    }
    std::string where_;
  };
  for (const char* hook : {"prepare_data",
                           "configure_sharded_model",
                           "configure_optimizers",
                           "on_before_batch_transfer",
                           "on_validation_model_eval",
                           "predict_dataloader",
                           "predict_step"}) {
    Trainer trainer(quiet());
    const auto message = message_of<ConfigError>([&] {
      auto module = std::make_shared<Logs>(hook);
      if (std::string(hook) == "predict_dataloader") {
        trainer.predict(module);
      } else if (std::string(hook) == "predict_step") {
        trainer.predict(module, singles({1}));
      } else {
        trainer.fit(module, singles({1}), singles({1}));
      }
    });
    EXPECT_TRUE(contains(message, hook)) << hook;
  }
}

TEST(LogRules, EpochHooksLogForTheEpochAndRefuseOnStep) {
  auto options = quiet(2);
  options.num_sanity_val_steps = 0;
  const auto log = [](const char* name) {
    return [name](TrainerContext& context, ModuleBase& module) {
      module.log(name, static_cast<double>(context.progress().epoch));
    };
  };
  options.callbacks = {
      LambdaCallback::make({.on_train_start = log("train_start"),
                            .on_train_epoch_start = log("train_epoch_start"),
                            .on_train_epoch_end = log("train_epoch_end"),
                            .on_validation_start = log("validation_start"),
                            .on_validation_epoch_start = log("validation_epoch_start"),
                            .on_validation_epoch_end = log("validation_epoch_end")})};
  Trainer trainer(options);
  trainer.fit(std::make_shared<Toy>(), singles({1}), singles({1}));
  const auto metrics = trainer.callback_metrics();
  EXPECT_EQ(metrics.at("train_start"), 0);
  for (const char* name : {"train_epoch_start",
                           "train_epoch_end",
                           "validation_start",
                           "validation_epoch_start",
                           "validation_epoch_end"}) {
    EXPECT_EQ(metrics.at(name), 1) << name;
  }

  options.callbacks = {
      LambdaCallback::make({.on_train_epoch_end = [](TrainerContext&, ModuleBase& module) {
        module.log("m", 1.0, {.on_step = true});
      }})};
  Trainer refuses(options);
  const auto message =
      message_of<ConfigError>([&] { refuses.fit(std::make_shared<Toy>(), singles({1})); });
  EXPECT_TRUE(contains(message, "on_step"));
  EXPECT_TRUE(contains(message, "on_train_epoch_end"));
}

TEST(LogRules, HooksInsideATrainingBatchMayLog) {
  auto options = quiet();
  options.callbacks = {LambdaCallback::make(
      {.on_train_batch_start =
           [](TrainerContext&, ModuleBase& module, BatchView, std::int64_t) {
             module.log("a", 1.0);
           },
       .on_train_batch_end =
           [](TrainerContext&, ModuleBase& module, const StepOutput&, BatchView, std::int64_t) {
             module.log("b", 2.0);
           },
       .on_before_zero_grad =
           [](TrainerContext&, ModuleBase& module, Optimizer&) { module.log("c", 3.0); },
       .on_before_backward =
           [](TrainerContext&, ModuleBase& module, const at::Tensor&) { module.log("d", 4.0); },
       .on_after_backward = [](TrainerContext& context,
                               ModuleBase&) { context.log_value("e", 5.0, {}); },
       .on_before_optimizer_step =
           [](TrainerContext&, ModuleBase& module, Optimizer&) { module.log("f", 6.0); }})};
  Trainer trainer(options);
  trainer.fit(std::make_shared<Toy>(), singles({1}));
  EXPECT_EQ(trainer.callback_metrics(),
            (Metrics{{"a", 1}, {"b", 2}, {"c", 3}, {"d", 4}, {"e", 5}, {"f", 6}}));
}

TEST(LogRules, BadValuesAreRefused) {
  const auto refusal = [](const at::Tensor& value) {
    auto module = std::make_shared<Toy>();
    module->step = [&](Toy& toy, Batch& batch, std::int64_t) {
      toy.log("vector", value);
      return toy.loss(batch);
    };
    return message_of<ConfigError>([&] { Trainer(quiet()).fit(module, singles({1})); });
  };
  EXPECT_TRUE(contains(refusal(torch::ones({3})),
                       "'vector' must be a number or a tensor of one element, got shape [3]"));
  EXPECT_TRUE(contains(refusal(at::Tensor()), "undefined"));
}

}  // namespace
}  // namespace fulmen
