#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

// --- What training_step returns ---

std::string refused_loss(std::function<at::Tensor(Toy&, Batch&)> loss) {
  auto module = std::make_shared<Toy>();
  module->step = [&](Toy& toy, Batch& batch, std::int64_t) { return StepOutput(loss(toy, batch)); };
  return message_of<TrainingError>([&] { Trainer(quiet()).fit(module, singles({1})); });
}

TEST(TrainingStep, LossThatIsNoScalarIsRefused) {
  const auto message = refused_loss([](Toy& toy, Batch&) { return toy.w * torch::ones({2, 3}); });
  EXPECT_TRUE(contains(message, "Toy: training_step returned a loss of shape [2, 3] in batch 0"));
  EXPECT_TRUE(contains(message, ".mean()"));
  EXPECT_TRUE(contains(refused_loss([](Toy& toy, Batch&) { return toy.w * torch::ones({0}); }),
                       "shape [0]"));
}

TEST(TrainingStep, LossOfOneElementIsAccepted) {
  auto module = std::make_shared<Toy>();
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    return toy.loss(batch).reshape({1, 1});
  };
  Trainer(quiet()).fit(module, singles({2}));
  EXPECT_EQ(module->value(), -2);
}

TEST(TrainingStep, LossWithoutGraphIsRefused) {
  const auto message =
      refused_loss([](Toy& toy, Batch& batch) { return toy.loss(batch).detach(); });
  EXPECT_TRUE(contains(message, "without a graph in batch 0"));
  EXPECT_TRUE(contains(message, "detach()"));
}

TEST(TrainingStep, WeightThatIsNoScalarIsRefused) {
  auto options = quiet();
  options.accumulate_grad_batches = 2;
  auto module = std::make_shared<Toy>();
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    return StepOutput(toy.loss(batch), torch::ones({3}));
  };
  const auto message =
      message_of<TrainingError>([&] { Trainer(options).fit(module, singles({1})); });
  EXPECT_TRUE(contains(message, "weight of shape [3]"));
}

TEST(TrainingStep, NothingLeavesTheBatchOut) {
  Trainer trainer(quiet());
  auto module = std::make_shared<Toy>();
  module->step = [](Toy& toy, Batch& batch, std::int64_t idx) {
    return idx == 1 ? StepOutput() : StepOutput(toy.loss(batch));
  };
  trainer.fit(module, singles({1, 2, 4}));
  EXPECT_EQ(module->value(), -5);
  EXPECT_EQ(trainer.progress().global_step, 2);
  EXPECT_EQ(trainer.progress().skipped_steps, 0);
}

TEST(MissingSteps, AreNamed) {
  class Bare : public LightningModule<> {
   public:
    Bare() : LightningModule("Bare") { register_parameter("w", torch::zeros({})); }
    OptimizerConfigs configure_optimizers() override { return SGD::make(*this); }
  };
  class NoOptimizer : public Bare {
   public:
    OptimizerConfigs configure_optimizers() override { return ModuleBase::configure_optimizers(); }
  };
  Trainer trainer(quiet());
  auto module = std::make_shared<Bare>();
  const auto refusal = [](const auto& action) { return message_of<ConfigError>(action); };
  EXPECT_TRUE(contains(refusal([&] { trainer.fit(module, singles({1})); }),
                       "Bare: training_step is not overridden"));
  EXPECT_TRUE(contains(refusal([&] { trainer.fit(module, singles({1}), singles({1})); }),
                       "validation_step"));
  EXPECT_TRUE(contains(refusal([&] { trainer.validate(module, singles({1})); }),
                       "validation_step is not overridden"));
  EXPECT_TRUE(contains(refusal([&] { trainer.test(module, singles({1})); }),
                       "test_step is not overridden"));
  EXPECT_TRUE(contains(refusal([&] { trainer.predict(module, singles({1})); }),
                       "predict_step is not overridden"));
  EXPECT_TRUE(contains(refusal([&] { trainer.fit(std::make_shared<NoOptimizer>(), singles({1})); }),
                       "configure_optimizers is not overridden"));
}

