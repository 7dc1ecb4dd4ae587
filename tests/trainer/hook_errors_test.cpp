#include <set>

#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

// --- Exceptions in hooks ---

/// Knows every hook that was called as "<who>.<hook>", and throws in one of them.
struct Visits {
  void operator()(const std::string& who, const char* hook) {
    const auto name = who + "." + hook;
    seen.insert(name);
    if (name == throw_at) throw std::runtime_error("broken in " + name);
  }
  std::set<std::string> seen;
  std::string throw_at;
};

class HookedModule : public Toy {
 public:
  explicit HookedModule(Visits& visits) : visits_(visits) {}

  std::vector<std::shared_ptr<Callback>> configure_callbacks() override {
    return visit("configure_callbacks"), Callbacks();
  }
  void prepare_data() override { visit("prepare_data"); }
  void setup(Stage) override { visit("setup"); }
  void teardown(Stage) override { visit("teardown"); }
  void configure_sharded_model() override { visit("configure_sharded_model"); }
  OptimizerConfigs configure_optimizers() override {
    visit("configure_optimizers");
    auto sgd = SGD::make(*this, {.lr = 1});
    return OptimizerConfig{.optimizer = sgd,
                           .schedulers = {{.scheduler = ConstantLR::make(sgd, {.factor = 1})}}};
  }
  void on_fit_start() override { visit("on_fit_start"); }
  void on_fit_end() override { visit("on_fit_end"); }
  void on_train_start() override { visit("on_train_start"); }
  void on_train_end() override { visit("on_train_end"); }
  void on_train_epoch_start() override { visit("on_train_epoch_start"); }
  void on_train_epoch_end() override { visit("on_train_epoch_end"); }
  void on_validation_start() override { visit("on_validation_start"); }
  void on_validation_end() override { visit("on_validation_end"); }
  void on_validation_epoch_start() override { visit("on_validation_epoch_start"); }
  void on_validation_epoch_end() override { visit("on_validation_epoch_end"); }
  void on_validation_model_eval() override {
    visit("on_validation_model_eval"), Toy::on_validation_model_eval();
  }
  void on_validation_model_train() override { visit("on_validation_model_train"); }
  void on_validation_model_zero_grad() override { visit("on_validation_model_zero_grad"); }
  void on_test_start() override { visit("on_test_start"); }
  void on_test_end() override { visit("on_test_end"); }
  void on_test_epoch_start() override { visit("on_test_epoch_start"); }
  void on_test_epoch_end() override { visit("on_test_epoch_end"); }
  void on_predict_start() override { visit("on_predict_start"); }
  void on_predict_end() override { visit("on_predict_end"); }
  void on_predict_epoch_start() override { visit("on_predict_epoch_start"); }
  void on_predict_epoch_end() override { visit("on_predict_epoch_end"); }
  void on_before_backward(const at::Tensor&) override { visit("on_before_backward"); }
  void on_after_backward() override { visit("on_after_backward"); }
  void backward(const at::Tensor& loss, const at::Tensor& gradient) override {
    visit("backward");
    Toy::backward(loss, gradient);
  }
  void on_before_zero_grad(Optimizer&) override { visit("on_before_zero_grad"); }
  void optimizer_zero_grad(std::int64_t, std::int64_t, Optimizer& optimizer) override {
    visit("optimizer_zero_grad");
    optimizer.zero_grad();
  }
  void on_before_optimizer_step(Optimizer&) override { visit("on_before_optimizer_step"); }
  void configure_gradient_clipping(Optimizer&, std::optional<double>, ClipAlgorithm) override {
    visit("configure_gradient_clipping");
  }
  void optimizer_step(std::int64_t epoch,
                      std::int64_t idx,
                      Optimizer& optimizer,
                      const Optimizer::Closure& closure) override {
    visit("optimizer_step");
    Toy::optimizer_step(epoch, idx, optimizer, closure);
  }
  void lr_scheduler_step(LRScheduler& scheduler, std::optional<double>) override {
    visit("lr_scheduler_step");
    scheduler.step();
  }
  BatchAction on_train_batch_start(Batch&, std::int64_t) override {
    visit("on_train_batch_start");
    return BatchAction::kContinue;
  }
  void on_train_batch_end(const StepOutput&, Batch&, std::int64_t) override {
    visit("on_train_batch_end");
  }
  void on_validation_batch_start(Batch&, std::int64_t, std::int64_t) override {
    visit("on_validation_batch_start");
  }
  void on_validation_batch_end(const StepOutput&, Batch&, std::int64_t, std::int64_t) override {
    visit("on_validation_batch_end");
  }
  void on_test_batch_start(Batch&, std::int64_t, std::int64_t) override {
    visit("on_test_batch_start");
  }
  void on_test_batch_end(const StepOutput&, Batch&, std::int64_t, std::int64_t) override {
    visit("on_test_batch_end");
  }
  void on_predict_batch_start(Batch&, std::int64_t, std::int64_t) override {
    visit("on_predict_batch_start");
  }
  void on_predict_batch_end(const at::Tensor&, Batch&, std::int64_t, std::int64_t) override {
    visit("on_predict_batch_end");
  }
  StepOutput training_step(Batch& batch, std::int64_t) override {
    return visit("training_step"), loss(batch);
  }
  StepOutput validation_step(Batch&, std::int64_t, std::int64_t) override {
    return visit("validation_step"), StepOutput();
  }
  StepOutput test_step(Batch&, std::int64_t, std::int64_t) override {
    return visit("test_step"), StepOutput();
  }
  at::Tensor predict_step(Batch& batch, std::int64_t, std::int64_t) override {
    return visit("predict_step"), batch.tensors[0];
  }

