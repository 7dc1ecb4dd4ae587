#include <atomic>
#include <cmath>
#include <csignal>
#include <fstream>
#include <thread>

#include "tests/trainer/toy.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FULMEN_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FULMEN_SANITIZED 1
#endif
#endif

namespace fulmen {
namespace {

struct BadOption {
  const char* name;
  std::function<void(TrainerOptions&)> set;
  std::vector<std::string> says;  ///< The option, its value, what is allowed.
};

std::ostream& operator<<(std::ostream& out, const BadOption& option) { return out << option.name; }

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
        BadOption{"devices_0", [](auto& o) { o.devices = 0; }, {"devices must be 1", "got 0"}},
        BadOption{"devices_2", [](auto& o) { o.devices = 2; }, {"devices must be 1", "got 2"}},
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
    [](const auto& info) { return std::string(info.param.name); });

TEST(TrainerOptions, TwoProgressBarsAreRefused) {
  auto options = quiet();
  options.enable_progress_bar = true;
  options.callbacks = {ProgressBar::make(), ProgressBar::make()};
  EXPECT_TRUE(contains(message_of<ConfigError>([&] { Trainer trainer(options); }), "2 progress bars"));
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
  for (const char* text : {"", "1:2:3", "0:24:0:0", "0:0:60:0", "0:0:0:60", "0:0:0:-1", "0:0:0:1x", "a:b:c:d", "0-0-0-1"}) {
    EXPECT_TRUE(contains(message_of<ConfigError>([&] { parse_duration(text); }), "DD:HH:MM:SS")) << text;
  }
}

TEST(RunLength, NoLimitMeansThousandEpochsAndAWarning) {
  auto sink = std::make_shared<CapturingSink>();
  auto options = quiet(1, sink);
  options.max_epochs = {};
  Trainer trainer(options);
  trainer.fit(std::make_shared<Toy>(), singles({1}));
  EXPECT_EQ(trainer.progress().epoch, 1000);
  EXPECT_EQ(sink->count(LogLevel::kWarning, "1000 epochs"), 1) << sink->all();
}

TEST(RunLength, MaxStepsEndsInsideAnEpoch) {
  auto options = quiet(-1);
  options.max_steps = 4;
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  const auto result = trainer.fit(module, singles({1, 1, 1}));
  EXPECT_EQ(trainer.progress().global_step, 4);
  EXPECT_EQ(trainer.progress().total_batches, 4);
  EXPECT_EQ(module->value(), -4);
  EXPECT_EQ(result.status, RunStatus::kFinished);
  EXPECT_EQ(result.stop_reason, "");
}

TEST(RunLength, MaxStepsCountsStepsAndNotMicroBatches) {
  auto options = quiet(-1);
  options.max_steps = 2;
  options.accumulate_grad_batches = 3;
  Trainer trainer(options);
  trainer.fit(std::make_shared<Toy>(), singles({1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(trainer.progress().total_batches, 6);
}

TEST(RunLength, ZeroEpochsOrStepsTrainNothing) {
  for (bool epochs : {true, false}) {
    auto options = quiet(epochs ? 0 : -1);
    if (!epochs) options.max_steps = 0;
    Trainer trainer(options);
    auto module = std::make_shared<Toy>();
    EXPECT_EQ(trainer.fit(module, singles({1})).status, RunStatus::kFinished);
    EXPECT_EQ(module->training_steps, 0);
  }
}

/// Asks to stop after each batch from `first` on.
std::shared_ptr<Callback> stops_after(std::int64_t first) {
  return LambdaCallback::make(
      {.on_train_batch_end = [first](TrainerContext& context, ModuleBase&, const StepOutput&, BatchView, std::int64_t) {
        if (context.progress().total_batches >= first) context.stop_training("enough");
      }});
}

TEST(RunLength, StopTrainingEndsAfterTheBatchAndIsReported) {
  auto options = quiet(5);
  options.callbacks = {stops_after(4)};
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  const auto result = trainer.fit(module, singles({1, 1, 1}), singles({1}));
  EXPECT_EQ(trainer.progress().total_batches, 4);
  EXPECT_EQ(result.stop_reason, "enough");
  EXPECT_EQ(result.status, RunStatus::kFinished);
  EXPECT_EQ(module->validation_steps, 1 + 1 + 1);  // Sanity check, epoch 0, and the one that was cut.
}

TEST(RunLength, MinimumsHoldAStopBack) {
  auto options = quiet(5);
  options.callbacks = {stops_after(1)};
  options.min_epochs = 2;
  Trainer by_epochs(options);
  by_epochs.fit(std::make_shared<Toy>(), singles({1, 1, 1}));
  EXPECT_EQ(by_epochs.progress().total_batches, 6);

  options.min_epochs = {};
  options.min_steps = 5;
  Trainer by_steps(options);
  by_steps.fit(std::make_shared<Toy>(), singles({1, 1, 1}));
  EXPECT_EQ(by_steps.progress().total_batches, 5);
}

std::shared_ptr<EarlyStopping> stops_on_val_loss() {
  return EarlyStopping::make({.monitor = "val_loss", .patience = 1});
}

/// Runs with these validation losses, one an epoch; returns the epochs that ran.
std::int64_t epochs_with_losses(std::vector<double> losses, std::optional<std::int64_t> min_epochs) {
  auto options = quiet(static_cast<std::int64_t>(losses.size()));
  options.min_epochs = min_epochs;
  options.num_sanity_val_steps = 0;
  options.callbacks = {stops_on_val_loss()};
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  module->eval_step = [&](Toy& toy, Batch&, std::int64_t, std::int64_t) {
    toy.log("val_loss", losses.at(static_cast<std::size_t>(toy.current_epoch())));
  };
  trainer.fit(module, singles({1}), singles({1}));
  return trainer.progress().epoch;
}

TEST(RunLength, EarlyStoppingHeldBackByMinEpochsForgetsWhenItImproves) {
  const std::vector<double> losses = {1, 2, 2, 0.5, 0.4, 0.3};
  EXPECT_EQ(epochs_with_losses(losses, {}), 2);
  EXPECT_EQ(epochs_with_losses(losses, 5), 6);  // Goes on while it improves.
  EXPECT_EQ(epochs_with_losses({1, 2, 2, 2, 2, 2}, 4), 4);
}

TEST(RunLength, MaxTimeEndsTheRun) {
  auto options = quiet(-1);
  options.max_time = Seconds(0.05);
  Trainer trainer(options);
  const auto start = std::chrono::steady_clock::now();
  const auto result = trainer.fit(std::make_shared<Toy>(), singles({1, 1}));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50));
  EXPECT_NE(result.stop_reason, "");
  EXPECT_EQ(result.status, RunStatus::kFinished);
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
  options.val_check_interval = every_n_batches(10);  // More than there will be: this run ignores it.
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
  return DataLoader(tensor_dataset({torch::arange(10, torch::kFloat64)}), {.batch_size = 2, .shuffle = true, .seed = 1});
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
        epochs[static_cast<std::size_t>(toy.current_epoch())] += std::to_string(batch.tensors[0][i].item<int>());
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
  auto options = TrainerOptions{.default_root_dir = folder.path(), .max_epochs = 2, .barebones = true};
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
    return std::vector<double>{static_cast<double>(module->trained), static_cast<double>(module->validated), module->value()};
  };
  EXPECT_EQ(run(0), (std::vector<double>{1, 1, -5}));
  EXPECT_EQ(run(2), (std::vector<double>{3, 3, -(1 + 1 + 2 + 2 + 3)}));
  EXPECT_EQ(run(1), (std::vector<double>{5, 5, -(1 + 2 + 3 + 4 + 5)}));  // faults.md 90: builds = epochs.
}

TEST(GlobalSwitches, ArePutBackAlsoAfterAnException) {
  auto& context = at::globalContext();
  for (bool throws : {false, true}) {
    auto options = quiet();
    options.deterministic = Deterministic::kWarn;
    options.benchmark = !context.benchmarkCuDNN();
    options.detect_anomaly = true;
    Trainer trainer(options);
    auto module = std::make_shared<Toy>();
    int checked = 0;
    module->step = [&](Toy& toy, Batch& batch, std::int64_t) {
      EXPECT_TRUE(context.deterministicAlgorithms());
      EXPECT_TRUE(context.deterministicAlgorithmsWarnOnly());
      EXPECT_EQ(context.benchmarkCuDNN(), *options.benchmark);
      EXPECT_TRUE(torch::autograd::AnomalyMode::is_enabled());
      ++checked;
      if (throws) throw std::runtime_error("stop");
      return toy.loss(batch);
    };
    if (throws) {
      EXPECT_THROW(trainer.fit(module, singles({1})), std::runtime_error);
    } else {
      trainer.fit(module, singles({1}));
    }
    EXPECT_EQ(checked, 1);
    EXPECT_FALSE(context.deterministicAlgorithms());
    EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly());
    EXPECT_NE(context.benchmarkCuDNN(), *options.benchmark);
    EXPECT_FALSE(torch::autograd::AnomalyMode::is_enabled());
    EXPECT_EQ(at::get_default_dtype(), caffe2::TypeMeta::Make<float>());
  }
}

