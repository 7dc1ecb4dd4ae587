#include "fulmen/core/data/loader.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <iterator>
#include <list>

#include "fulmen/core/data/data_loader.h"
#include "fulmen/core/data/stream_loader.h"
#include "fulmen/core/data/tensor_dataset.h"
#include "tests/core/data/data_helpers.h"

namespace fulmen {
namespace {

using torch::Tensor;

std::vector<Tensor> three_batches() {
  return {torch::tensor({0}), torch::tensor({1}), torch::tensor({2})};
}
const Epoch kThree = {{0}, {1}, {2}};

struct Countdown final : BatchSource {
  int left = 0;
  const std::type_info& batch_type() const override { return typeid(Tensor); }
  std::optional<std::int64_t> size() const override { return {}; }
  void start_epoch(const EpochStart&) override { left = 2; }
  bool next(AnyBatch& batch) override {
    batch.reset();
    if (left == 0) return false;
    batch = AnyBatch(torch::tensor({left--}));
    return true;
  }
};

TEST(Loader, IsEmptyByDefault) {
  const Loader<Batch> loader;
  EXPECT_FALSE(loader);
  EXPECT_EQ(loader.source(), nullptr);
  EXPECT_THROW(loader.epoch(0), ConfigError);
}

TEST(Loader, KnowsWhatALoaderYields) {
  using Data = decltype(DataLoader(tensor_dataset({})));
  static_assert(std::is_same_v<loader_batch_t<Data>, Batch>);
  static_assert(std::is_same_v<loader_batch_t<const Data&>, Batch>);
  static_assert(std::is_same_v<loader_batch_t<std::vector<Tensor>&>, Tensor>);
  static_assert(std::is_same_v<loader_batch_t<Loader<Tensor>>, Tensor>);
  static_assert(std::is_same_v<loader_batch_t<std::unique_ptr<std::list<Batch>>>, Batch>);
  static_assert(std::is_void_v<loader_batch_t<std::shared_ptr<Countdown>>>);
}

TEST(Loader, RefersToARangeThatIsAnLvalueAndKeepsOneThatIsNot) {
  auto batches = three_batches();
  const Loader<Tensor> refers = batches;
  const Loader<Tensor> keeps = three_batches();
  EXPECT_EQ(read_epoch(*refers.source(), {}), kThree);
  EXPECT_EQ(read_epoch(*keeps.source(), {}), kThree);
  batches.push_back(torch::tensor({3}));
  EXPECT_EQ(refers.source()->size(), 4);
  EXPECT_EQ(keeps.source()->size(), 3);
  const auto& constant = batches;
  EXPECT_EQ(read_epoch(*Loader<Tensor>(constant).source(), {}).size(), 4U);
}

TEST(Loader, YieldsCopiesSoThatARangeKeepsItsTensors) {
  auto batches = three_batches();
  const Loader<Tensor> loader = batches;
  loader.source()->start_epoch({});
  AnyBatch batch;
  while (loader.source()->next(batch)) batch.view().to(c10::kMeta);
  EXPECT_FALSE(batches[0].is_meta());
}

TEST(Loader, SkipsInARangeWithRandomAccess) {
  const Loader<Tensor> loader = three_batches();
  EXPECT_TRUE(loader.source()->can_skip());
  EXPECT_EQ(read_epoch(*loader.source(), {.batches_to_skip = 2}), (Epoch{{2}}));
  EXPECT_EQ(read_epoch(*loader.source(), {.batches_to_skip = 3}), Epoch{});
  expect_says(message_of<DataError>([&] { loader.source()->start_epoch({.batches_to_skip = 4}); }),
              {"skip 4", "has 3"});
}

TEST(Loader, SaysThatARangeWithoutStateCannotResumeInsideAnEpoch) {
  std::list<Tensor> batches;
  for (auto& batch : three_batches()) batches.push_back(batch);
  const Loader<Tensor> loader = batches;
  EXPECT_FALSE(loader.source()->can_skip());
  EXPECT_EQ(loader.source()->size(), 3);
  expect_says(message_of<DataError>([&] { loader.source()->start_epoch({.batches_to_skip = 1}); }),
              {"cannot be resumed inside", "fulmen::DataLoader", "end of an epoch"});
  EXPECT_EQ(read_epoch(*loader.source(), {}), kThree);
}

// Numbers that are gone once read, as from a file or a socket.
struct OnePass {
  struct Iterator {
    using difference_type = std::ptrdiff_t;
    using value_type = Tensor;
    OnePass* range;
    Tensor operator*() const { return torch::tensor({range->number}); }
    Iterator& operator++() {
      ++range->number;
      return *this;
    }
    void operator++(int) { ++range->number; }
    bool operator==(std::default_sentinel_t) const { return range->number == range->end_number; }
  };
  static_assert(std::input_iterator<Iterator>);