 private:
  using Callbacks = std::vector<std::shared_ptr<Callback>>;
  void visit(const char* hook) { visits_("module", hook); }

  Visits& visits_;
};

class HookedData : public DataModule<> {
 public:
  explicit HookedData(Visits& visits) : visits_(visits) {}
  void prepare_data() override { visits_("data", "prepare_data"); }
  void setup(Stage) override { visits_("data", "setup"); }
  void teardown(Stage) override { visits_("data", "teardown"); }
  void on_exception(const std::exception&) override { visits_("data", "on_exception"); }
  Loader<Batch> train_dataloader() override {
    return visits_("data", "train_dataloader"), singles({1, 2});
  }
  Loaders<Batch> val_dataloader() override {
    return visits_("data", "val_dataloader"), singles({1});
  }
  Loaders<Batch> test_dataloader() override {
    return visits_("data", "test_dataloader"), singles({1});
  }
  Loaders<Batch> predict_dataloader() override {
    return visits_("data", "predict_dataloader"), singles({1});
  }
  void on_before_batch_transfer(Batch&, std::int64_t) override {
    visits_("data", "on_before_batch_transfer");
  }
  void transfer_batch_to_device(Batch&, c10::Device, std::int64_t) override {
    visits_("data", "transfer_batch_to_device");
  }
  void on_after_batch_transfer(Batch&, std::int64_t) override {
    visits_("data", "on_after_batch_transfer");
  }

 private:
  Visits& visits_;
};