TEST(GlobalSwitches, DeterministicUnsetLeavesWhatTheUserSet) {
  at::globalContext().setDeterministicAlgorithms(true, false);
  auto module = std::make_shared<Toy>();
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
    return toy.loss(batch);
  };
  Trainer(quiet()).fit(module, singles({1}));
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST(Seed, MakesARunRepeatable) {
  const auto draw = [](std::optional<std::uint64_t> seed) {
    auto options = quiet();
    options.seed = seed;
    auto module = std::make_shared<Toy>();
    double drawn = 0;
    module->step = [&](Toy& toy, Batch& batch, std::int64_t) {
      drawn = torch::rand({}, torch::kFloat64).item<double>();
      return toy.loss(batch);
    };
    Trainer(options).fit(module, singles({1}));
    return drawn;
  };
  EXPECT_EQ(draw(4), draw(4));
  EXPECT_NE(draw(4), draw(5));
  EXPECT_NE(draw({}), draw({}));
}

std::atomic<int> handled = 0;
extern "C" void count_signal(int) { ++handled; }

TEST(Signals, StopTheRunAndAreThenPassedOn) {
  const auto previous = std::signal(SIGTERM, count_signal);
  for (bool caught : {true, false}) {
    handled = 0;
    std::string interrupted;
    auto options = quiet(3);
    options.signals = caught ? SignalHandling::kSaveAndStop : SignalHandling::kNone;
    options.callbacks = {LambdaCallback::make({.on_interrupt = [&](TrainerContext&, ModuleBase&, std::string_view reason) {
      EXPECT_EQ(handled, 0);  // It comes to the user's handler when all is saved.
      interrupted = reason;
    }})};
    Trainer trainer(options);
    auto module = std::make_shared<Toy>();
    module->step = [&](Toy& toy, Batch& batch, std::int64_t) {
      if (toy.training_steps == 2) std::raise(SIGTERM);
      return toy.loss(batch);
    };
    const auto result = trainer.fit(module, singles({1, 1}));
    EXPECT_EQ(handled, 1) << caught;
    EXPECT_EQ(module->value(), caught ? -2 : -6) << caught;
    EXPECT_EQ(interrupted, caught ? "SIGTERM" : "") << caught;
    EXPECT_EQ(result.status, caught ? RunStatus::kInterrupted : RunStatus::kFinished) << caught;
    EXPECT_EQ(result.stop_reason, caught ? "SIGTERM" : "") << caught;
    std::raise(SIGTERM);  // The handler of before is in place again.
    EXPECT_EQ(handled, 2) << caught;
  }
  std::signal(SIGTERM, previous);
}

