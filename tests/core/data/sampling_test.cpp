#include "fulmen/core/data/sampling.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>

#include "fulmen/core/data/subset.h"
#include "fulmen/core/data/tensor_dataset.h"
#include "tests/core/data/data_helpers.h"

namespace fulmen {
namespace {

TEST(RandomPermutation, HoldsEachIndexOnce) {
  for (const std::int64_t size : {0, 1, 2, 7, 1000})
    EXPECT_EQ(sorted(random_permutation(size, 3)), iota(size));
  expect_says(message_of<ConfigError>([] { random_permutation(-1, 0); }), {"got -1"});
}

TEST(RandomPermutation, GivesEachOrderTheSameChance) {
  std::map<std::vector<std::int64_t>, int> counts;
  constexpr int kDraws = 24000;
  for (int seed = 0; seed < kDraws; ++seed)
    ++counts[random_permutation(4, static_cast<std::uint64_t>(seed))];
  ASSERT_EQ(counts.size(), 24U);
  double chi_square = 0;
  for (const auto& [order, count] : counts)
    chi_square += (count - 1000.0) * (count - 1000.0) / 1000.0;
  // 23 degrees of freedom: above 58.6 once in 10^5 seeds; the seeds are fixed.
  EXPECT_LT(chi_square, 58.6);
}

// By an implementation of the same engine and rule in Python. It must never change.
TEST(RandomPermutation, IsTheSameOnEveryPlatform) {
  EXPECT_EQ(random_permutation(8, 1), (std::vector<std::int64_t>{5, 3, 4, 1, 7, 2, 6, 0}));
}

TEST(RandomSplit, CutsByFractionsAndHoldsEachSampleOnce) {
  const auto parts = random_split(1797, {0.8, 0.2}, 42);
  ASSERT_EQ(parts.size(), 2U);
  // floor(1437.6) and floor(359.4); the one that is left goes to the first part.
  EXPECT_EQ(parts[0].size(), 1438U);
  EXPECT_EQ(parts[1].size(), 359U);
  EXPECT_EQ(sorted(flatten(parts)), iota(1797));
  EXPECT_EQ(parts, random_split(1797, {0.8, 0.2}, 42));
  EXPECT_NE(parts, random_split(1797, {0.8, 0.2}, 43));
}

TEST(RandomSplit, IsNotMisledByRounding) {
  // 0.29 x 100 is 28.999999999999996.
  const auto parts = random_split(100, {0.71, 0.29}, 0);
  EXPECT_EQ(parts[0].size(), 71U);
  EXPECT_EQ(parts[1].size(), 29U);
  const auto tenths = random_split(10, std::vector<double>(10, 0.1), 0);
  for (const auto& part : tenths) EXPECT_EQ(part.size(), 1U);
}

TEST(RandomSplit, RefusesFractionsThatDoNotMakeAWhole) {
  expect_says(message_of<ConfigError>([] {
                random_split(10, {0.8, 0.3}, 0);
              }),
              {"add up to 1", "1.1"});
  expect_says(message_of<ConfigError>([] {
                random_split(10, {8, 2}, 0);
              }),
              {"got 8", "random_split_counts"});
  expect_says(message_of<ConfigError>([] { random_split(10, {-0.5, 1.5}, 0); }), {"got -0.5"});
  expect_says(message_of<ConfigError>([] {
                random_split(3, {0.99, 0.01}, 0);
              }),
              {"part 1", "0.01 of 3", "empty"});
}

TEST(RandomSplit, CutsByCounts) {
  const auto parts = random_split_counts(10, {7, 0, 3}, 5);
  EXPECT_EQ(parts[0].size(), 7U);
  EXPECT_TRUE(parts[1].empty());
  EXPECT_EQ(sorted(flatten(parts)), iota(10));
  expect_says(message_of<ConfigError>([] { random_split_counts(10, {7, 2}, 5); }), {"10", "got 9"});
  expect_says(message_of<ConfigError>([] { random_split_counts(10, {11, -1}, 5); }), {"got -1"});
}

TEST(Subset, PicksSamplesOfEveryKindOfDataset) {
  const Subset of_samples(IndexDataset{10}, {7, 2, 9});
  EXPECT_EQ(of_samples.size(), 3);
  EXPECT_EQ(of_samples.get(1), 2);

  struct Noisy {
    std::int64_t size() const { return 10; }
    torch::Tensor get(std::int64_t index, at::Generator&) const { return torch::tensor(index); }
  };
  DataLoader noisy(Subset(std::make_shared<Noisy>(), {7, 2, 9}), {.batch_size = 3});
  EXPECT_EQ(read_epoch(*noisy.source(), {}), (Epoch{{7, 2, 9}}));

  const auto x = torch::arange(10);
  const Subset of_batches(tensor_dataset({x, x * 10}), {7, 2, 9});
  const std::vector<std::int64_t> rows{2, 0};
  const auto [left, right] = of_batches.get_batch(rows).unpack<2>();
  EXPECT_EQ(to_vector(left), (std::vector<std::int64_t>{9, 7}));
  EXPECT_EQ(to_vector(right), (std::vector<std::int64_t>{90, 70}));
  static_assert(std::is_same_v<decltype(DataLoader(of_batches)), DataLoader<Batch>>);
}

TEST(Subset, RefusesIndicesThatTheDatasetDoesNotHave) {
  expect_says(message_of<DataError>([] {
                Subset(IndexDataset{10}, {3, 10});
              }),
              {"0 to 9", "got 10"});
  expect_says(message_of<DataError>([] { Subset(IndexDataset{10}, {-1}); }), {"got -1"});
}

TEST(TensorDataset, YieldsRowsInTheOrderAskedFor) {
  const auto x = torch::arange(12).view({6, 2});
  const auto dataset = tensor_dataset({x, torch::arange(6)});
  EXPECT_EQ(dataset.size(), 6);
  for (const auto& rows : {std::vector<std::int64_t>{1, 2, 3}, {3, 1, 1}, {0, 2, 5}, {5}, {}}) {
    const auto batch = dataset.get_batch(rows);
    if (rows.empty()) {
      EXPECT_TRUE(batch.tensors.empty());
      continue;
    }
    EXPECT_TRUE(torch::equal(batch.tensors[0], x.index_select(0, torch::tensor(rows))));
    EXPECT_EQ(to_vector(batch.tensors[1]), rows);
  }
}

TEST(TensorDataset, GivesViewsOnlyOfRowsThatFollowEachOther) {
  const auto x = torch::arange(6);
  const auto dataset = tensor_dataset({x});
  const std::vector<std::int64_t> run{2, 3};
  const std::vector<std::int64_t> others{3, 2};
  EXPECT_EQ(dataset.get_batch(run).tensors[0].data_ptr<std::int64_t>(),
            x.data_ptr<std::int64_t>() + 2);
  EXPECT_FALSE(dataset.get_batch(others).tensors[0].is_alias_of(x));
}

TEST(TensorDataset, NoticesDataThatWasChangedThroughABatch) {
  const auto dataset = tensor_dataset({torch::zeros({4}), torch::zeros({4})});
  const std::vector<std::int64_t> rows{0, 1};
  auto batch = dataset.get_batch(rows);
  {
    const torch::NoGradGuard no_grad;
    batch.tensors[1].add_(1);
  }
  expect_says(message_of<DataError>([&] { dataset.get_batch(rows); }),
              {"tensor 1", "in place", "Clone"});
}

TEST(TensorDataset, RefusesTensorsThatDoNotBelongTogether) {
  expect_says(message_of<DataError>([] { tensor_dataset({}); }), {"at least one"});
  expect_says(message_of<DataError>([] {
                tensor_dataset({torch::zeros({3}), torch::zeros({4})});
              }),
              {"3", "tensor 1 has 4"});
  expect_says(message_of<DataError>([] { tensor_dataset({torch::zeros({})}); }), {"scalar"});
  expect_says(message_of<DataError>([] { tensor_dataset({torch::Tensor()}); }), {"undefined"});
}

}  // namespace
}  // namespace fulmen