std::shared_ptr<Callback> hooked_callback(Visits& visits, const std::string& who) {
  const auto hook = [&visits, who](const char* name) {
    return [&visits, who, name](auto&&...) { visits(who, name); };
  };
  return LambdaCallback::make({.setup = hook("setup"),
                               .teardown = hook("teardown"),
                               .on_configure_sharded_model = hook("on_configure_sharded_model"),
                               .on_fit_start = hook("on_fit_start"),
                               .on_fit_end = hook("on_fit_end"),
                               .on_sanity_check_start = hook("on_sanity_check_start"),
                               .on_sanity_check_end = hook("on_sanity_check_end"),
                               .on_train_start = hook("on_train_start"),
                               .on_train_end = hook("on_train_end"),
                               .on_train_epoch_start = hook("on_train_epoch_start"),
                               .on_train_epoch_end = hook("on_train_epoch_end"),
                               .on_train_batch_start = hook("on_train_batch_start"),
                               .on_train_batch_end = hook("on_train_batch_end"),
                               .on_before_zero_grad = hook("on_before_zero_grad"),
                               .on_before_backward = hook("on_before_backward"),
                               .on_after_backward = hook("on_after_backward"),
                               .on_before_optimizer_step = hook("on_before_optimizer_step"),
                               .on_validation_start = hook("on_validation_start"),
                               .on_validation_end = hook("on_validation_end"),
                               .on_validation_epoch_start = hook("on_validation_epoch_start"),
                               .on_validation_epoch_end = hook("on_validation_epoch_end"),
                               .on_validation_batch_start = hook("on_validation_batch_start"),
                               .on_validation_batch_end = hook("on_validation_batch_end"),
                               .on_test_start = hook("on_test_start"),
                               .on_test_end = hook("on_test_end"),
                               .on_test_epoch_start = hook("on_test_epoch_start"),
                               .on_test_epoch_end = hook("on_test_epoch_end"),
                               .on_test_batch_start = hook("on_test_batch_start"),
                               .on_test_batch_end = hook("on_test_batch_end"),
                               .on_predict_start = hook("on_predict_start"),
                               .on_predict_end = hook("on_predict_end"),
                               .on_predict_epoch_start = hook("on_predict_epoch_start"),
                               .on_predict_epoch_end = hook("on_predict_epoch_end"),
                               .on_predict_batch_start = hook("on_predict_batch_start"),
                               .on_predict_batch_end = hook("on_predict_batch_end"),
                               .on_exception = hook("on_exception")});
}

/// A trainer whose every hook is watched.
struct HookedRun {
  Visits visits;
  std::shared_ptr<CapturingSink> sink = std::make_shared<CapturingSink>();
  std::shared_ptr<HookedModule> module;
  std::unique_ptr<Trainer> trainer;

  HookedRun() {
    auto options = quiet(1, sink);
    // Two of one class have one key; that is allowed, since they have no state.
    options.callbacks = {hooked_callback(visits, "callback"), hooked_callback(visits, "second")};
    trainer = std::make_unique<Trainer>(options);
  }
  void run(Stage stage) {
    module = std::make_shared<HookedModule>(visits);
    auto data = std::make_shared<HookedData>(visits);
    if (stage == Stage::kFit) trainer->fit(module, data);
    if (stage == Stage::kValidate) trainer->validate(module, data, {.verbose = false});
    if (stage == Stage::kTest) trainer->test(module, data, {.verbose = false});
    if (stage == Stage::kPredict) trainer->predict(module, data);
  }
};

/// Hooks that run before setup() has begun, so that there is nothing to tear down.
bool is_before_setup(const std::string& name) {
  return name.ends_with(".prepare_data") || name.ends_with(".configure_callbacks");
}

void expect_clean_failure(Stage stage, const std::string& name) {
  HookedRun run;
  run.visits.throw_at = name;
  EXPECT_EQ(message_of<std::runtime_error>([&] { run.run(stage); }), "broken in " + name);
  const bool torn_down = !is_before_setup(name);
  for (const char* who : {"data.", "callback.", "second.", "module."}) {
    EXPECT_EQ(run.visits.seen.contains(std::string(who) + "teardown"), torn_down)
        << name << ", " << who;
  }
  if (!name.ends_with(".teardown")) {
    EXPECT_TRUE(run.visits.seen.contains("callback.on_exception")) << name;
    EXPECT_TRUE(run.visits.seen.contains("second.on_exception")) << name;
    EXPECT_EQ(run.sink->count(LogLevel::kError, ""), 0) << name << ": " << run.sink->all();
  }
  EXPECT_FALSE(run.module->has_trainer()) << name;
  EXPECT_TRUE(run.module->is_training()) << name;
  EXPECT_TRUE(at::GradMode::is_enabled()) << name;

  run.visits.throw_at.clear();
  EXPECT_NO_THROW(run.run(Stage::kFit)) << name;
  EXPECT_EQ(run.module->value(), -3) << name;
}