// --- Modules and data ---

TEST(BadData, NullModuleIsRefused) {
  Trainer trainer(quiet());
  const std::shared_ptr<Toy> null;
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { trainer.fit(null, singles({1})); }),
                       "fit got a null module"));
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { trainer.predict(null, singles({1})); }),
                       "predict got a null module"));
}

TEST(BadData, MissingLoadersAreNamed) {
  Trainer trainer(quiet());
  auto module = std::make_shared<Toy>();
  EXPECT_TRUE(
      contains(message_of<ConfigError>([&] { trainer.fit(module); }), "train_dataloader()"));
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { trainer.validate(module); }),
                       "validate got no loader"));
  EXPECT_TRUE(
      contains(message_of<ConfigError>([&] { trainer.test(module); }), "test got no loader"));
  EXPECT_TRUE(
      contains(message_of<ConfigError>([&] { trainer.predict(module); }), "predict got no loader"));
  EXPECT_TRUE(contains(
      message_of<ConfigError>([&] { trainer.fit(module, std::make_shared<DataModule<>>()); }),
      "data module return one"));
}

TEST(BadData, EmptyDatasetIsAnErrorInEveryStage) {
  const DataLoader empty(tensor_dataset({torch::zeros({0, 2})}), {.batch_size = 4});
  const DataLoader dropped(tensor_dataset({torch::zeros({3, 2})}),
                           {.batch_size = 4, .drop_last = true});
  auto module = std::make_shared<Toy>();
  for (const auto& loader : {empty, dropped}) {
    Trainer trainer(quiet());
    EXPECT_TRUE(contains(message_of<DataError>([&] { trainer.fit(module, loader); }),
                         "the training loader: has no batches"));
    EXPECT_TRUE(contains(message_of<DataError>([&] {
                           trainer.fit(module, singles({1}), {singles({1}), loader});
                         }),
                         "the validation loader 1: has no batches"));
    EXPECT_TRUE(contains(message_of<DataError>([&] { trainer.validate(module, loader); }),
                         "has no batches"));
    EXPECT_TRUE(contains(message_of<DataError>([&] { trainer.test(module, loader); }),
                         "the test loader 0"));
    EXPECT_TRUE(contains(message_of<DataError>([&] { trainer.predict(module, loader); }),
                         "the predict loader 0"));
  }
}

struct Broken {
  std::int64_t size() const { return 8; }
  at::Tensor get(std::int64_t index) const {
    if (index == 5) throw std::runtime_error("cannot read sample 5: disk on fire");
    return torch::ones({1}, torch::kFloat64);
  }
};

TEST(BadData, ExceptionOfADatasetReachesTheUserAlsoFromAWorker) {
  for (int workers : {0, 1, 3}) {
    auto module = std::make_shared<Toy>();
    DataLoader loader(Broken(), {.batch_size = 2, .num_workers = workers}, [](at::Tensor batch) {
      return Batch{{std::move(batch)}};
    });
    Trainer trainer(quiet());
    const auto message = message_of<std::runtime_error>([&] { trainer.fit(module, loader); });
    EXPECT_TRUE(contains(message, "disk on fire")) << workers;
    EXPECT_EQ(module->value(), -2) << workers;  // The two batches before it were trained on.
    trainer.fit(module, singles({1}));
    EXPECT_EQ(module->value(), -3) << workers;
  }
}

class Liar final : public BatchSource {
 public:
  const std::type_info& batch_type() const override { return typeid(Batch); }
  std::optional<std::int64_t> size() const override { return 3; }
  void start_epoch(const EpochStart&) override { given_ = 0; }
  bool next(AnyBatch& batch) override {
    if (given_++ == 2) return false;
    batch = AnyBatch(column({1}));
    return true;
  }

