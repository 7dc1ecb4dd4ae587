#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include "tests/support/sanitizers.h"
#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

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
extern "C" void count_signal(int) {
  ++handled;
}

TEST(Signals, StopTheRunAndAreThenPassedOn) {
  const auto previous = std::signal(SIGTERM, count_signal);
  for (bool caught : {true, false}) {
    handled = 0;
    std::string interrupted;
    auto options = quiet(3);
    options.signals = caught ? SignalHandling::kSaveAndStop : SignalHandling::kNone;
    options.callbacks = {LambdaCallback::make(
        {.on_interrupt = [&](TrainerContext&, ModuleBase&, std::string_view reason) {
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
  options.callbacks = {LambdaCallback::make(
      {.on_fit_end = [&](TrainerContext&, ModuleBase&) { ++fit_ends; },
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
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer keeps freed memory";
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
      {.on_train_batch_end =
           [&](TrainerContext& context, ModuleBase&, const StepOutput&, BatchView, std::int64_t) {
             if (context.progress().global_step == 2000 && before == 0) before = resident_kib();
           }})};
  Trainer trainer(options);
  auto module = std::make_shared<Toy>(ToyOptions{.lr = 1e-6});
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    auto loss = toy.loss(batch);
    toy.log("loss", loss, {.prog_bar = true, .on_epoch = true});
    return loss;
  };
  DataLoader loader(tensor_dataset({torch::ones({64, 16}, torch::kFloat64)}),
                    {.batch_size = 4, .shuffle = true});
  trainer.fit(module, loader, loader);
  ASSERT_GT(before, 0);
  // A leak of one small tensor (some 200 bytes) a step would be 2 MB.
  EXPECT_LT(resident_kib() - before, 1500);
}

}  // namespace
}  // namespace fulmen