  std::int64_t number = 0;
  std::int64_t end_number = 3;
  Iterator begin() { return {this}; }
  std::default_sentinel_t end() { return {}; }
};

// Fault 86: an error rather than an empty epoch.
TEST(Loader, NoticesARangeThatCanBeReadOnlyOnce) {
  const Loader<Tensor> loader = OnePass();
  EXPECT_EQ(loader.source()->size(), std::nullopt);
  EXPECT_EQ(read_epoch(*loader.source(), {}), kThree);
  expect_says(message_of<DataError>([&] { read_epoch(*loader.source(), {.epoch = 1}); }),
              {"empty in epoch 1", "only once", "stream_loader"});
}

TEST(Loader, ReadsNoBatchOfARangeThatIsNotAskedFor) {
  OnePass batches;
  const Loader<Tensor> loader = batches;
  EXPECT_EQ(read_epoch(*loader.source(), {}, 2).size(), 2U);
  EXPECT_EQ(batches.number, 1) << "the step to number 2 was not made";
}

TEST(Loader, RefusesASecondEpochInsideOne) {
  const Loader<Tensor> loader = three_batches();
  const auto copy = loader;
  loader.source()->start_epoch({});
  EXPECT_THROW(copy.source()->start_epoch({}), DataError) << "copies share their position";
}

TEST(Loader, ChecksTheBatchTypeOfASourceAtRunTime) {
  const Loader<Tensor> loader = std::make_shared<Countdown>();
  EXPECT_EQ(read_epoch(*loader.source(), {}), (Epoch{{2}, {1}}));
  EXPECT_EQ(read_epoch(*Loader<Tensor>(std::make_unique<Countdown>()).source(), {}).size(), 2U);
  const auto wrong = [] { return Loader<Batch>(std::make_shared<Countdown>()); };
  expect_says(message_of<ConfigError>(wrong), {"yields at::Tensor", "fulmen::Batch"});
  EXPECT_THROW(Loader<Tensor>(std::shared_ptr<BatchSource>()), ConfigError);
  EXPECT_THROW(Loader<Tensor>(std::unique_ptr<std::vector<Tensor>>()), ConfigError);
}

auto torch_loader(std::size_t workers, std::size_t size = 12) {
  auto dataset =
      torch::data::datasets::TensorDataset(torch::arange(static_cast<std::int64_t>(size)))
          .map(torch::data::transforms::Stack<torch::data::TensorExample>());
  return torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      std::move(dataset), torch::data::DataLoaderOptions(4).workers(workers));
}

Epoch read_torch(BatchSource& source, int epoch, int limit) {
  Epoch result;
  source.start_epoch({.epoch = epoch});
  AnyBatch batch;
  while (std::ssize(result) < limit && source.next(batch))
    result.push_back(to_vector(batch.get<torch::data::TensorExample>().data));
  source.stop_epoch();
  return result;
}

TEST(Loader, TakesALoaderOfTorchDataByPointerOrByReference) {
  const Epoch whole = {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}};
  auto owned = torch_loader(0);
  const Loader<torch::data::TensorExample> by_reference = *owned;
  const Loader<torch::data::TensorExample> by_pointer = owned;
  const Loader<torch::data::TensorExample> kept = torch_loader(0);
  for (const auto* loader : {&by_reference, &by_pointer, &kept}) {
    EXPECT_EQ(read_torch(*loader->source(), 0, 10), whole);
    EXPECT_EQ(read_torch(*loader->source(), 1, 10), whole);
    EXPECT_FALSE(loader->source()->can_skip());
  }
  const Loader<torch::data::TensorExample> shared = std::shared_ptr(torch_loader(0));
  EXPECT_EQ(read_torch(*shared.source(), 0, 10), whole);
}

// Fault 87, probe P5.
TEST(Loader, LeavesALoaderOfTorchDataEarlyWhateverItsWorkers) {
  for (const std::size_t workers : {0, 2}) {
    const Loader<torch::data::TensorExample> loader = torch_loader(workers);
    for (int epoch = 0; epoch < 3; ++epoch) {
      EXPECT_EQ(read_torch(*loader.source(), epoch, 1), (Epoch{{0, 1, 2, 3}}))
          << workers << " workers, epoch " << epoch;
    }
    EXPECT_EQ(read_torch(*loader.source(), 3, 10).size(), 3U);
  }
}

