// Checkpoints and stops of several ranks, which are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/strategies/ddp_ranks.h"
#include "tests/support/run_program.h"

namespace fulmen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Ddp, SavesOneCheckpointWithTheStateOfAllRanks) {
  const TemporaryFolder folder;
  const auto place = folder.path() / "checkpoint";
  run_thread_ranks(3, [&](const std::shared_ptr<World>& world) {
    auto module = std::make_shared<Toy>();
    Trainer trainer(own_data(world));
    trainer.fit(module, singles({1, 2}));
    trainer.save_checkpoint(place);
  });
  for (const int rank : {0, 1, 2}) {
    const auto contents = read_checkpoint(place, CheckpointParts::kEverything, rank);
    EXPECT_EQ(contents.model.at("w").item<double>(), -3.0);
    EXPECT_TRUE(contents.rank_state.contains("random/device"));
  }
  verify_checkpoint(place);
  EXPECT_THROW(read_checkpoint(place, CheckpointParts::kEverything, 3), CheckpointError);
  // Weights alone fit any number of ranks.
  run_thread_ranks(2, [&](const std::shared_ptr<World>& world) {
    auto module = std::make_shared<Toy>();
    Trainer(own_data(world))
        .fit(
            module, singles({1}), {}, {.checkpoint = place.string(), .restore = Restore::kWeights});
    EXPECT_EQ(module->value(), -4.0);
  });
}

// faults.md 79
TEST(Ddp, RefusesACheckpointOnAllRanksIfOneCannotReadIts) {
  const TemporaryFolder folder;
  const auto place = folder.path() / "checkpoint";
  run_thread_ranks(2, [&](const std::shared_ptr<World>& world) {
    Trainer trainer(own_data(world));
    trainer.fit(std::make_shared<Toy>(), singles({1, 2}));
    trainer.save_checkpoint(place);
  });
  std::filesystem::resize_file(place / "rank-1.json", 3);
  const auto errors = errors_of(2, [&](const std::shared_ptr<World>& world) {
    auto module = std::make_shared<Toy>(ToyOptions{.w0 = 7});
    try {
      auto options = own_data(world);
      options.max_epochs = 2;
      Trainer(options).fit(module, singles({1, 2}), {}, {.checkpoint = place.string()});
    } catch (...) {
      EXPECT_EQ(module->value(), 7.0);
      throw;
    }
  });
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("rank-1.json"));
}

TEST(Ddp, StopsAllRanksAtOneStepAndSavesOnce) {
  const TemporaryFolder folder;
  std::mutex mutex;
  std::vector<std::int64_t> steps;
  run_thread_ranks(2, [&](const std::shared_ptr<World>& world) {
    auto options = own_data(world);
    options.max_epochs = 100;
    options.enable_checkpointing = true;
    options.callbacks = {
        ModelCheckpoint::make({.dirpath = folder.path(), .save_on_interrupt = true})};
    Trainer* running = nullptr;
    auto module = std::make_shared<Toy>(ToyOptions{.lr = 0.01});
    module->step = [&](Toy& toy, Batch& batch, std::int64_t) -> StepOutput {
      if (world->rank() == 1 && toy.global_step() == 5) running->request_stop("the user left");
      return toy.loss(batch);
    };
    Trainer trainer(options);
    running = &trainer;
    const auto result = trainer.fit(module, singles({1, 2, 3}));
    EXPECT_EQ(result.status, RunStatus::kInterrupted);
    const std::lock_guard<std::mutex> lock(mutex);
    steps.push_back(trainer.progress().global_step);
  });
  EXPECT_THAT(steps, ElementsAre(6, 6));
  ASSERT_TRUE(read_pointer(folder.path(), "last").has_value());
}

// Inside a window each rank has a weight of its own.
TEST(Ddp, ResumesInsideAWindowWithTheWeightsOfEachRank) {
  const TemporaryFolder folder;
  const auto train = [&](bool resumes, bool saves) {
    std::vector<double> values(2);
    run_thread_ranks(2, [&](const std::shared_ptr<World>& world) {
      auto options = own_data(world);
      options.accumulate_grad_batches = 2;
      auto module = std::make_shared<Toy>();
      module->step = [&](Toy& toy, Batch& batch, std::int64_t) -> StepOutput {
        return StepOutput(toy.loss(batch), world->rank() == 0 ? 1.0 : 3.0);
      };
      struct Saver final : Callback {
        std::filesystem::path place;
        void on_train_batch_end(TrainerContext& trainer,
                                ModuleBase&,
                                const StepOutput&,
                                BatchView,
                                std::int64_t) override {
          if (trainer.progress().total_batches == 1) trainer.save_checkpoint(place);
        }
      };
      if (saves) {
        auto saver = std::make_shared<Saver>();
        saver->place = folder.path() / "inside";
        options.callbacks = {saver};
      }
      FitOptions fit;
      if (resumes) fit.checkpoint = (folder.path() / "inside").string();
      const DataLoader loader(tensor_dataset({torch::arange(4, torch::kDouble) + world->rank()}),
                              {});
      Trainer(options).fit(module, loader, {}, fit);
      values[static_cast<std::size_t>(world->rank())] = module->value();
    });
    EXPECT_EQ(values[0], values[1]);
    return values[0];
  };
  const double unbroken = train(false, true);
  EXPECT_EQ(train(true, false), unbroken);
}

}  // namespace
}  // namespace fulmen
