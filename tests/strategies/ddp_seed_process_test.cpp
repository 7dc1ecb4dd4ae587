// What only ranks that are processes can show: default generators of their own, and a job that ends
// as a whole. This program starts itself by training: its trainer starts it again for each rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <set>

#include "fulmen/core/checkpoint/safetensors.h"
#include "tests/support/run_program.h"
#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kSamples = 25;  // Of which the last is alone in its step of 3 x 2.
constexpr std::int64_t kEpochs = 2;
constexpr std::int64_t kMaskSize = 64;  // Two masks are equal by chance once in 2^64.

/// Keeps the samples of each step and a mask of dropout, and throws if it is told to.
struct Recorder final : Toy {
  std::vector<at::Tensor> samples, masks;
  std::int64_t throws_at = -1;

  Recorder() {
    step = [this](Toy& toy, Batch& batch, std::int64_t batch_idx) -> StepOutput {
      if (batch_idx == throws_at) throw std::runtime_error("boom");
      const auto epoch = torch::full_like(batch.tensors[0], static_cast<double>(current_epoch()));
      samples.push_back(torch::stack({epoch, batch.tensors[0]}, 1));
      masks.push_back(torch::dropout(torch::ones({kMaskSize}), 0.5, /*train=*/true));
      return toy.loss(batch) * 0;
    };
  }
};

/// --train <mesh> <what> <folder>. With "seed" all ranks have one seed; else each process has one
/// of its own, from the system's entropy.
int train(const std::string& mesh, const std::string& what, const std::filesystem::path& folder) {
  std::uint64_t own_seed = 0;
  {
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    own_seed = generator.seed();
  }
  auto options = quiet(kEpochs);
  options.signals = SignalHandling::kSaveAndStop;
  if (what == "seed") options.seed = 11;
  if (mesh != "none") {
    const auto axes = parse_mesh(mesh);
    options.devices = 1;
    for (const auto& axis : axes) options.devices *= axis.size;
    options.strategy = DdpStrategy::make({.mesh = axes});
  }
  const auto* rank_text = std::getenv("RANK");
  const std::string rank = rank_text == nullptr ? "0" : rank_text;
  auto module = std::make_shared<Recorder>();
  if (what == "throw") {
    options.enable_checkpointing = true;
    options.callbacks = {ModelCheckpoint::make(
        {.dirpath = folder / "checkpoints", .save_on_exception = true, .every_n_train_steps = 2})};
    if (rank == "1") module->throws_at = 3;
  }
  const DataLoader loader(tensor_dataset({torch::arange(kSamples, torch::kDouble)}),
                          {.batch_size = 2, .shuffle = true});
  Trainer trainer(options);
  trainer.fit(module, loader);
  write_safetensors(folder / ("rank-" + std::to_string(trainer.topology().rank)),
                    {{"seed", torch::tensor(static_cast<std::int64_t>(own_seed))},
                     {"samples", torch::cat(module->samples)},
                     {"masks", torch::stack(module->masks)}});
  return 0;
}

ProgramResult run(const std::string& mesh, const std::string& what, const TemporaryFolder& folder) {
  return run_program({.arguments = {own_program(), "--train", mesh, what, folder.path().string()},
                      .variables = {{"OMP_NUM_THREADS", "1"}},
                      .time_limit = std::chrono::seconds(90)});
}

/// What the ranks recorded, in order of rank.
std::vector<TensorMap> records_of(int ranks, const std::string& mesh, const std::string& what) {
  const TemporaryFolder folder;
  const auto result = run(mesh, what, folder);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  std::vector<TensorMap> records;
  for (int rank = 0; rank < ranks; ++rank)
    records.push_back(read_safetensors(folder.path() / ("rank-" + std::to_string(rank))));
  return records;
}

/// The samples of an epoch, in the order of the steps.
std::vector<double> samples_of(const TensorMap& record, std::int64_t epoch) {
  const auto& table = record.at("samples");
  std::vector<double> samples;
  for (std::int64_t i = 0; i < table.size(0); ++i) {
    if (table[i][0].item<double>() == static_cast<double>(epoch))
      samples.push_back(table[i][1].item<double>());
  }
  return samples;
}

