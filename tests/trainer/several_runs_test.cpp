// Several runs of one trainer: nothing of an earlier one may reach a later one.
#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

/// Validation losses as given, one for each epoch.
std::shared_ptr<Toy> with_val_losses(std::vector<double> losses) {
  auto module = std::make_shared<Toy>();
  module->eval_step = [losses, epoch = std::size_t{0}](
                          Toy& toy, Batch&, std::int64_t, std::int64_t) mutable {
    if (!toy.trainer().sanity_checking()) toy.log("val_loss", losses.at(epoch++));
  };
  return module;
}

TEST(SecondFit, SavesCheckpointsOfItsOwnModel) {
  TemporaryDirectory folder;
  auto options = quiet(1);
  options.enable_checkpointing = true;
  auto checkpoint = ModelCheckpoint::make({.dirpath = folder.path()});
  options.callbacks = {checkpoint};
  Trainer trainer(options);
  auto first = std::make_shared<Toy>();
  trainer.fit(first, singles({1}));
  const auto of_first = checkpoint->best_model_path();
  auto second = std::make_shared<Toy>();
  trainer.fit(second, singles({5}));
  EXPECT_NE(checkpoint->best_model_path(), of_first);
  auto loaded = std::make_shared<Toy>();
  trainer.validate(loaded, singles({1}), {.checkpoint = "best", .verbose = false});
  EXPECT_DOUBLE_EQ(loaded->value(), -5);
}

TEST(SecondFit, StartsEarlyStoppingAnew) {
  auto options = quiet(4);
  auto early = EarlyStopping::make({.monitor = "val_loss", .patience = 2});
  options.callbacks = {early};
  Trainer trainer(options);
  trainer.fit(with_val_losses({0.1, 0.1, 0.1, 0.1}), singles({1}), singles({1}));
  EXPECT_EQ(trainer.progress().epoch, 3);
  trainer.fit(with_val_losses({1.0, 0.9, 0.8, 0.7}), singles({1}), singles({1}));
  EXPECT_EQ(trainer.progress().epoch, 4);
}

TEST(SecondFit, DropsGradientsThatTheFirstLeft) {
  Trainer trainer(quiet(1));
  class KeepsGradients : public Toy {
   public:
    void optimizer_zero_grad(std::int64_t, std::int64_t, Optimizer&) override {}
  };
  auto keeps = std::make_shared<KeepsGradients>();
  keeps->w.mutable_grad() = torch::full({}, 100.0, torch::kFloat64);
  trainer.fit(keeps, singles({1}));
  EXPECT_DOUBLE_EQ(keeps->value(), -1);
}

TEST(SaveCheckpoint, OfEverythingNeedsAFitOfThisModule) {
  TemporaryDirectory folder;
  Trainer trainer(quiet(1));
  trainer.fit(std::make_shared<Toy>(), singles({1}));
  trainer.save_checkpoint(folder.path() / "after-fit");
  EXPECT_TRUE(is_checkpoint(folder.path() / "after-fit"));
  trainer.validate(std::make_shared<Toy>(), singles({1}), {.checkpoint = {}, .verbose = false});
  EXPECT_TRUE(
      contains(message_of<ConfigError>([&] { trainer.save_checkpoint(folder.path() / "mixed"); }),
               "needs a fit of this module"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "mixed"));
}

TEST(Module, InARunOfAnotherTrainerIsRefused) {
  Trainer outer(quiet(1)), inner(quiet(1));
  auto module = std::make_shared<Toy>();
  std::string message;
  module->step = [&](Toy& toy, Batch& batch, std::int64_t) -> StepOutput {
    message = message_of<ConfigError>([&] { inner.validate(module, singles({1})); });
    toy.log("still_attached", 1.0);
    return toy.loss(batch);
  };
  outer.fit(module, singles({1}));
  EXPECT_TRUE(contains(message, "in a run of another trainer"));
  EXPECT_TRUE(outer.callback_metrics().contains("still_attached"));
}

