#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "fulmen/core/data/data_loader.h"
#include "fulmen/core/data/tensor_dataset.h"
#include "tests/core/data/data_helpers.h"

namespace fulmen {
namespace {

using torch::Tensor;
using namespace std::chrono_literals;

/// Sample i is i, plus noise, after a pause of its own.
struct Sleepy {
  std::int64_t size() const { return 24; }
  Tensor get(std::int64_t index, at::Generator& generator) const {
    thread_local std::mt19937 engine(std::random_device{}());
    std::this_thread::sleep_for(std::chrono::microseconds(engine() % 2000));
    return torch::cat({torch::tensor({index}), torch::randint(1 << 30, {1}, generator)});
  }
};

// Faults 88 and 89.
TEST(DataLoaderThreads, YieldTheSameBatchesForAnyNumberOfWorkers) {
  const auto read = [](int workers, std::int64_t epoch, std::int64_t skip = 0) {
    const DataLoader loader(Sleepy(),
                            {.batch_size = 5, .shuffle = true, .num_workers = workers, .seed = 4});
    return read_epoch(*loader.source(), {.epoch = epoch, .batches_to_skip = skip});
  };
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    const auto expected = read(0, epoch);
    ASSERT_EQ(expected.size(), 5U);
    for (const int workers : {1, 2, 4, 9}) {
      EXPECT_EQ(read(workers, epoch), expected) << workers << " workers";
      EXPECT_EQ(read(workers, epoch, 2), Epoch(expected.begin() + 2, expected.end())) << "fault 39";
    }
  }
}

struct Counting {
  std::shared_ptr<std::atomic<int>> made = std::make_shared<std::atomic<int>>(0);
  std::int64_t size() const { return 1000; }
  std::int64_t get(std::int64_t index) const { return ++*made, index; }
};

TEST(DataLoaderThreads, ReadAheadNoFurtherThanTheBound) {
  const Counting dataset;
  const auto source =
      DataLoader(dataset, {.batch_size = 2, .num_workers = 3, .prefetch_factor = 2}).source();
  source->start_epoch({});
  AnyBatch batch;
  for (int consumed = 0; consumed < 4; ++consumed) {
    const auto bound = 2 * (6 + consumed);
    for (int i = 0; i < 500 && *dataset.made < bound; ++i) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(5ms);
    EXPECT_EQ(*dataset.made, bound) << "six batches ahead of " << consumed;
    ASSERT_TRUE(source->next(batch));
  }
}

struct Failing {
  std::int64_t size() const { return 12; }
  std::int64_t get(std::int64_t index) const {
    if (index == 5) throw std::out_of_range("sample 5 is corrupt");
    return index;
  }
};

TEST(DataLoaderThreads, CarryAnExceptionToItsPlaceAndGoOn) {
  for (const int workers : {0, 1, 3}) {
    const auto source = DataLoader(Failing(), {.batch_size = 2, .num_workers = workers}).source();
    for (int epoch = 0; epoch < 2; ++epoch) {
      source->start_epoch({.epoch = epoch});
      AnyBatch batch;
      EXPECT_TRUE(source->next(batch));
      EXPECT_TRUE(source->next(batch));
      EXPECT_EQ(message_of<std::out_of_range>([&] { source->next(batch); }), "sample 5 is corrupt");
      EXPECT_FALSE(batch.has_value());
      ASSERT_TRUE(source->next(batch)) << workers << " workers: the next batch is there";
      EXPECT_EQ(to_vector(batch.get<Tensor>()), (std::vector<std::int64_t>{6, 7}));
      source->stop_epoch();
    }
  }
}

TEST(DataLoaderThreads, CanBeLeftAtAnyPoint) {
  const DataLoader loader(Sleepy(), {.batch_size = 2, .num_workers = 3, .prefetch_factor = 1});
  const auto source = loader.source();
  for (std::int64_t limit = 0; limit <= 13; ++limit) {
    EXPECT_EQ(std::ssize(read_epoch(*source, {.epoch = limit}, limit)),
              std::min<std::int64_t>(limit, 12));
  }
  source->start_epoch({.epoch = 20});  // Destroyed while open.
}

TEST(DataLoaderThreads, StopBetweenSamplesNotAtTheEndOfABatch) {
  struct Slow {
    std::int64_t size() const { return 10000; }
    std::int64_t get(std::int64_t index) const {
      std::this_thread::sleep_for(1ms);
      return index;
    }
  };
  const auto source = DataLoader(Slow(), {.batch_size = 10000, .num_workers = 1}).source();
  source->start_epoch({});
  std::this_thread::sleep_for(10ms);
  const auto start = std::chrono::steady_clock::now();
  source->stop_epoch();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s) << "the whole batch takes 10 s";
}

TEST(DataLoaderThreads, WorkOnOtherThreadsWithOneThreadForEachOperator) {
  struct Seen {
    std::mutex mutex;
    std::set<std::thread::id> threads;
    std::set<int> operator_threads;
  };
  struct Recording {
    std::shared_ptr<Seen> seen = std::make_shared<Seen>();
    std::int64_t size() const { return 40; }
    std::int64_t get(std::int64_t index) const {
      std::this_thread::sleep_for(1ms);
      const std::lock_guard lock(seen->mutex);
      seen->threads.insert(std::this_thread::get_id());
      seen->operator_threads.insert(at::get_num_threads());
      return index;
    }
  };
  const auto before = at::get_num_threads();
  at::set_num_threads(2);
  const Recording dataset;
  read_epoch(*DataLoader(dataset, {.num_workers = 2}).source(), {});
  EXPECT_EQ(dataset.seen->threads.size(), 2U);
  EXPECT_FALSE(dataset.seen->threads.contains(std::this_thread::get_id()));
  EXPECT_EQ(dataset.seen->operator_threads, std::set<int>{1});
  EXPECT_EQ(at::get_num_threads(), 2) << "the caller keeps its own";
  int elsewhere = 0;
  std::thread([&] { elsewhere = at::get_num_threads(); }).join();
  EXPECT_EQ(elsewhere, 2) << "so does any other thread";
  at::set_num_threads(before);
}

TEST(DataLoaderThreads, ShareOneDatasetBetweenTrainingAndValidation) {
  const auto x = torch::arange(200);
  const DataLoader loader(tensor_dataset({x}),
                          {.batch_size = 7, .shuffle = true, .num_workers = 2},
                          [](Batch batch) { return batch.tensors[0]; });
  const auto training = loader.source();
  const auto validation = loader.source();
  training->start_epoch({});
  AnyBatch batch;
  std::int64_t sum = 0;
  while (training->next(batch)) {
    sum += batch.get<Tensor>().sum().item<std::int64_t>();
    EXPECT_EQ(read_epoch(*validation, {}, 2).size(), 2U);
  }
  EXPECT_EQ(sum, 199 * 200 / 2);
}

}  // namespace
}  // namespace fulmen
