#include "fulmen/core/data/data_loader.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "fulmen/core/data/loader.h"
#include "fulmen/core/data/tensor_dataset.h"
#include "tests/core/data/data_helpers.h"

namespace fulmen {
namespace {

using torch::Tensor;

TEST(DataLoader, CutsTheDatasetIntoBatchesInOrder) {
  EXPECT_EQ(read(DataLoader(IndexDataset{5}, {.batch_size = 2})), (Epoch{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(read(DataLoader(IndexDataset{5}, {.batch_size = 2, .drop_last = true})),
            (Epoch{{0, 1}, {2, 3}}));
  EXPECT_EQ(read(DataLoader(IndexDataset{2}, {.batch_size = 9})), (Epoch{{0, 1}}));
  EXPECT_EQ(DataLoader(IndexDataset{5}, {.batch_size = 2}).size(), 3);
  EXPECT_EQ(DataLoader(IndexDataset{5}, {.batch_size = 2, .drop_last = true}).size(), 2);
  EXPECT_EQ(DataLoader(IndexDataset{5}).size(), 5);
}

TEST(DataLoader, KnowsItsBatchTypeFromTheDataset) {
  struct OfPairs {
    std::size_t size() const { return 1; }
    std::pair<Tensor, int> get(std::size_t) { return {torch::zeros({2}), 1}; }
  };
  struct OfBatches {
    int size() const { return 1; }
    std::vector<Tensor> get_batch(std::span<const std::int64_t>) const { return {}; }
  };
  static_assert(
      std::is_same_v<decltype(DataLoader(OfPairs())), DataLoader<std::pair<Tensor, Tensor>>>);
  static_assert(std::is_same_v<decltype(DataLoader(OfBatches())), DataLoader<std::vector<Tensor>>>);
  const DataLoader loader(std::make_shared<OfPairs>(), {.batch_size = 1});
  static_assert(
      std::is_same_v<decltype(DataLoader(loader)), DataLoader<std::pair<Tensor, Tensor>>>);
  int batches = 0;
  for (auto& [x, y] : loader.epoch(0)) {
    EXPECT_EQ(x.sizes(), (std::vector<std::int64_t>{1, 2}));
    ++batches;
  }
  EXPECT_EQ(batches, 1);
}

TEST(DataLoader, ShufflesAsAFunctionOfSeedAndEpoch) {
  const DataLoader loader(IndexDataset{20}, {.batch_size = 8, .shuffle = true, .seed = 7});
  std::set<std::vector<std::int64_t>> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    const auto order = flatten(read(loader, {.epoch = epoch}));
    EXPECT_EQ(sorted(order), iota(20));
    EXPECT_EQ(order, flatten(read(loader, {.epoch = epoch}))) << "a new source in the same epoch";
    orders.insert(order);
  }
  const DataLoader other(IndexDataset{20}, {.batch_size = 8, .shuffle = true, .seed = 8});
  orders.insert(flatten(read(other)));
  orders.insert(iota(20));
  EXPECT_EQ(orders.size(), 5U) << "three epochs, another seed and the unshuffled order all differ";
}

TEST(DataLoader, DoesNotTouchTheProcessWideGenerator) {
  torch::manual_seed(5);
  const auto expected = torch::rand({3});
  torch::manual_seed(5);
  read(DataLoader(IndexDataset{20}, {.shuffle = true}));
  EXPECT_TRUE(torch::equal(torch::rand({3}), expected));
}

TEST(DataLoader, PrefersItsOwnSeedToTheDefault) {
  const auto order_with = [](std::optional<std::uint64_t> own, std::uint64_t by_default) {
    const auto source = DataLoader(IndexDataset{20}, {.shuffle = true, .seed = own}).source();
    source->set_default_seed(by_default);
    return flatten(read_epoch(*source, {}));
  };
  EXPECT_NE(order_with({}, 1), order_with({}, 2));
  EXPECT_EQ(order_with({}, 1), order_with(1, 2));
}

// Fault 86.
TEST(DataLoader, YieldsEveryEpochInFullWhenTheConsumerAsksForNoMoreThanItsSize) {
  const auto source = DataLoader(IndexDataset{6}, {.batch_size = 2}).source();
  for (int epoch = 0; epoch < 4; ++epoch) {
    EXPECT_EQ(read_epoch(*source, {.epoch = epoch}, *source->size()).size(), 3U);
  }
}

TEST(DataLoader, GoesOnAfterASkipAsIfItHadReadTheBatches) {
  struct Counting {
    std::shared_ptr<int> reads = std::make_shared<int>(0);
    std::int64_t size() const { return 10; }
    std::int64_t get(std::int64_t index) const { return ++*reads, index; }
  };
  const Counting dataset;
  const DataLoader loader(dataset, {.batch_size = 3, .shuffle = true, .seed = 1});
  const auto whole = read(loader, {.epoch = 2});
  for (std::int64_t skip = 0; skip <= 4; ++skip) {
    *dataset.reads = 0;
    EXPECT_EQ(read(loader, {.epoch = 2, .batches_to_skip = skip}),
              Epoch(whole.begin() + skip, whole.end()));
    EXPECT_EQ(*dataset.reads, std::max<std::int64_t>(0, 10 - 3 * skip))
        << "what is skipped is not read";
  }
  expect_says(message_of<DataError>([&] { read(loader, {.epoch = 2, .batches_to_skip = 5}); }),
              {"skip 5", "has 4"});
}

struct Noise {
  std::int64_t count = 8;
  std::int64_t size() const { return count; }
  Tensor get(std::int64_t, at::Generator generator) const {
    return torch::randint(1 << 30, {2}, generator);
  }
};

// Fault 89.
TEST(DataLoader, KeysRandomNumbersBySeedEpochAndIndex) {
  const auto numbers = [](std::uint64_t seed, std::int64_t epoch, bool shuffle, int batch_size) {
    std::vector<std::vector<std::int64_t>> by_index(8);
    const DataLoader loader(Noise{}, {.batch_size = batch_size, .shuffle = shuffle, .seed = seed});
    const DataLoader order(IndexDataset{8},
                           {.batch_size = batch_size, .shuffle = shuffle, .seed = seed});
    const auto indices = flatten(read(order, {.epoch = epoch}));
    const auto values = flatten(read(loader, {.epoch = epoch}));
    for (std::size_t i = 0; i < 8; ++i) by_index[indices[i]] = {values[2 * i], values[2 * i + 1]};
    return by_index;
  };
  const auto base = numbers(1, 0, false, 4);
  EXPECT_EQ(std::set(base.begin(), base.end()).size(), 8U) << "samples differ";
  EXPECT_EQ(numbers(1, 0, true, 3), base) << "the position in the epoch does not matter";
  const auto next_epoch = numbers(1, 1, false, 4);
  const auto other_seed = numbers(2, 0, false, 4);
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_NE(base[i], next_epoch[i]);
    EXPECT_NE(base[i], other_seed[i]);
  }
}

TEST(DataLoader, AppliesATransformToTheCollatedBatch) {
  const auto twice = [](const Tensor& x) { return Batch{{x, x * 2}}; };
  const DataLoader loader(IndexDataset{4}, {.batch_size = 4}, twice);
  static_assert(std::is_same_v<decltype(loader), const DataLoader<Batch>>);
  for (const Batch& batch : loader.epoch(0))
    EXPECT_EQ(to_vector(batch.tensors[1]), (std::vector<std::int64_t>{0, 2, 4, 6}));
  const DataLoader generic(IndexDataset{4}, {.batch_size = 2}, [](auto x) { return x + 1; });
  EXPECT_EQ(read(generic), (Epoch{{1, 2}, {3, 4}}));
  const DataLoader of_batches(tensor_dataset({torch::arange(3)}),
                              {.batch_size = 3},
                              [](Batch batch) { return batch.tensors[0] + 5; });
  EXPECT_EQ(read(of_batches), (Epoch{{5, 6, 7}}));
}

TEST(DataLoader, LetsATransformMakeTheBatchOfSamples) {
  struct Text {
    std::string words;
  };
  struct Texts {
    std::int64_t size() const { return 3; }
    Text get(std::int64_t index) const {
      return {std::string(static_cast<std::size_t>(index) + 1, 'x')};
    }
  };
  const auto pad = [](const std::vector<Text>& texts) {
    auto lengths = torch::zeros({static_cast<std::int64_t>(texts.size())}, torch::kLong);
    for (std::size_t i = 0; i < texts.size(); ++i)
      lengths[static_cast<std::int64_t>(i)] = static_cast<std::int64_t>(texts[i].words.size());
    return lengths;
  };
  EXPECT_EQ(read(DataLoader(Texts(), {.batch_size = 2}, pad)), (Epoch{{1, 2}, {3}}));
}

TEST(DataLoader, KeysATransformsRandomNumbersByTheBatch) {
  const auto noise = [](const Tensor&, at::Generator& generator) {
    return torch::randint(1 << 30, {1}, generator);
  };
  const DataLoader loader(IndexDataset{6}, {.batch_size = 2, .seed = 1}, noise);
  const auto whole = read(loader, {.epoch = 1});
  EXPECT_EQ(std::set(whole.begin(), whole.end()).size(), 3U);
  EXPECT_NE(whole, read(loader, {.epoch = 0}));
  EXPECT_EQ(read(loader, {.epoch = 1, .batches_to_skip = 1}),
            Epoch(whole.begin() + 1, whole.end()));
}

struct EveryOther final : Sampler {
  std::int64_t offset = 0;
  std::vector<std::int64_t> indices(const SampleOrder& order) override {
    std::vector<std::int64_t> result;
    for (auto i = order.epoch % 2 + offset; i < order.dataset_size; i += 2) result.push_back(i);
    return result;
  }
};

TEST(DataLoader, TakesTheOrderFromASampler) {
  const auto sampler = std::make_shared<EveryOther>();
  const DataLoader loader(IndexDataset{5}, {.batch_size = 2, .sampler = sampler});
  EXPECT_EQ(read(loader, {.epoch = 0}), (Epoch{{0, 2}, {4}}));
  EXPECT_EQ(read(loader, {.epoch = 1}), (Epoch{{1, 3}}));
  const auto source = loader.source();
  EXPECT_EQ(source->size(), std::nullopt);
  source->start_epoch({.epoch = 1});
  EXPECT_EQ(source->size(), 1);

  const auto state = source->state_dict();
  sampler->offset = 1;
  const auto resumed = loader.source();
  resumed->load_state_dict(state);
  expect_says(
      message_of<DataError>([&] { resumed->start_epoch({.epoch = 1, .batches_to_skip = 1}); }),
      {"another order", "epoch 1"});
  sampler->offset = 100;
  expect_says(message_of<DataError>([&] { read(loader); }), {"no indices", "epoch 0"});
  sampler->offset = -2;
  expect_says(message_of<DataError>([&] { read(loader); }), {"index -2", "0 to 4"});
}

TEST(DataLoader, NamesTheOptionThatIsWrong) {
  const auto error = [](const DataLoaderOptions& options) {
    return message_of<ConfigError>([&] { DataLoader(IndexDataset{4}, options); });
  };
  expect_says(error({.batch_size = 0}), {"batch_size", "greater than or equal to 1", "got 0"});
  expect_says(error({.num_workers = -1}), {"num_workers", "greater than or equal to 0", "got -1"});
  expect_says(error({.prefetch_factor = 0}), {"prefetch_factor", "got 0"});
  expect_says(error({.shuffle = true, .sampler = std::make_shared<EveryOther>()}),
              {"shuffle", "sampler"});
  expect_says(message_of<ConfigError>([] { DataLoader(std::shared_ptr<IndexDataset>()); }),
              {"null"});
}

TEST(DataLoader, SaysThatTheDatasetIsEmpty) {
  const DataLoader empty(IndexDataset{0});
  EXPECT_EQ(empty.size(), 0);
  expect_says(message_of<DataError>([&] { read(empty); }), {"dataset is empty"});
  const DataLoader dropped(IndexDataset{3}, {.batch_size = 4, .drop_last = true});
  expect_says(message_of<DataError>([&] { read(dropped); }),
              {"no batch is left", "3 samples", "batch_size is 4", "drop_last"});
}

TEST(DataLoader, GivesEachUseAPositionOfItsOwn) {
  const DataLoader loader(IndexDataset{4}, {.batch_size = 2});
  const Loader<Tensor> training = loader;
  const Loader<Tensor> validation = loader;
  training.source()->start_epoch({});
  AnyBatch batch;
  training.source()->next(batch);
  EXPECT_EQ(read_epoch(*validation.source(), {}).size(), 2U);
  ASSERT_TRUE(training.source()->next(batch));
  EXPECT_EQ(to_vector(batch.get<Tensor>()), (std::vector<std::int64_t>{2, 3}));
}

TEST(DataLoader, RefusesASecondEpochInsideOne) {
  const auto source = DataLoader(IndexDataset{4}, {.batch_size = 2}).source();
  AnyBatch batch;
  EXPECT_THROW(source->next(batch), DataError);
  source->start_epoch({.epoch = 3});
  expect_says(message_of<DataError>([&] { source->start_epoch({.epoch = 3}); }),
              {"epoch 3", "still open"});
  while (source->next(batch)) {
  }
  EXPECT_FALSE(source->next(batch)) << "at the end it stays at the end";
  EXPECT_FALSE(batch.has_value());
  EXPECT_NO_THROW(source->start_epoch({.epoch = 4}))
      << "an epoch that was read to its end is closed";
  source->stop_epoch();
  source->stop_epoch();
}

TEST(DataLoader, MakesOrdinaryTensorsUnderInferenceMode) {
  const c10::InferenceMode inference;
  for (const Tensor& batch : DataLoader(IndexDataset{2}).epoch(0))
    EXPECT_FALSE(batch.is_inference());
}

// Datasets of torch::data, mapped or not.
struct Squares : torch::data::Dataset<Squares> {
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {torch::tensor(i), torch::tensor(i * i)};
  }
  std::optional<std::size_t> size() const override { return 5; }
};

TEST(DataLoader, ReadsDatasetsOfTorchData) {
  const DataLoader plain(Squares(), {.batch_size = 2, .num_workers = 1});
  static_assert(std::is_same_v<decltype(plain), const DataLoader<torch::data::Example<>>>);
  Epoch targets;
  for (const auto& example : plain.epoch(0)) targets.push_back(to_vector(example.target));
  EXPECT_EQ(targets, (Epoch{{0, 1}, {4, 9}, {16}}));

  const DataLoader mapped(Squares().map(torch::data::transforms::Stack<>()), {.batch_size = 3});
  static_assert(std::is_same_v<decltype(mapped), const DataLoader<torch::data::Example<>>>);
  targets.clear();
  for (const auto& example : mapped.epoch(0)) targets.push_back(to_vector(example.target));
  EXPECT_EQ(targets, (Epoch{{0, 1, 4}, {9, 16}}));
}

}  // namespace
}  // namespace fulmen