TEST(Module, WhoseConfigureShardedModelThrewIsRefusedByName) {
  class Broken : public Toy {
   public:
    void configure_sharded_model() override {
      register_module("half", torch::nn::Linear(1, 1));
      throw std::runtime_error("no more");
    }
  };
  Trainer trainer(quiet(1));
  auto module = std::make_shared<Broken>();
  EXPECT_THROW(trainer.fit(module, singles({1})), std::runtime_error);
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { trainer.fit(module, singles({1})); }),
                       "Make a new module"));
}

TEST(Optimizers, WithATensorThatIsNoParameterAreRefused) {
  auto module = std::make_shared<Toy>();
  auto stray = torch::zeros({3}, torch::requires_grad());
  module->optimizers = [&](Toy& toy) {
    return OptimizerConfigs(SGD::make({toy.w, stray}, {.lr = 1}));
  };
  Trainer trainer(quiet(1));
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { trainer.fit(module, singles({1})); }),
                       "holds a tensor of shape [3] that is no parameter of the module"));
}

TEST(Precision, LeavesIntegerBuffersAlone) {
  class Counts : public Toy {
   public:
    Counts() : Toy({.lr = 1, .w0 = 0, .dtype = torch::kFloat32}) {
      count = register_buffer("count", torch::full({}, 1001, torch::kLong));
      mean = register_buffer("mean", torch::zeros({}));
    }
    at::Tensor count, mean;
  };
  auto options = quiet(1);
  options.precision = Precision::kBf16True;
  auto module = std::make_shared<Counts>();
  Trainer(options).fit(module, singles({1}));
  EXPECT_EQ(module->named_buffers()["count"].scalar_type(), torch::kLong);
  EXPECT_EQ(module->named_buffers()["count"].item<std::int64_t>(), 1001);
  EXPECT_EQ(module->named_buffers()["mean"].scalar_type(), torch::kBFloat16);
}

TEST(Precision, OfTheDefaultDtypeHoldsForWorkersTooAndIsPutBack) {
  struct Noise {
    std::int64_t size() const { return 64; }
    Batch get(std::int64_t, at::Generator generator) const {
      return {{torch::randn({1}, generator)}};
    }
  };
  const auto values = [](int workers) {
    auto options = quiet(1);
    options.precision = Precision::k64True;
    std::vector<double> seen;
    auto module = std::make_shared<Toy>();
    module->step = [&](Toy& toy, Batch& batch, std::int64_t) -> StepOutput {
      seen.push_back(batch.tensors[0].sum().item<double>());
      return toy.loss(batch);
    };
    Trainer(options).fit(module,
                         DataLoader(Noise(), {.batch_size = 1, .num_workers = workers, .seed = 3}));
    return seen;
  };
  EXPECT_EQ(values(0), values(3));
  EXPECT_EQ(torch::get_default_dtype_as_scalartype(), torch::kFloat);
}

TEST(MaxSteps, OfMinusOneAloneMeansThousandEpochs) {
  auto sink = std::make_shared<CapturingSink>();
  auto options = quiet(1, sink);
  options.max_epochs.reset();
  options.max_steps = -1;
  options.limit_train_batches = batches(0);
  Trainer trainer(options);
  trainer.fit(std::make_shared<Toy>(), singles({1}));
  EXPECT_EQ(trainer.context().plan().max_epochs, 1000);
}

TEST(Stream, ThatIsEmptyInItsSecondEpochIsAnErrorAlsoWithALimit) {
  auto options = quiet(3);
  options.limit_train_batches = batches(5);
  auto rest = std::make_shared<int>(2);
  auto stream = stream_loader([rest] {
    return [rest]() -> std::optional<Batch> {
      if ((*rest)-- <= 0) return std::nullopt;
      return column({1});
    };
  });
  Trainer trainer(options);
  EXPECT_TRUE(contains(message_of<DataError>([&] { trainer.fit(std::make_shared<Toy>(), stream); }),
                       "yielded no batch in epoch 1"));
}

}  // namespace
}  // namespace fulmen