TEST(Loader, TouchesNoRangeThatIsGoneWhenItDies) {
  Loader<torch::data::TensorExample> loader;
  {
    auto owned = torch_loader(2);
    loader = owned;
    read_torch(*loader.source(), 0, 1);
  }
  loader = {};
}

TEST(Loaders, ConvertFromNothingOneOrSeveral) {
  const DataLoader data(IndexDataset{4});
  std::vector<Tensor> batches = three_batches();
  EXPECT_TRUE(Loaders<Tensor>().empty());
  EXPECT_TRUE(Loaders<Tensor>(Loader<Tensor>()).empty());
  EXPECT_EQ(Loaders<Tensor>(data).size(), 1U);
  EXPECT_EQ(Loaders<Tensor>(batches).size(), 1U);
  const Loaders<Tensor> list = {data, batches};
  EXPECT_EQ(list.size(), 2U);
  EXPECT_EQ(*list[1].source()->size(), 3);
  EXPECT_EQ(Loaders<Tensor>(std::vector<Loader<Tensor>>{data, data, batches}).size(), 3U);
  EXPECT_EQ(Loaders<Tensor>(std::vector{data, data}).size(), 2U);
  expect_says(message_of<ConfigError>([&] {
                Loaders<Tensor>({Loader<Tensor>(data), Loader<Tensor>()});
              }),
              {"loader 1 of 2", "empty"});
  const auto take = [](const Loaders<Tensor>& loaders = {}) { return loaders.size(); };
  EXPECT_EQ(take(), 0U);
  EXPECT_EQ(take(data), 1U);
  EXPECT_EQ(take({data, batches}), 2U);
  EXPECT_EQ(take({}), 0U);
}

TEST(LoaderEpoch, LeavesTheEpochWhereTheLoopStopped) {
  const Loader<Tensor> loader = DataLoader(IndexDataset{4}, {.num_workers = 2});
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (const Tensor& batch : loader.epoch(epoch)) {
      EXPECT_EQ(batch.item<int>(), 0);
      break;
    }
  }
}

auto counting_stream(std::int64_t first, std::int64_t end) {
  return [next = first, end]() mutable -> std::optional<Tensor> {
    if (next == end) return {};
    return torch::tensor({next++});
  };
}

TEST(StreamLoader, MakesANewStreamForEachEpoch) {
  const auto loader =
      stream_loader([](std::int64_t epoch) { return counting_stream(10 * epoch, 10 * epoch + 3); });
  static_assert(std::is_same_v<loader_batch_t<decltype(loader)>, Tensor>);
  const Loader<Tensor> handle = loader;
  EXPECT_EQ(handle.source()->size(), std::nullopt) << "fault 85";
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(read_epoch(*handle.source(), {.epoch = epoch}),
              (Epoch{{10 * epoch}, {10 * epoch + 1}, {10 * epoch + 2}}));
  }
}

// Fault 37.
TEST(StreamLoader, MayBeEndless) {
  const auto loader =
      stream_loader([] { return [] { return std::optional(torch::tensor({1})); }; });
  EXPECT_EQ(read_epoch(*loader.source(), {}, 100).size(), 100U);
  EXPECT_EQ(read_epoch(*loader.source(), {.epoch = 1}, 100).size(), 100U);
}

TEST(StreamLoader, SkipsOnlyIfItsFunctionCan) {
  const auto skips = [](const EpochStart& start) {
    return counting_stream(start.batches_to_skip, 4);
  };
  EXPECT_EQ(read_epoch(*stream_loader(skips, {.size = 4, .can_skip = true}).source(),
                       {.batches_to_skip = 2}),
            (Epoch{{2}, {3}}));
  EXPECT_EQ(stream_loader(skips, {.size = 4}).source()->size(), 4);
  expect_says(message_of<DataError>(
                  [&] { stream_loader(skips).source()->start_epoch({.batches_to_skip = 2}); }),
              {"cannot skip", "can_skip"});
  const auto plain = [](std::int64_t) { return counting_stream(0, 4); };
  expect_says(message_of<ConfigError>([&] { stream_loader(plain, {.can_skip = true}); }),
              {"can_skip", "EpochStart"});
  expect_says(message_of<ConfigError>([&] { stream_loader(plain, {.size = -1}); }),
              {"size", "got -1"});
}

TEST(StreamLoader, StaysAtItsEnd) {
  int calls = 0;
  const auto loader = stream_loader(
      [&] { return [&]() -> std::optional<Tensor> { return ++calls, std::nullopt; }; });
  const auto source = loader.source();
  source->start_epoch({});
  AnyBatch batch;
  EXPECT_FALSE(source->next(batch));
  EXPECT_FALSE(source->next(batch));
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace fulmen
