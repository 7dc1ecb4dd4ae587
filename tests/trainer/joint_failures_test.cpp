// What one rank, here a thread, suffers: nobody hangs, nobody goes on alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <limits>
#include <thread>

#include "fulmen/core/distributed/collectives.h"
#include "tests/support/run_program.h"
#include "tests/trainer/joint_ends.h"

namespace fulmen {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Lt;

// --- Exceptions with save_on_exception ---

enum class Place { kTrainingStep, kBeforeStep, kBatchEnd, kEpochEnd, kValidation };

/// Throws on one rank, in the third batch or after it.
struct Breaking final : Toy {
  explicit Breaking(std::optional<Place> place) : place_(place) {
    step = [this](Toy& toy, Batch& batch, std::int64_t batch_idx) -> StepOutput {
      if (batch_idx == 2) maybe_throw(Place::kTrainingStep);
      return toy.loss(batch);
    };
    eval_step = [this](Toy&, Batch&, std::int64_t, std::int64_t) {
      maybe_throw(Place::kValidation);
    };
  }
  void on_before_optimizer_step(Optimizer&) override {
    if (global_step() == 2) maybe_throw(Place::kBeforeStep);
  }
  void on_train_batch_end(const StepOutput&, Batch&, std::int64_t batch_idx) override {
    if (batch_idx == 2) maybe_throw(Place::kBatchEnd);
  }
  void on_train_epoch_end() override { maybe_throw(Place::kEpochEnd); }
  void maybe_throw(Place place) const {
    if (place == place_) throw std::runtime_error("boom");
  }
  std::optional<Place> place_;
};

TrainerOptions saving(const WorldPointer& world, const std::filesystem::path& folder) {
  auto options = own_data(world);
  options.enable_checkpointing = true;
  options.callbacks = {ModelCheckpoint::make(
      {.dirpath = folder, .save_on_exception = true, .every_n_train_steps = 2})};
  return options;
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& path : list_checkpoints(folder)) names.push_back(path.filename().string());
  return names;
}

TEST(SaveOnException, LeavesTheCheckpointBeforeAsItIsAndEndsAllRanks) {
  for (const auto place : {Place::kTrainingStep,
                           Place::kBeforeStep,
                           Place::kBatchEnd,
                           Place::kEpochEnd,
                           Place::kValidation}) {
    SCOPED_TRACE(static_cast<int>(place));
    const TemporaryFolder folder;
    const auto train = [&](bool breaks, const std::string& checkpoint) {
      return ends_of(2, [&](const WorldPointer& world) {
        auto module = std::make_shared<Breaking>(breaks && world->rank() == 1 ? std::optional(place)
                                                                              : std::nullopt);
        Trainer(saving(world, folder.path()))
            .fit(module, singles({1, 2, 4}), singles({0}), {.checkpoint = checkpoint});
        EXPECT_EQ(module->value(), -7.0);
      });
    };
    const auto ends = train(true, "");
    EXPECT_EQ(ends[0].kind, "DistributedError");
    EXPECT_EQ(ends[1].error, "boom");
    EXPECT_THAT(names_in(folder.path()), ElementsAre("epoch=0-step=2"));
    const auto last = read_pointer(folder.path(), "last");
    ASSERT_TRUE(last.has_value());
    EXPECT_EQ(last->filename(), "epoch=0-step=2");
    verify_checkpoint(*last);
    EXPECT_THAT(train(false, "last"), Each(Field(&End::error, IsEmpty())));
  }
}

TEST(SaveOnException, OfACallbackThatSavesItselfIsRefusedOnAllRanks) {
  const TemporaryFolder folder;
  struct SavesItself final : Callback {
    std::filesystem::path place;
    std::string refusal;
    void on_exception(TrainerContext& trainer, ModuleBase&, const std::exception&) override {
      try {
        trainer.save_checkpoint(place);
      } catch (const CheckpointError& error) {
        refusal = error.what();
      }
    }
  };
  ends_of(3, [&](const WorldPointer& world) {
    auto options = own_data(world);
    auto saver = std::make_shared<SavesItself>();
    saver->place = folder.path() / "own";
    options.callbacks = {saver};
    const auto place = world->rank() == 2 ? std::optional(Place::kBatchEnd) : std::nullopt;
    EXPECT_ANY_THROW(Trainer(options).fit(std::make_shared<Breaking>(place), singles({1, 2, 4})));
    if (world->rank() == 2) {
      EXPECT_THAT(saver->refusal, HasSubstr("the others cannot take part"));
    } else {
      EXPECT_FALSE(saver->refusal.empty());
    }
  });
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "own"));
}

