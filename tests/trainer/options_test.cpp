#include <cmath>

#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

struct BadOption {
  const char* name;
  std::function<void(TrainerOptions&)> set;
  std::vector<std::string> says;  ///< The option, its value, what is allowed.
};

std::ostream& operator<<(std::ostream& out, const BadOption& option) {
  return out << option.name;
}

class Refused : public ::testing::TestWithParam<BadOption> {};

TEST_P(Refused, NamesTheOptionItsValueAndWhatIsAllowed) {
  auto options = quiet();
  GetParam().set(options);
  const auto message = message_of<ConfigError>([&] { Trainer trainer(options); });
  EXPECT_TRUE(contains(message, "TrainerOptions: "));
  for (const auto& part : GetParam().says) EXPECT_TRUE(contains(message, part));
}

const double kNaN = std::nan("");
const double kInf = INFINITY;

INSTANTIATE_TEST_SUITE_P(
    TrainerOptions, Refused,
    ::testing::Values(
        BadOption{"accelerator", [](auto& o) { o.accelerator = "tpu"; }, {"accelerator", "\"tpu\"", "\"auto\", \"cpu\""}},
        BadOption{"accelerator_cuda", [](auto& o) { o.accelerator = "cuda"; }, {"accelerator", "\"cuda\"", "\"cpu\""}},
        BadOption{"accelerator_null", [](auto& o) { o.accelerator = std::shared_ptr<Accelerator>(); }, {"accelerator"}},
        BadOption{"devices_0", [](auto& o) { o.devices = 0; }, {"devices must be at least 1", "got 0"}},
        BadOption{"num_nodes_0", [](auto& o) { o.num_nodes = 0; }, {"num_nodes must be at least 1", "got 0"}},
        BadOption{"callbacks", [](auto& o) { o.callbacks = {nullptr}; }, {"callbacks", "null"}},
        BadOption{"loggers", [](auto& o) { o.loggers = std::vector<std::shared_ptr<Logger>>{nullptr}; }, {"loggers", "null"}},
        BadOption{"max_epochs", [](auto& o) { o.max_epochs = -2; }, {"max_epochs", "got -2", "at least -1"}},
        BadOption{"max_steps", [](auto& o) { o.max_steps = -3; }, {"max_steps", "got -3", "at least -1"}},
        BadOption{"min_epochs", [](auto& o) { o.min_epochs = -1; }, {"min_epochs", "got -1", "at least 0"}},
        BadOption{"min_steps", [](auto& o) { o.min_steps = -1; }, {"min_steps", "got -1", "at least 0"}},
        BadOption{"min_above_max_epochs",
                  [](auto& o) {
                    o.min_epochs = 7;
                    o.max_epochs = 5;
                  },
                  {"min_epochs", "max_epochs", "7 and 5"}},
        BadOption{"min_above_max_steps",
                  [](auto& o) {
                    o.min_steps = 7;
                    o.max_steps = 5;
                  },
                  {"min_steps", "max_steps", "7 and 5"}},
        BadOption{"max_time_0", [](auto& o) { o.max_time = Seconds(0); }, {"max_time", "got 0", "longer than 0"}},
        BadOption{"max_time_negative", [](auto& o) { o.max_time = Seconds(-1); }, {"max_time", "got -1"}},
        BadOption{"max_time_nan", [](auto& o) { o.max_time = Seconds(kNaN); }, {"max_time", "got nan"}},
        BadOption{"limit_train_fraction",
                  [](auto& o) { o.limit_train_batches = fraction(1.5); },
                  {"limit_train_batches", "got 1.5", "between 0 and 1", "fulmen::batches"}},
        BadOption{"limit_train_nan",
                  [](auto& o) { o.limit_train_batches = fraction(kNaN); },
                  {"limit_train_batches", "got nan"}},
        BadOption{"limit_train_batches",
                  [](auto& o) { o.limit_train_batches = batches(-1); },
                  {"limit_train_batches", "got -1", "at least 0"}},
        BadOption{"limit_val_fraction",
                  [](auto& o) { o.limit_val_batches = fraction(-0.5); },
                  {"limit_val_batches", "got -0.5"}},
        BadOption{"limit_val_batches", [](auto& o) { o.limit_val_batches = batches(-2); }, {"limit_val_batches", "got -2"}},
        BadOption{"limit_test", [](auto& o) { o.limit_test_batches = fraction(2); }, {"limit_test_batches", "got 2"}},
        BadOption{"limit_predict",
                  [](auto& o) { o.limit_predict_batches = fraction(2); },
                  {"limit_predict_batches", "got 2"}},
        BadOption{"overfit", [](auto& o) { o.overfit_batches = batches(-1); }, {"overfit_batches", "got -1"}},
        BadOption{"fast_dev_run", [](auto& o) { o.fast_dev_run = -1; }, {"fast_dev_run", "got -1", "at least 0"}},
        BadOption{"interval_fraction_0",
                  [](auto& o) { o.val_check_interval = every_fraction(0); },
                  {"val_check_interval", "got 0", "greater than 0 and at most 1"}},
        BadOption{"interval_fraction_above",
                  [](auto& o) { o.val_check_interval = every_fraction(10); },
                  {"val_check_interval", "got 10", "fulmen::every_n_batches"}},
        BadOption{"interval_fraction_nan",
                  [](auto& o) { o.val_check_interval = every_fraction(kNaN); },
                  {"val_check_interval", "got nan"}},
        BadOption{"interval_batches",
                  [](auto& o) { o.val_check_interval = every_n_batches(0); },
                  {"val_check_interval", "got 0", "at least 1"}},
        BadOption{"interval_across",
                  [](auto& o) { o.val_check_interval = every_n_batches_across_epochs(-1); },
                  {"val_check_interval", "got -1", "at least 1"}},
        BadOption{"interval_steps",
                  [](auto& o) { o.val_check_interval = every_n_steps(0); },
                  {"val_check_interval", "got 0", "at least 1"}},
        BadOption{"interval_time",
                  [](auto& o) { o.val_check_interval = every_duration(Seconds(0)); },
                  {"val_check_interval", "got 0", "longer than 0"}},
        BadOption{"interval_time_nan",
                  [](auto& o) { o.val_check_interval = every_duration(Seconds(kNaN)); },
                  {"val_check_interval", "got nan"}},
        BadOption{"check_val",
                  [](auto& o) { o.check_val_every_n_epoch = 0; },
                  {"check_val_every_n_epoch", "got 0", "at least 1"}},
        BadOption{"sanity", [](auto& o) { o.num_sanity_val_steps = -2; }, {"num_sanity_val_steps", "got -2", "at least -1"}},
        BadOption{"log_every", [](auto& o) { o.log_every_n_steps = -1; }, {"log_every_n_steps", "got -1", "at least 0"}},
        BadOption{"accumulate",
                  [](auto& o) { o.accumulate_grad_batches = 0; },
                  {"accumulate_grad_batches", "got 0", "at least 1"}},
        BadOption{"clip_0", [](auto& o) { o.gradient_clip_val = 0; }, {"gradient_clip_val", "got 0", "greater than 0"}},
        BadOption{"clip_negative", [](auto& o) { o.gradient_clip_val = -1; }, {"gradient_clip_val", "got -1"}},
        BadOption{"clip_nan", [](auto& o) { o.gradient_clip_val = kNaN; }, {"gradient_clip_val", "got nan"}},
        BadOption{"clip_inf", [](auto& o) { o.gradient_clip_val = kInf; }, {"gradient_clip_val", "got inf", "finite"}},
        BadOption{"reload",
                  [](auto& o) { o.reload_dataloaders_every_n_epochs = -1; },
                  {"reload_dataloaders_every_n_epochs", "got -1", "at least 0"}},
        BadOption{"barebones_logger",
                  [](auto& o) {
                    o.barebones = true;
                    o.loggers = std::vector<std::shared_ptr<Logger>>{std::make_shared<CapturingLogger>()};
                  },
                  {"barebones", "loggers holds 1"}},
        BadOption{"barebones_callback",
                  [](auto& o) {
                    o.barebones = true;
                    o.callbacks = {std::make_shared<ValidationLog>()};
                  },
                  {"barebones", "callbacks holds 1"}},
        BadOption{"checkpointing",
                  [](auto& o) { o.callbacks = {ModelCheckpoint::make()}; },
                  {"enable_checkpointing is false", "ModelCheckpoint"}},
        BadOption{"progress_bar",
                  [](auto& o) { o.callbacks = {ProgressBar::make()}; },
                  {"enable_progress_bar is false", "progress bar"}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(TrainerOptions, TwoProgressBarsAreRefused) {
  auto options = quiet();
  options.enable_progress_bar = true;
  options.callbacks = {ProgressBar::make(), ProgressBar::make()};
  EXPECT_TRUE(
      contains(message_of<ConfigError>([&] { Trainer trainer(options); }), "2 progress bars"));
}

TEST(TrainerOptions, EdgesOfWhatIsAllowedAreAccepted) {
  auto options = quiet();
  options.accelerator = "cpu";
  options.max_epochs = -1;
  options.max_steps = 0;
  options.limit_train_batches = fraction(0);
  options.limit_val_batches = fraction(1);
  options.val_check_interval = every_fraction(1);
  options.num_sanity_val_steps = -1;
  options.log_every_n_steps = 0;
  EXPECT_NO_THROW(Trainer trainer(options));
  options.accelerator = cpu_accelerator();
  EXPECT_NO_THROW(Trainer trainer(options));
}

TEST(TrainerOptions, DurationsAreReadAndBadOnesRefused) {
  EXPECT_EQ(parse_duration("00:00:00:01").count(), 1);
  EXPECT_EQ(parse_duration("1:02:03:04.5").count(), 86400 + 7200 + 180 + 4.5);
  for (const char* text : {"",
                           "1:2:3",
                           "0:24:0:0",
                           "0:0:60:0",
                           "0:0:0:60",
                           "0:0:0:-1",
                           "0:0:0:1x",
                           "a:b:c:d",
                           "0-0-0-1"}) {
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { parse_duration(text); }), "DD:HH:MM:SS"))
        << text;
  }
}

