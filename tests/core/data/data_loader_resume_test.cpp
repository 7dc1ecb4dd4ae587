#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>

#include "fulmen/core/data/data_loader.h"
#include "tests/core/data/data_helpers.h"

namespace fulmen {
namespace {

// Faults 39 and 40: each run is a new process that knows what the checkpoint says and no more.
TEST(DataLoader, ResumedInANewProcessHasTheOrderOfTheUnbrokenRun) {
  const auto make = [](std::uint64_t default_seed) {
    auto source = DataLoader(IndexDataset{10}, {.batch_size = 1, .shuffle = true}).source();
    source->set_default_seed(default_seed);
    return source;
  };
  const auto unbroken = make(1);
  std::vector<Epoch> expected;
  for (int epoch = 0; epoch < 3; ++epoch)
    expected.push_back(read_epoch(*unbroken, {.epoch = epoch}));

  StateDict state = make(1)->state_dict();
  for (int epoch = 0; epoch < 3; ++epoch) {
    const auto first = make(99);
    first->load_state_dict(state);
    EXPECT_EQ(read_epoch(*first, {.epoch = epoch}, 4),
              Epoch(expected[epoch].begin(), expected[epoch].begin() + 4));
    const auto second = make(98);
    second->load_state_dict(first->state_dict());
    EXPECT_EQ(read_epoch(*second, {.epoch = epoch, .batches_to_skip = 4}),
              Epoch(expected[epoch].begin() + 4, expected[epoch].end()));
    state = second->state_dict();
  }
}

struct Growing {
  std::shared_ptr<std::int64_t> count;
  std::int64_t size() const { return *count; }
  std::int64_t get(std::int64_t index) const { return index; }
};

TEST(DataLoader, ReadsTheSizeOfADatasetThatGrowsAtTheStartOfEachEpoch) {
  const Growing dataset{std::make_shared<std::int64_t>(4)};
  const auto source = DataLoader(dataset, {.batch_size = 2, .shuffle = true}).source();
  source->start_epoch({.epoch = 0});
  *dataset.count = 7;
  EXPECT_EQ(source->size(), 2) << "the epoch that is open keeps its size";
  AnyBatch batch;
  int batches = 0;
  while (source->next(batch)) ++batches;
  source->stop_epoch();
  EXPECT_EQ(batches, 2);
  EXPECT_EQ(source->size(), 4);
  EXPECT_EQ(sorted(flatten(read_epoch(*source, {.epoch = 1}))), iota(7));
}

TEST(DataLoader, ResumesInsideAnEpochWithTheSizeThatItHad) {
  const Growing dataset{std::make_shared<std::int64_t>(6)};
  const DataLoader loader(dataset, {.batch_size = 2, .shuffle = true, .seed = 3});
  const auto whole = read(loader, {.epoch = 1});
  const auto before = loader.source();
  before->start_epoch({.epoch = 1});
  const auto state = before->state_dict();

  *dataset.count = 11;
  const auto after = loader.source();
  after->load_state_dict(state);
  EXPECT_EQ(read_epoch(*after, {.epoch = 1, .batches_to_skip = 1}),
            Epoch(whole.begin() + 1, whole.end()));
  EXPECT_EQ(sorted(flatten(read_epoch(*after, {.epoch = 2}))), iota(11));

  *dataset.count = 5;
  const auto shrunk = loader.source();
  shrunk->load_state_dict(state);
  expect_says(
      message_of<DataError>([&] { shrunk->start_epoch({.epoch = 1, .batches_to_skip = 1}); }),
      {"has 5 samples", "had 6", "shrink"});
  EXPECT_EQ(read_epoch(*shrunk, {.epoch = 2}).size(), 3U)
      << "at the start of an epoch any size is right";
}

TEST(DataLoader, RefusesToResumeInsideAnEpochWithOtherOptions) {
  const auto state_of = [](const DataLoaderOptions& options) {
    const auto source = DataLoader(IndexDataset{10}, options).source();
    source->start_epoch({.epoch = 1});
    return source->state_dict();
  };
  const auto resume =
      [](const DataLoaderOptions& options, const StateDict& state, EpochStart start) {
        const auto source = DataLoader(IndexDataset{10}, options).source();
        source->load_state_dict(state);
        source->start_epoch(start);
      };
  const EpochStart inside{.epoch = 1, .batches_to_skip = 1};
  const auto state = state_of({.batch_size = 2, .shuffle = true});
  const auto error = [&](const DataLoaderOptions& options, EpochStart start) {
    return message_of<DataError>([&] { resume(options, state, start); });
  };
  expect_says(error({.batch_size = 3, .shuffle = true}, inside), {"batch_size is 3", "was 2"});
  expect_says(error({.batch_size = 2}, inside), {"shuffle is false", "was true"});
  expect_says(error({.batch_size = 2, .shuffle = true, .drop_last = true}, inside),
              {"drop_last is true"});
  expect_says(error({.batch_size = 2, .shuffle = true, .seed = 9}, inside), {"seed is 9", "was 0"});
  expect_says(error({.batch_size = 2, .shuffle = true}, {.epoch = 4, .batches_to_skip = 1}),
              {"epoch is 4", "was 1"});
  EXPECT_NO_THROW(resume({.batch_size = 2, .shuffle = true}, state, inside));
  EXPECT_NO_THROW(resume({.batch_size = 5}, state, {.epoch = 2}))
      << "options may change between epochs";
  EXPECT_THROW(resume({}, {}, {}), CheckpointError)
      << "a state without a seed is no state of a loader";
}

TEST(DataLoader, StateCountsWhatWasConsumedNotWhatWasPrefetched) {
  const auto make = [](int workers) {
    return DataLoader(IndexDataset{12},
                      {.shuffle = true, .num_workers = workers, .prefetch_factor = 4})
        .source();
  };
  const auto plain = make(0);
  const auto ahead = make(2);
  for (const auto& source : {plain, ahead}) {
    source->start_epoch({.epoch = 3});
    AnyBatch batch;
    for (int i = 0; i < 3; ++i) source->next(batch);
  }
  EXPECT_EQ(plain->state_dict().values, ahead->state_dict().values);
}

}  // namespace
}  // namespace fulmen