// --- Streams that end early ---

/// Yields `batches`, whatever size is declared.
auto stream_of(std::int64_t batches, const StreamOptions& options) {
  return stream_loader(
      [batches](std::int64_t) {
        return [left = batches]() mutable {
          return left-- > 0 ? std::optional(column({1})) : std::nullopt;
        };
      },
      options);
}

std::vector<End> train_on_streams(const StreamOptions& stream,
                                  const std::vector<std::int64_t>& batches_of_ranks) {
  return ends_of(static_cast<int>(batches_of_ranks.size()), [&](const WorldPointer& world) {
    auto options = own_data(world);
    if (!stream.size) options.limit_train_batches = batches(4);
    const auto own = batches_of_ranks[static_cast<std::size_t>(world->rank())];
    auto module = std::make_shared<Toy>();
    try {
      Trainer(options).fit(module, stream_of(own, stream));
    } catch (...) {
      EXPECT_LE(module->training_steps, 3);  // A rank may be one ahead of what it waits for.
      throw;
    }
    EXPECT_EQ(module->value(), -4.0);
  });
}

TEST(Stream, ThatEndsEarlyOnOneRankEndsAllRanks) {
  for (const StreamOptions& stream : {StreamOptions{.size = 4}, StreamOptions{}}) {
    const auto ends = train_on_streams(stream, {4, 2, 4});
    EXPECT_EQ(ends[1].kind, "DataError");
    EXPECT_THAT(ends[1].error, HasSubstr("the training loader: ended after 2 batches"));
    EXPECT_THAT(ends[1].error, HasSubstr(stream.size ? "said it has 4" : "ranks have agreed on 4"));
    EXPECT_EQ(ends[0].kind, "DistributedError");
    EXPECT_EQ(ends[2].kind, "DistributedError");
  }
}

TEST(Stream, ThatEndsEarlyOnAllRanksIsAnErrorOnAll) {
  for (const StreamOptions& stream : {StreamOptions{.size = 4}, StreamOptions{}}) {
    for (const auto& end : train_on_streams(stream, {2, 2})) {
      EXPECT_EQ(end.kind, "DataError");
      EXPECT_THAT(end.error, HasSubstr("ended after 2 batches"));
    }
  }
}

TEST(Stream, ThatHasItsBatchesTrains) {
  for (const StreamOptions& stream : {StreamOptions{.size = 4}, StreamOptions{}}) {
    EXPECT_THAT(train_on_streams(stream, {4, 4}), Each(Field(&End::error, IsEmpty())));
  }
}

// --- A loss that is not finite on one model rank ---

/// Each model rank computes a term of the loss, from a weight that every rank has and from one that
/// is marked as shared; the first one's gradient is summed in the module's own backward.
class Terms final : public LightningModule<> {
 public:
  explicit Terms(std::function<bool(std::int64_t)> breaks)
      : LightningModule("Terms"), breaks_(std::move(breaks)) {
    whole = register_parameter("whole", torch::zeros({}, torch::kDouble));
    part = register_parameter("part", torch::zeros({}, torch::kDouble));
  }
  void configure_sharded_model() override {
    group_ = current_mesh().group("model");
    mark_as_shared(part, "model");
  }
  StepOutput training_step(Batch& batch, std::int64_t batch_idx) override {
    const auto x = batch.tensors[0].sum();
    const auto loss = (copy_to_group(whole, *group_) + part) * x;
    return breaks_(batch_idx) ? loss * std::numeric_limits<double>::quiet_NaN() : loss;
  }
  OptimizerConfigs configure_optimizers() override { return SGD::make(*this, {.lr = 1}); }

  at::Tensor whole, part;

 private:
  std::function<bool(std::int64_t)> breaks_;
  std::optional<ProcessGroup> group_;
};