TEST(RequestStop, FromAnotherThreadStopsAtTheNextBatch) {
  auto options = quiet(-1);
  options.max_steps = 1000000;
  int fit_ends = 0, epoch_ends = 0;
  options.callbacks = {LambdaCallback::make({.on_fit_end = [&](TrainerContext&, ModuleBase&) { ++fit_ends; },
                                             .on_train_epoch_end = [&](TrainerContext&, ModuleBase&) { ++epoch_ends; }})};
  Trainer trainer(options);
  trainer.request_stop("before any run: does nothing");
  auto module = std::make_shared<Toy>();
  std::thread other;
  std::int64_t at = 0;
  module->step = [&](Toy& toy, Batch& batch, std::int64_t) {
    if (toy.training_steps == 3) {
      other = std::thread([&] { trainer.request_stop("the user left"); });
      other.join();
      at = toy.trainer().progress().total_batches;
    }
    return toy.loss(batch);
  };
  const auto result = trainer.fit(module, singles({1, 1, 1, 1, 1}));
  EXPECT_EQ(result.status, RunStatus::kInterrupted);
  EXPECT_EQ(result.stop_reason, "the user left");
  EXPECT_EQ(trainer.progress().total_batches, at + 1);
  EXPECT_EQ(module->value(), -3);
  EXPECT_EQ(fit_ends, 0);
  EXPECT_EQ(epoch_ends, 0);

  module->step = {};  // The next run starts fresh.
  auto again = std::make_shared<Toy>();
  Trainer other_trainer(quiet(2));
  other_trainer.fit(again, singles({1}));
  EXPECT_EQ(again->value(), -2);
}