TEST(FastDevRun, RunsThatManyBatchesOfEachStageOnceAndLeavesNoFiles) {
  TemporaryDirectory folder;
  const auto logger = std::make_shared<CapturingLogger>();
  TrainerOptions options = quiet(50);
  options.default_root_dir = folder.path();
  options.enable_checkpointing = true;
  options.loggers = std::vector<std::shared_ptr<Logger>>{logger};
  options.fast_dev_run = 2;
  options.limit_val_batches = batches(0);
  options.check_val_every_n_epoch = 3;
  options.val_check_interval =
      every_n_batches(10);  // More than there will be: this run ignores it.
  options.callbacks = {ModelCheckpoint::make({.dirpath = folder.path() / "ckpt"})};
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  trainer.fit(module, singles({1, 1, 1, 1}), singles({1, 1, 1}));
  EXPECT_EQ(module->training_steps, 2);
  EXPECT_EQ(module->validation_steps, 2);
  EXPECT_EQ(trainer.progress().epoch, 1);
  EXPECT_EQ(trainer.predict(module, singles({1, 1, 1})).size(), 2u);
  EXPECT_TRUE(logger->records.empty());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

/// Rows 0..9, shuffled.
DataLoader<Batch> shuffled() {
  return DataLoader(tensor_dataset({torch::arange(10, torch::kFloat64)}),
                    {.batch_size = 2, .shuffle = true, .seed = 1});
}

TEST(OverfitBatches, TheSameFewBatchesComeInEachEpochInTheSameOrder) {
  for (bool overfit : {true, false}) {
    auto options = quiet(3);
    options.num_sanity_val_steps = 0;
    if (overfit) {
      options.overfit_batches = batches(2);
    } else {
      options.limit_train_batches = batches(2);
    }
    Trainer trainer(options);
    auto module = std::make_shared<Toy>();
    std::vector<std::string> epochs(3);
    module->step = [&](Toy& toy, Batch& batch, std::int64_t) {
      for (std::int64_t i = 0; i < 2; ++i) {
        epochs[static_cast<std::size_t>(toy.current_epoch())] +=
            std::to_string(batch.tensors[0][i].item<int>());
      }
      return toy.loss(batch);
    };
    trainer.fit(module, shuffled(), singles({1, 1, 1, 1}));
    EXPECT_EQ(epochs[0].size(), 4u);
    if (overfit) {
      EXPECT_EQ(epochs[0], epochs[1]);
      EXPECT_EQ(epochs[0], epochs[2]);
      EXPECT_EQ(module->validation_steps, 6);
    } else {
      EXPECT_FALSE(epochs[0] == epochs[1] && epochs[1] == epochs[2]);  // The test can tell.
      EXPECT_EQ(module->validation_steps, 12);
    }
  }
}

TEST(Barebones, NothingIsLoggedSavedOrCheckedButItTrains) {
  TemporaryDirectory folder;
  auto options =
      TrainerOptions{.default_root_dir = folder.path(), .max_epochs = 2, .barebones = true};
  options.log_sink = std::make_shared<CapturingSink>();
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  trainer.fit(module, singles({1, 1}), singles({1}));
  EXPECT_EQ(module->value(), -4);
  EXPECT_EQ(module->validation_steps, 2);  // No sanity check.
  EXPECT_TRUE(trainer.callback_metrics().empty());
  EXPECT_TRUE(trainer.callbacks().empty());
  EXPECT_TRUE(trainer.loggers().empty());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(ReloadDataloaders, LoadersAreAskedForEveryNEpochs) {
  class Source : public Toy {
   public:
    Loader<Batch> train_dataloader() override {
      ++trained;
      return singles({static_cast<double>(trained)});
    }
    Loaders<Batch> val_dataloader() override {
      ++validated;
      return singles({1});
    }
    int trained = 0, validated = 0;
  };
  const auto run = [](std::int64_t every) {
    auto options = quiet(5);
    options.reload_dataloaders_every_n_epochs = every;
    auto module = std::make_shared<Source>();
    Trainer(options).fit(module);
    return std::vector<double>{static_cast<double>(module->trained),
                               static_cast<double>(module->validated),
                               module->value()};
  };
  EXPECT_EQ(run(0), (std::vector<double>{1, 1, -5}));
  EXPECT_EQ(run(2), (std::vector<double>{3, 3, -(1 + 1 + 2 + 2 + 3)}));
  EXPECT_EQ(run(1),
            (std::vector<double>{5, 5, -(1 + 2 + 3 + 4 + 5)}));  // faults.md 90: builds = epochs.
}

}  // namespace
}  // namespace fulmen