 private:
  int given_ = 0;
};

TEST(BadData, SourceThatEndsEarlyIsNamed) {
  const auto message = message_of<DataError>([] {
    Trainer(quiet()).fit(std::make_shared<Toy>(),
                         std::shared_ptr<BatchSource>(std::make_shared<Liar>()));
  });
  EXPECT_TRUE(contains(message, "ended after 2 batches, but said it has 3"));
}

TEST(BadData, SourceOfAnotherTypeIsRefused) {
  class Tensors : public LightningModule<at::Tensor> {};
  EXPECT_TRUE(contains(message_of<ConfigError>([] {
                         Trainer(quiet()).fit(
                             std::make_shared<Tensors>(),
                             std::shared_ptr<BatchSource>(std::make_shared<Liar>()));
                       }),
                       "this BatchSource yields fulmen::Batch"));
}

TEST(BadData, LoaderThatIsUsedTwiceAtATimeIsNamed) {
  const Loader<Batch> shared = DataLoader(tensor_dataset({torch::ones({4}, torch::kFloat64)}));
  auto options = quiet();
  options.val_check_interval = every_n_batches(2);
  EXPECT_TRUE(contains(
      message_of<DataError>([&] { Trainer(options).fit(std::make_shared<Toy>(), shared, shared); }),
      "make one for each"));
}

// --- Callbacks ---

TEST(BadCallbacks, TwoWithStateUnderOneKeyAreRefused) {
  class Stateful : public Callback {
   public:
    StateDict state_dict() const override { return {.values = {{"n", 1}}, .tensors = {}}; }
  };
  auto options = quiet();
  options.callbacks = {std::make_shared<Stateful>(), std::make_shared<Stateful>()};
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { Trainer trainer(options); }), "state_key()"));
}

// --- Checkpoints ---

TEST(BadCheckpoint, MissingOneIsNamed) {
  TemporaryDirectory folder;
  Trainer trainer(quiet());
  const auto path = (folder.path() / "nothing").string();
  EXPECT_TRUE(contains(message_of<CheckpointError>([&] {
                         trainer.fit(
                             std::make_shared<Toy>(), singles({1}), {}, {.checkpoint = path});
                       }),
                       path));
  EXPECT_TRUE(contains(message_of<CheckpointError>([&] {
                         trainer.fit(
                             std::make_shared<Toy>(), singles({1}), {}, {.checkpoint = "last"});
                       }),
                       "there is no \"last\" checkpoint"));
}

TEST(BadCheckpoint, SaveBeforeAnyRunIsRefused) {
  TemporaryDirectory folder;
  Trainer trainer(quiet());
  EXPECT_TRUE(
      contains(message_of<ConfigError>([&] { trainer.save_checkpoint(folder.path() / "c"); }),
               "before any run"));
}

TEST(Checkpoint, BeyondMaxStepsTrainsNothingWithAWarning) {
  TemporaryDirectory folder;
  auto options = quiet(-1);
  options.max_steps = 12;
  Trainer first(options);
  auto module = std::make_shared<Toy>();
  first.fit(module, singles({1, 1, 1, 1, 1}));
  first.save_checkpoint(folder.path() / "twelve");

  auto sink = std::make_shared<CapturingSink>();
  options = quiet(-1, sink);
  options.max_steps = 1;
  Trainer second(options);
  auto resumed = std::make_shared<Toy>();
  second.fit(
      resumed, singles({1, 1, 1, 1, 1}), {}, {.checkpoint = (folder.path() / "twelve").string()});
  EXPECT_EQ(resumed->training_steps, 0);
  EXPECT_EQ(second.progress().global_step, 12);
  EXPECT_EQ(resumed->value(), -12);
  EXPECT_EQ(sink->count(LogLevel::kWarning, "nothing is trained"), 1) << sink->all();
}

}  // namespace
}  // namespace fulmen