/// As the sampler of one process deals them out with this seed.
std::vector<double> order_of(std::uint64_t seed, std::int64_t epoch) {
  const DataLoader loader(tensor_dataset({torch::arange(kSamples, torch::kDouble)}),
                          {.batch_size = 1, .shuffle = true, .seed = seed});
  std::vector<double> order;
  for (const auto& batch : loader.epoch(epoch)) order.push_back(batch.tensors[0].item<double>());
  return order;
}

TEST(UnseededRanks, ShuffleWithTheSeedOfRankZeroAndEachSampleComesOnce) {
  const auto records = records_of(3, "data=3", "no seed");
  std::set<std::int64_t> seeds;
  for (const auto& record : records) seeds.insert(record.at("seed").item<std::int64_t>());
  ASSERT_EQ(seeds.size(), 3) << "the processes have one seed, so this test shows nothing";
  const auto seed = static_cast<std::uint64_t>(records[0].at("seed").item<std::int64_t>());
  EXPECT_NE(order_of(seed, 0), order_of(seed, 1));
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    std::vector<std::vector<double>> shares;
    for (const auto& record : records) shares.push_back(samples_of(record, epoch));
    std::vector<double> joint;
    for (std::size_t first = 0; first < shares[0].size(); first += 2) {
      for (const auto& share : shares) {
        for (auto i = first; i < std::min(first + 2, share.size()); ++i) joint.push_back(share[i]);
      }
    }
    // So each sample comes once, too.
    EXPECT_EQ(joint, order_of(seed, epoch)) << "in epoch " << epoch;
  }
}

class RandomStreams : public testing::TestWithParam<const char*> {};

TEST_P(RandomStreams, DifferAlongDataAndAreEqualAlongModel) {
  const auto records = records_of(4, "data=2,model=2", GetParam());
  const auto steps = std::min(records[0].at("masks").size(0), records[2].at("masks").size(0));
  ASSERT_GE(steps, 2 * 6);  // 25 samples are 6 steps of 2 x 2, and one of 1.
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto mask = [&](int rank) {
      return records[static_cast<std::size_t>(rank)].at("masks")[step];
    };
    const auto kept = mask(0).ne(0).sum().item<std::int64_t>();
    EXPECT_GT(kept, 0);
    EXPECT_LT(kept, kMaskSize);
    EXPECT_TRUE(torch::equal(mask(0), mask(1))) << "in step " << step;
    EXPECT_TRUE(torch::equal(mask(2), mask(3))) << "in step " << step;
    EXPECT_FALSE(torch::equal(mask(0), mask(2))) << "in step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds,
                         RandomStreams,
                         testing::Values("seed", "no seed"),
                         [](const auto& what) {
                           return what.param == std::string("seed") ? "Given" : "NotGiven";
                         });

TEST(RandomStream, OfTheFirstDataRankIsThatOfOneProcess) {
  const auto alone = records_of(1, "none", "seed")[0].at("masks");
  const auto records = records_of(2, "data=2", "seed");
  const auto first = records[0].at("masks");
  ASSERT_LT(first.size(0), alone.size(0));
  EXPECT_TRUE(torch::equal(first, alone.narrow(0, 0, first.size(0))));
  // In each process alike, from run to run.
  EXPECT_TRUE(torch::equal(records_of(2, "data=2", "seed")[1].at("masks"), records[1].at("masks")));
}

TEST(SaveOnException, OfOneProcessEndsTheJobAndLeavesTheCheckpointBefore) {
  const TemporaryFolder folder;
  const auto result = run("data=2", "throw", folder);
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_LT(result.seconds.count(), 20);
  EXPECT_THAT(result.output, HasSubstr("[rank 1] error: boom"));
  std::vector<std::string> names;
  for (const auto& path : list_checkpoints(folder.path() / "checkpoints"))
    names.push_back(path.filename().string());
  EXPECT_THAT(names, ElementsAre("epoch=0-step=2"));
}

}  // namespace
}  // namespace fulmen

int main(int argc, char** argv) {
  if (argc > 4 && std::string(argv[1]) == "--train") {
    try {
      return fulmen::train(argv[2], argv[3], argv[4]);
    } catch (const std::exception& error) {
      std::cerr << "error: " << error.what() << std::endl;
      return 1;
    }
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