// The data of the model ranks are 1 and 2 times the batch's number: gradients are 3 times it.
TEST(SkipStep, OfOneModelRankIsOneOfAllRanksAndTheNextStepIsRight) {
  for (const int data : {1, 2}) {
    for (const std::int64_t window : {1, 2}) {
      SCOPED_TRACE(std::to_string(data) + " x 2, windows of " + std::to_string(window));
      const auto ends = ends_of(data * 2, [&](const WorldPointer& world) {
        auto options = own_data(world, mesh(data, 2));
        options.accumulate_grad_batches = window;
        options.nonfinite_loss = NonFiniteLoss::kSkipStep;
        const bool last = world->rank() == world->size() - 1;
        auto module = std::make_shared<Terms>(
            [&](std::int64_t batch_idx) { return last && batch_idx == window; });
        const double times = world->rank() % 2 == 0 ? 1 : 2;
        std::vector<Batch> batches;
        for (const double number : {1, 2, 4}) {
          for (std::int64_t i = 0; i < window; ++i) batches.push_back(column({times * number}));
        }
        Trainer trainer(options);
        trainer.fit(module, batches);
        EXPECT_EQ(module->whole.item<double>(), -3.0 * (1 + 4));
        EXPECT_EQ(module->part.item<double>(), -3.0 * (1 + 4));
        EXPECT_EQ(trainer.progress().skipped_steps, 1);
        EXPECT_EQ(trainer.progress().global_step, 2);
      });
      EXPECT_THAT(ends, Each(Field(&End::error, IsEmpty())));
    }
  }
}

// --- Leaving a job ---

/// A strategy that has been through one window with two buckets.
struct Warm {
  std::shared_ptr<DdpStrategy> strategy;
  std::shared_ptr<Accelerator> accelerator = cpu_accelerator();
  Log log{std::make_shared<CapturingSink>()};
  Toy module;
  at::Tensor other = module.register_parameter("other", torch::zeros({3}, torch::kDouble));

  explicit Warm(const WorldPointer& world)
      : strategy(DdpStrategy::make(
            {.reducer = {.bucket_cap_bytes = 1, .first_bucket_cap_bytes = 1}, .world = world})) {
    strategy->setup_environment({.accelerator = accelerator, .log = log, .devices = world->size()});
    strategy->setup(module, Stage::kFit);
    backward();
    const std::vector<at::Tensor> parameters{module.w, other};
    strategy->finish_gradients(parameters, {.weight = {.number = 1}, .has_loss = true});
    EXPECT_EQ(module.w.grad().item<double>(), 1.0);
  }
  void backward() { strategy->backward(module, module.w + other.sum(), {}, GradSync::kNow); }
};

enum class Sums { kDone, kUnderWay };

void abandon_on_rank_one(Sums sums) {
  std::promise<void> left;
  const auto has_left = left.get_future().share();
  const auto ends = ends_of(3, [&](const WorldPointer& world) {
    Warm warm(world);
    auto number = torch::ones({}, torch::kDouble);
    if (world->rank() == 1) {
      if (sums == Sums::kUnderWay) warm.backward();  // Starts sums that the others never do.
      const auto start = Clock::now();
      warm.strategy->abandon();
      EXPECT_LT(seconds_since(start), 5) << "it waited for its peers";
      left.set_value();
      EXPECT_THROW(all_reduce(number, ReduceOp::kSum, world->all()), DistributedError);
      return;
    }
    EXPECT_EQ(has_left.wait_for(std::chrono::seconds(90)), std::future_status::ready);
    const auto start = Clock::now();
    EXPECT_THROW(all_reduce(number, ReduceOp::kSum, world->all()), DistributedError);
    EXPECT_LT(seconds_since(start), 5);
    throw std::runtime_error("went through");
  });
  EXPECT_EQ(ends[0].error, "went through");
  EXPECT_EQ(ends[2].error, "went through");
}

TEST(Abandon, ReturnsAtOnceAndFailsThePeersNextCollective) {
  abandon_on_rank_one(Sums::kDone);
}

TEST(Abandon, ReturnsAtOnceWhileASumIsUnderWayThatThePeersNeverStart) {
  abandon_on_rank_one(Sums::kUnderWay);
}

TEST(Abandon, FailsThePeersThatWaitAlready) {
  const auto ends = ends_of(2, [](const WorldPointer& world) {
    Warm warm(world);
    if (world->rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      warm.strategy->abandon();
      return;
    }
    warm.strategy->barrier("never");
  });
  EXPECT_EQ(ends[0].kind, "DistributedError");
  EXPECT_THAT(ends[1].error, IsEmpty());
}

}  // namespace
}  // namespace fulmen
