#include <fstream>
#include <sstream>

#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

using Metrics = std::map<std::string, double>;

// --- What reaches the loggers, and when ---

std::vector<std::int64_t> steps_of(const CapturingLogger& logger, const std::string& name) {
  std::vector<std::int64_t> steps;
  for (const auto& record : logger.records) {
    if (record.metrics.contains(name)) steps.push_back(record.step);
  }
  return steps;
}

std::shared_ptr<CapturingLogger> logged_run(std::int64_t every, std::int64_t micro_batches = 1) {
  auto logger = std::make_shared<CapturingLogger>();
  auto options = quiet(2);
  options.loggers = std::vector<std::shared_ptr<Logger>>{logger};
  options.log_every_n_steps = every;
  options.accumulate_grad_batches = micro_batches;
  auto module = std::make_shared<Toy>();
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    toy.log("x", batch.tensors[0].mean(), {.on_epoch = true});
    return toy.loss(batch);
  };
  Trainer(options).fit(module, singles({1, 2, 3, 4, 5}), singles({1}));
  return logger;
}

TEST(Loggers, GetStepValuesEveryNStepsAndEpochValuesAtTheEnd) {
  using Steps = std::vector<std::int64_t>;
  auto logger = logged_run(3);
  EXPECT_EQ(steps_of(*logger, "x_step"), (Steps{2, 5, 8}));
  EXPECT_EQ(steps_of(*logger, "x_epoch"), (Steps{4, 9}));
  EXPECT_EQ(steps_of(*logger, "val_loss"), (Steps{4, 9}));
  EXPECT_EQ(logger->records[0].metrics, (Metrics{{"x_step", 3}, {"epoch", 0}}));

  logger = logged_run(1, 2);  // Three steps an epoch: the axis is steps, not batches.
  EXPECT_EQ(steps_of(*logger, "x_step"), (Steps{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(steps_of(*logger, "x_epoch"), (Steps{2, 5}));
  EXPECT_EQ(logger->records[0].metrics.at("x_step"), 2);  // Of the window's last micro-batch.

  logger = logged_run(0);
  EXPECT_EQ(steps_of(*logger, "x_step"), Steps{});
  EXPECT_EQ(steps_of(*logger, "x_epoch"), (Steps{4, 9}));
}

TEST(Loggers, MetricNamedStepIsTheAxis) {
  auto logger = std::make_shared<CapturingLogger>();
  auto options = quiet();
  options.loggers = std::vector<std::shared_ptr<Logger>>{logger};
  options.log_every_n_steps = 1;
  auto module = std::make_shared<Toy>();
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    toy.log("step", 100.0 + static_cast<double>(toy.global_step()));
    toy.log("x", 1.0);
    return toy.loss(batch);
  };
  Trainer(options).fit(module, singles({1, 1}));
  ASSERT_EQ(logger->records.size(), 2u);
  EXPECT_EQ(logger->records[1].step, 101);
  EXPECT_EQ(logger->records[1].metrics, (Metrics{{"x", 1}}));
}

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Loggers, CsvFileOfAShortFit) {
  TemporaryDirectory folder;
  auto options = quiet(2);
  options.loggers = {};
  options.default_root_dir = folder.path();
  options.log_every_n_steps = 1;
  Trainer trainer(options);
  auto module = std::make_shared<Toy>(ToyOptions{.lr = 0.5});
  module->hyperparameters = {{"lr", 0.5}};
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    auto loss = toy.loss(batch);
    toy.log("loss", loss);
    return loss;
  };
  trainer.fit(module, singles({1, 2}), singles({4}));
  const auto logs = folder.path() / "fulmen_logs" / "version_0";
  // w: -0.5, -1.5; -2, -3. The loss is w * x before each step, that of validation 4 w after two.
  EXPECT_EQ(text_of(logs / "metrics.csv"),
            "step,epoch,loss,val_loss\n"
            "0,0,0,\n"
            "1,0,-1,\n"
            "1,0,,-6\n"
            "2,1,-1.5,\n"
            "3,1,-4,\n"
            "3,1,,-12\n");
  EXPECT_TRUE(contains(text_of(logs / "hparams.json"), "\"lr\""));
}

TEST(Loggers, FailureToWriteIsAnErrorOfTheRun) {
  class Fails : public CapturingLogger {
   public:
    void save() override { throw Error("the disk is full"); }
  };
  auto options = quiet();
  options.loggers = std::vector<std::shared_ptr<Logger>>{std::make_shared<Fails>()};
  Trainer trainer(options);
  auto module = std::make_shared<Toy>();
  EXPECT_EQ(message_of<Error>([&] { trainer.fit(module, singles({1})); }), "the disk is full");
  EXPECT_EQ(module->value(), -1);
}

TEST(Results, AreReturnedAndPrintedAsATable) {
  Trainer trainer(quiet());
  auto module = std::make_shared<Toy>(ToyOptions{.w0 = 0.5});
  ::testing::internal::CaptureStdout();
  const auto results = trainer.test(module, {singles({1, 2}), singles({8})});
  const auto printed = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(
      results,
      (EvalResults{{{"test_loss/dataloader_idx_0", 0.75}}, {{"test_loss/dataloader_idx_1", 4}}}));
  for (const char* part :
       {"Test metric", "DataLoader 0", "DataLoader 1", "test_loss", "0.75", "4"}) {
    EXPECT_TRUE(contains(printed, part));
  }
  ::testing::internal::CaptureStdout();
  trainer.test(module, singles({1}), {.verbose = false});
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

}  // namespace
}  // namespace fulmen