TEST(Exceptions, InAnyHookTearDownEverythingAndLeaveTheTrainerUsable) {
  std::size_t hooks = 0;
  for (auto stage : {Stage::kFit, Stage::kValidate, Stage::kTest, Stage::kPredict}) {
    HookedRun clean;
    clean.run(stage);
    for (const auto& name : clean.visits.seen) expect_clean_failure(stage, name);
    hooks += clean.visits.seen.size();
  }
  EXPECT_GT(hooks, 200u);  // The list was not empty by mistake.
}

TEST(Exceptions, OfTheCleaningUpDoNotHideTheFirst) {
  class Bad : public Callback {
   public:
    void on_exception(Context&, Module&, const std::exception& error) override {
      seen = error.what();
      throw std::runtime_error("second");
    }
    void teardown(Context&, Module&, Stage) override { throw std::runtime_error("third"); }
    std::string seen;
  };
  auto sink = std::make_shared<CapturingSink>();
  auto options = quiet(1, sink);
  auto bad = std::make_shared<Bad>();
  options.callbacks = {bad};
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  module->step = [](Toy&, Batch&, std::int64_t) -> StepOutput {
    throw std::runtime_error("first");
  };
  EXPECT_EQ(message_of<std::runtime_error>([&] { trainer.fit(module, singles({1})); }), "first");
  EXPECT_EQ(bad->seen, "first");
  EXPECT_EQ(sink->count(LogLevel::kError, "second"), 1);
  EXPECT_EQ(sink->count(LogLevel::kError, "third"), 1);
}

TEST(Exceptions, ThatAreNoStdExceptionPassThrough) {
  Trainer trainer(quiet());
  auto module = std::make_shared<Toy>();
  module->step = [](Toy&, Batch&, std::int64_t) -> StepOutput { throw 7; };
  EXPECT_THROW(trainer.fit(module, singles({1})), int);
  module->step = {};
  trainer.fit(module, singles({1}));
  EXPECT_EQ(module->value(), -1);
}

TEST(Exceptions, OfLibTorchPassThroughUnchanged) {
  auto module = std::make_shared<Toy>();
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    return (toy.w * torch::ones({2, 3})).matmul(batch.tensors[0]);
  };
  EXPECT_THROW(Trainer(quiet()).fit(module, singles({1})), c10::Error);
}

TEST(Exceptions, InTheSanityCheckDoNotMakeTheNextValidationOne) {
  Trainer trainer(quiet());
  auto module = std::make_shared<Toy>(ToyOptions{.w0 = 2});
  module->eval_step = [](Toy&, Batch&, std::int64_t, std::int64_t) {
    throw std::runtime_error("stop");
  };
  EXPECT_THROW(trainer.fit(module, singles({1}), singles({1})), std::runtime_error);
  module->eval_step = {};
  EXPECT_EQ(trainer.validate(module, singles({3}), {.verbose = false}),
            (EvalResults{{{"val_loss", 6}}}));
}

TEST(Exceptions, RunInsideARunIsRefused) {
  Trainer trainer(quiet());
  auto module = std::make_shared<Toy>();
  module->step = [&](Toy& toy, Batch& batch, std::int64_t) {
    const auto message =
        message_of<ConfigError>([&] { trainer.validate(std::make_shared<Toy>(), singles({1})); });
    EXPECT_TRUE(contains(message, "going on already"));
    return toy.loss(batch);
  };
  trainer.fit(module, singles({1, 1}));
  EXPECT_EQ(module->value(), -2);
}

}  // namespace
}  // namespace fulmen