TEST(RequestStop, InsideValidationLeavesTheRestOut) {
  Trainer trainer(quiet(3));
  auto module = std::make_shared<Toy>();
  module->eval_step = [&](Toy& toy, Batch&, std::int64_t batch_idx, std::int64_t) {
    if (!toy.trainer().sanity_checking() && batch_idx == 1) trainer.request_stop();
  };
  const auto result = trainer.fit(module, singles({1, 1}), singles({1, 1, 1, 1}));
  EXPECT_EQ(result.status, RunStatus::kInterrupted);
  EXPECT_EQ(module->validation_steps, 2 + 2);
  EXPECT_EQ(module->training_steps, 2);
}

TEST(Memory, IsFlatOverTenThousandSteps) {
#ifdef FULMEN_SANITIZED
  GTEST_SKIP() << "a sanitizer keeps freed memory";
#endif
  const auto resident_kib = [] {
    std::ifstream status("/proc/self/statm");
    long total = 0, resident = 0;
    status >> total >> resident;
    return resident * 4;
  };
  auto options = quiet(-1);
  options.max_steps = 12000;
  options.accumulate_grad_batches = 2;
  options.gradient_clip_val = 1;
  options.log_every_n_steps = 10;
  long before = 0;
  options.callbacks = {LambdaCallback::make(
      {.on_train_batch_end = [&](TrainerContext& context, ModuleBase&, const StepOutput&, BatchView, std::int64_t) {
        if (context.progress().global_step == 2000 && before == 0) before = resident_kib();
      }})};
  Trainer trainer(options);
  auto module = std::make_shared<Toy>(ToyOptions{.lr = 1e-6});
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    auto loss = toy.loss(batch);
    toy.log("loss", loss, {.prog_bar = true, .on_epoch = true});
    return loss;
  };
  DataLoader loader(tensor_dataset({torch::ones({64, 16}, torch::kFloat64)}), {.batch_size = 4, .shuffle = true});
  trainer.fit(module, loader, loader);
  ASSERT_GT(before, 0);
  // A leak of one small tensor (some 200 bytes) a step would be 2 MB.
  EXPECT_LT(resident_kib() - before, 1500);
}

}  // namespace
}  // namespace fulmen
