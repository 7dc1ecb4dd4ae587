// Runs that are resumed with another number of data ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/strategies/ddp_ranks.h"
#include "tests/support/run_program.h"

namespace fulmen {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr std::int64_t kSamples = 40;

class Saver final : public Callback {
 public:
  explicit Saver(std::string place, std::int64_t after) : place_(std::move(place)), after_(after) {}
  void on_train_batch_end(
      TrainerContext& trainer, ModuleBase&, const StepOutput&, BatchView, std::int64_t) override {
    if (trainer.progress().total_batches == after_) trainer.save_checkpoint(place_);
  }

 private:
  std::string place_;
  std::int64_t after_;
};

struct Run {
  int data = 1;
  int model = 1;
  std::int64_t batch_size = 12;  ///< Of a rank.
  std::string resume = {};
  std::string save = {};
  std::int64_t save_after = 2;
  std::int64_t window = 1;
};

struct Outcome {
  std::vector<double> weights;                       ///< Of each rank, at the end.
  std::map<std::int64_t, std::vector<double>> seen;  ///< Samples of each epoch, of all ranks.
  std::vector<double> epoch_means;                   ///< Of epoch 0, on each rank.
  std::vector<std::int64_t> steps;
};

Outcome train(const Run& run) {
  std::mutex mutex;
  Outcome outcome;
  run_thread_ranks(run.data * run.model, [&](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(
        {{.name = "data", .size = run.data}, {.name = "model", .size = run.model}}, world);
    auto options =
        quiet(world, {{.name = "data", .size = run.data}, {.name = "model", .size = run.model}});
    options.max_epochs = 2;
    options.accumulate_grad_batches = run.window;
    if (!run.save.empty()) options.callbacks = {std::make_shared<Saver>(run.save, run.save_after)};
    struct Logging final : Toy {
      double mean = -1;
      void on_train_epoch_start() override {
        if (current_epoch() == 1) mean = trainer().callback_metrics().at("x");
      }
    };
    auto module = std::make_shared<Logging>();
    module->step = [&](Toy& toy, Batch& batch, std::int64_t) -> StepOutput {
      const auto values = batch.tensors[0].reshape(-1);
      toy.log("x", values.mean(), {.on_step = false, .on_epoch = true});
      if (mesh.coordinate("model") == 0) {
        const std::lock_guard<std::mutex> lock(mutex);
        for (std::int64_t i = 0; i < values.numel(); ++i)
          outcome.seen[toy.current_epoch()].push_back(values[i].item<double>());
      }
      return toy.loss(batch);
    };
    Trainer trainer(options);
    trainer.fit(module,
                DataLoader(tensor_dataset({torch::arange(kSamples, torch::kDouble)}),
                           {.batch_size = run.batch_size, .shuffle = true, .seed = 3}),
                {},
                {.checkpoint = run.resume});
    const std::lock_guard<std::mutex> lock(mutex);
    outcome.weights.push_back(module->value());
    outcome.epoch_means.push_back(module->mean);
    outcome.steps.push_back(trainer.progress().global_step);
  });
  return outcome;
}

// 40 samples, 12 a step, whatever the number of ranks: the steps are those of one process.
TEST(DdpElastic, GoesOnWithTheSameStepsOnAnotherNumberOfDataRanks) {
  const auto unbroken = train({});
  for (const int before : {1, 2, 3, 4}) {
    const TemporaryFolder folder;
    const auto place = (folder.path() / "inside").string();
    const auto first = train({.data = before, .batch_size = 12 / before, .save = place});
    for (const auto weight : first.weights) EXPECT_NEAR(weight, unbroken.weights[0], 1e-12);
    for (const int after : {1, 2, 3, 4}) {
      const auto second = train({.data = after, .batch_size = 12 / after, .resume = place});
      EXPECT_THAT(second.weights, Each(testing::DoubleNear(unbroken.weights[0], 1e-12)))
          << before << " to " << after;
      EXPECT_THAT(second.steps, Each(8)) << before << " to " << after;
      // The mean over the whole epoch, on all: also of what the old ranks saw.
      EXPECT_THAT(second.epoch_means, Each(testing::DoubleNear((kSamples - 1) / 2.0, 1e-12)))
          << before << " to " << after;
    }
  }
}

// With another joint batch the steps are others, but an epoch still has each sample once.
TEST(DdpElastic, TakesEachSampleOnceAlsoWithAnotherJointBatch) {
  const TemporaryFolder folder;
  const auto place = (folder.path() / "inside").string();
  const auto again = (folder.path() / "again").string();
  train({.data = 2, .batch_size = 6, .save = place, .save_after = 1});
  const auto first = train({.data = 3, .batch_size = 3, .resume = place, .save = again});
  const auto second = train({.data = 1, .batch_size = 5, .resume = again});
  const auto third = train({.data = 3, .batch_size = 3, .resume = again});
  EXPECT_EQ(first.seen.at(0).size(), kSamples - 12);  // 12 were seen before.
  EXPECT_EQ(second.seen.at(0).size(), kSamples - 12 - 9);
  EXPECT_EQ(second.steps[0], 2 + 4 + 8);
  EXPECT_EQ(third.weights, first.weights);  // The same ranks again: bit for bit.
  for (const auto* outcome : {&first, &second, &third}) {
    auto samples = outcome->seen.at(1);
    std::ranges::sort(samples);
    ASSERT_EQ(samples.size(), kSamples);
    for (std::size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(samples[i], static_cast<double>(i));
  }
  const std::set<double> rest(first.seen.at(0).begin(), first.seen.at(0).end());
  EXPECT_EQ(rest.size(), kSamples - 12);
  for (const auto sample : second.seen.at(0)) EXPECT_TRUE(rest.contains(sample)) << sample;
}

TEST(DdpElastic, KeepsModelRanksTogether) {
  const TemporaryFolder folder;
  const auto place = (folder.path() / "inside").string();
  const auto unbroken = train({});
  train({.data = 2, .model = 2, .batch_size = 6, .save = place});
  const auto second = train({.data = 1, .model = 2, .batch_size = 12, .resume = place});
  EXPECT_THAT(second.weights, Each(testing::DoubleNear(unbroken.weights[0], 1e-12)));
  EXPECT_THAT(second.epoch_means, Each(testing::DoubleNear((kSamples - 1) / 2.0, 1e-12)));
  const auto errors = errors_of(2, [&](const std::shared_ptr<World>& world) {
    Trainer(quiet(world))
        .fit(std::make_shared<Toy>(),
             DataLoader(tensor_dataset({torch::arange(kSamples, torch::kDouble)}),
                        {.batch_size = 6}),
             {},
             {.checkpoint = place});
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("data=2,model=2"), HasSubstr("model-like axes"))));
}

TEST(DdpElastic, RefusesACheckpointBetweenTheMicroBatchesOfAStep) {
  const TemporaryFolder folder;
  const auto place = (folder.path() / "inside").string();
  train({.data = 2, .batch_size = 6, .save = place, .save_after = 1, .window = 2});
  const auto errors = errors_of(3, [&](const std::shared_ptr<World>& world) {
    auto options = quiet(world);
    options.accumulate_grad_batches = 2;
    Trainer(options).fit(
        std::make_shared<Toy>(),
        DataLoader(tensor_dataset({torch::arange(kSamples, torch::kDouble)}), {.batch_size = 4}),
        {},
        {.checkpoint = place});
  });
  EXPECT_THAT(errors, Each(HasSubstr("between the micro-batches of an optimizer step")));
}

}  // namespace
}  // namespace fulmen
