// Predictions of several ranks: whole, in the order of the data, on rank 0.
#include <gmock/gmock.h>

#include <atomic>
#include <string_view>

#include "core/data/batch_bytes.h"
#include "tests/core/distributed/error_text.h"
#include "tests/strategies/ddp_ranks.h"
#include "trainer/loops/predict_gather.h"

namespace fulmen {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// predict_step is what the test says.
template <class P>
struct Predictor : LightningModule<Batch, P> {
  explicit Predictor(std::function<P(const at::Tensor&)> step) : predict(std::move(step)) {
    this->register_parameter("w", torch::ones({}));
  }
  P predict_step(Batch& batch, std::int64_t, std::int64_t) override {
    return predict(batch.tensors[0]);
  }
  std::function<P(const at::Tensor&)> predict;
};

DataLoader<Batch> indices(std::int64_t samples, std::int64_t batch_size, std::int64_t first = 0) {
  return DataLoader(tensor_dataset({torch::arange(first, first + samples)}),
                    {.batch_size = batch_size});
}

std::vector<std::int64_t> numbers(const at::Tensor& tensor) {
  const auto flat = tensor.reshape(-1).contiguous();
  const auto* begin = flat.const_data_ptr<std::int64_t>();
  return {begin, begin + flat.numel()};
}

std::vector<std::int64_t> range(std::int64_t end) {
  return numbers(torch::arange(end));
}

TEST(DdpPredict, GivesRank0EverySampleOnceInOrderAndTheOthersNothing) {
  for (const int ranks : {2, 3, 4}) {
    run_thread_ranks(ranks, [&](const std::shared_ptr<World>& world) {
      // Of 103 samples some are left for the last joint batch, with 4 ranks fewer than ranks.
      const auto module =
          std::make_shared<Predictor<at::Tensor>>([](const at::Tensor& x) { return x.clone(); });
      const auto outputs = Trainer(quiet(world)).predict(module, indices(103, 5));
      if (world->rank() > 0) {
        EXPECT_TRUE(outputs.empty());
        return;
      }
      ASSERT_FALSE(outputs.empty());
      EXPECT_EQ(numbers(at::cat(outputs)), range(103));
      for (const auto& output : outputs) EXPECT_LE(output.size(0), 5);
    });
  }
}

TEST(DdpPredict, KeepsTheLoadersApartAndTheirLimits) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    auto options = quiet(world);
    options.limit_predict_batches = batches(2);
    const auto module =
        std::make_shared<Predictor<at::Tensor>>([](const at::Tensor& x) { return x.clone(); });
    // Of the second one rank 1 has nothing.
    const auto outputs =
        Trainer(options).predict(module, {indices(9, 2), indices(1, 2, 100), indices(4, 1, 200)});
    if (world->rank() > 0) {
      EXPECT_TRUE(outputs.empty());
      return;
    }
    EXPECT_THAT(numbers(at::cat(outputs)),
                ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 100, 200, 201, 202, 203));
  });
}

TEST(DdpPredict, CountsRanksThatShareSamplesOnce) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    for (const int data : {1, 2}) {
      const auto module =
          std::make_shared<Predictor<at::Tensor>>([](const at::Tensor& x) { return x.clone(); });
      const auto outputs = Trainer(quiet(world, {{"data", data}, {"model", 4 / data}}))
                               .predict(module, indices(11, 3));
      if (world->rank() > 0) {
        EXPECT_TRUE(outputs.empty());
      } else {
        EXPECT_EQ(numbers(at::cat(outputs)), range(11));
      }
    }
  });
}

TEST(DdpPredict, LeavesPredictionsOfDataThatRanksSplitThemselvesWhereTheyAre) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const auto module =
        std::make_shared<Predictor<at::Tensor>>([](const at::Tensor& x) { return x.clone(); });
    const auto outputs =
        Trainer(own_data(world)).predict(module, indices(3, 2, 10 * world->rank()));
    const auto first = 10 * world->rank();
    EXPECT_THAT(numbers(at::cat(outputs)), ElementsAre(first, first + 1, first + 2));
  });
}

enum class Kind { kEven, kOdd };

/// All that a prediction may hold.
struct Rich {
  at::Tensor logits = {};
  at::Tensor nothing = {};
  std::vector<std::string> names = {};
  std::map<std::string, std::vector<double>> scores = {};
  std::optional<std::pair<std::int32_t, at::Tensor>> best = {};
  std::tuple<Kind, std::array<float, 2>, Batch> parts = {};
  std::vector<bool> flags = {};
  std::set<std::int64_t> ids = {};
};
[[maybe_unused]] auto batch_parts(Rich& rich) {
  return std::tie(rich.logits,
                  rich.nothing,
                  rich.names,
                  rich.scores,
                  rich.best,
                  rich.parts,
                  rich.flags,
                  rich.ids);
}

Rich rich(std::int64_t i) {
  Rich value{.logits = (torch::arange(6) + i).reshape({2, 3}).t().to(torch::kBFloat16)};
  for (std::int64_t k = 0; k < i % 3; ++k)
    value.names.push_back(std::string("na\0me", 5) + std::to_string(i));
  value.scores["a"] = {0.1 * static_cast<double>(i), 1e-300};
  value.scores[std::string(static_cast<std::size_t>(i), 'b')] = {};
  if (i % 2 == 0) value.best = {static_cast<std::int32_t>(i), torch::full({}, i)};
  value.parts = {i % 2 == 0 ? Kind::kEven : Kind::kOdd,
                 {0.5f, static_cast<float>(i)},
                 Batch{{torch::ones({0, 4}), torch::tensor({true, i % 2 == 0})}}};
  value.flags = {i % 2 == 0, true, false};
  value.ids = {i, -i};
  return value;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.scalar_type() == b.scalar_type() && at::equal(a, b);
}

void expect_same(const Rich& a, const Rich& b) {
  EXPECT_TRUE(same(a.logits, b.logits));
  EXPECT_TRUE(same(a.nothing, b.nothing));
  EXPECT_EQ(a.names, b.names);
  EXPECT_EQ(a.scores, b.scores);
  ASSERT_EQ(a.best.has_value(), b.best.has_value());
  if (a.best) {
    EXPECT_TRUE(a.best->first == b.best->first && same(a.best->second, b.best->second));
  }
  EXPECT_EQ(std::get<0>(a.parts), std::get<0>(b.parts));
  EXPECT_EQ(std::get<1>(a.parts), std::get<1>(b.parts));
  const auto& tensors = std::get<2>(a.parts).tensors;
  ASSERT_EQ(tensors.size(), std::get<2>(b.parts).tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    EXPECT_TRUE(same(tensors[i], std::get<2>(b.parts).tensors[i]));
  EXPECT_EQ(a.flags, b.flags);
  EXPECT_EQ(a.ids, b.ids);
}

TEST(DdpPredict, BringsStructsWithAllTheirPartsToRank0) {
  run_thread_ranks(3, [](const std::shared_ptr<World>& world) {
    const auto module = std::make_shared<Predictor<Rich>>(
        [](const at::Tensor& x) { return rich(x[0].item<std::int64_t>()); });
    const auto outputs = Trainer(quiet(world)).predict(module, indices(8, 1));
    if (world->rank() > 0) {
      EXPECT_TRUE(outputs.empty());
      return;
    }
    ASSERT_EQ(outputs.size(), 8U);
    for (std::int64_t i = 0; i < 8; ++i) expect_same(outputs[static_cast<std::size_t>(i)], rich(i));
  });
}

/// Fulmen knows its tensors only, and they are all of it.
struct Pair {
  at::Tensor first, second;
};
void for_each_tensor(Pair& pair, const TensorVisitor& visit) {
  visit(pair.second);
  visit(pair.first);
}

TEST(DdpPredict, BringsStructsOfTensorsAndContainersOfThemToRank0) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    using Prediction = std::vector<Pair>;
    const auto module = std::make_shared<Predictor<Prediction>>([](const at::Tensor& x) {
      Prediction result;
      for (std::int64_t i = 0; i < x.size(0); ++i) result.push_back({x[i].clone(), x[i] + 100});
      return result;
    });
    const auto outputs = Trainer(quiet(world)).predict(module, indices(7, 2));
    if (world->rank() > 0) {
      EXPECT_TRUE(outputs.empty());
      return;
    }
    std::int64_t next = 0;
    for (const auto& output : outputs) {
      for (const auto& pair : output) {
        EXPECT_EQ(pair.first.item<std::int64_t>(), next);
        EXPECT_EQ(pair.second.item<std::int64_t>(), next + 100);
        ++next;
      }
    }
    EXPECT_EQ(next, 7);
  });
}

/// Fulmen knows its tensor, and nothing of the text.
struct Captioned {
  at::Tensor image;
  std::string text;
};
void for_each_tensor(Captioned& captioned, const TensorVisitor& visit) {
  visit(captioned.image);
}

/// As an instance of 3 ranks, the last of which has no batch.
template <class P>
std::vector<std::string> errors_of_predictions(std::function<P(const at::Tensor&)> step,
                                               std::int64_t samples = 2) {
  std::atomic<int> config_errors = 0;
  auto errors = errors_of(3, [&](const std::shared_ptr<World>& world) {
    try {
      const auto module = std::make_shared<Predictor<P>>(step);
      auto options = quiet(world);
      options.log_sink = std::make_shared<CapturingSink>();
      Trainer(options).predict(module, indices(samples, 1));
    } catch (const ConfigError&) {
      ++config_errors;
      throw;
    }
  });
  EXPECT_EQ(config_errors, 3);
  return errors;
}

TEST(DdpPredict, RefusesOnAllRanksWhatWouldLosePartsAndNamesTheRemedy) {
  const auto steps = std::make_shared<std::atomic<int>>(0);
  EXPECT_THAT(errors_of_predictions<Captioned>(
                  [=](const at::Tensor& x) {
                    ++*steps;
                    return Captioned{x.clone(), "text"};
                  },
                  40),
              Each(AllOf(HasSubstr("Captioned"), HasSubstr("batch_parts"))));
  EXPECT_EQ(*steps, 3) << "before the second batch";
  EXPECT_THAT(errors_of_predictions<std::vector<std::string_view>>(
                  [](const at::Tensor&) { return std::vector<std::string_view>{"view"}; }),
              Each(AllOf(HasSubstr("string_view"), HasSubstr("batch_parts"))));
  EXPECT_THAT(errors_of_predictions<at::Tensor>([](const at::Tensor& x) {
                return x[0].item<std::int64_t>() == 1 ? torch::eye(2).to_sparse() : torch::eye(2);
              }),
              Each(AllOf(HasSubstr("Sparse"), HasSubstr("Make it dense"))));
}

TEST(DdpPredict, NeedsNothingOfTheTypeWhereRanksShareAllSamples) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const auto module = std::make_shared<Predictor<Captioned>>([](const at::Tensor& x) {
      return Captioned{x.clone(), "text"};
    });
    const auto outputs = Trainer(quiet(world, {{"model", 2}})).predict(module, indices(3, 1));
    EXPECT_EQ(outputs.size(), world->rank() == 0 ? 3U : 0U);
  });
}

TEST(GatherPredictions, HoldsNoMoreThanAChunkAndSendsItInPieces) {
  // A tensor of 1 to 6 numbers of 8 bytes takes 32 more, so 80 at most: 500 bytes hold two of each
  // rank.
  struct Case {
    detail::PredictGatherOptions options;
    std::int64_t per_round;
  };
  for (const auto& [options, per_round] : {Case{{.chunk_bytes = 500}, 2},
                                           Case{{.chunk_bytes = 1}, 1},
                                           Case{{}, 6},
                                           Case{{.chunk_bytes = 500, .piece_bytes = 7}, 0}}) {
    run_thread_ranks(
        3, [&, per_round = per_round, options = options](const std::shared_ptr<World>& world) {
          const DeviceMesh mesh({{"data", 3}}, world);
          const auto rank = world->rank();
          std::vector<std::vector<AnyBatch>> loaders(1);
          const std::int64_t counts[] = {6, 5, 4};
          for (std::int64_t i = 0; i < counts[rank]; ++i)
            loaders[0].push_back(AnyBatch(torch::full({1 + i}, 3 * i + rank)));
          world->counters().reset();
          const auto result = detail::gather_predictions(std::move(loaders), mesh, options);
          const auto sent = world->counters().of(CollectiveKind::kSend);
          if (rank > 0) {
            EXPECT_TRUE(result.empty());
            if (per_round > 0) {
              EXPECT_EQ(sent.calls, (counts[rank] + per_round - 1) / per_round);
            } else {
              EXPECT_GE(sent.calls, sent.bytes / 7);
            }
            return;
          }
          std::vector<std::int64_t> values;
          for (const auto& batch : result)
            values.push_back(batch.get<at::Tensor>()[0].item<int64_t>());
          EXPECT_THAT(values, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15));
          EXPECT_EQ(result.back().get<at::Tensor>().numel(), 6);
        });
  }
}

TEST(GatherPredictions, RefusesOnAllRanksIfRank0CannotTellTheType) {
  std::atomic<int> thrown = 0;
  run_thread_ranks(2, [&](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh({{"data", 2}}, world);
    std::vector<std::vector<AnyBatch>> loaders(1);
    if (world->rank() == 1) loaders[0].push_back(AnyBatch(torch::ones({1})));
    testing::error_text<ConfigError>([&] { detail::gather_predictions(std::move(loaders), mesh); });
    ++thrown;
  });
  EXPECT_EQ(thrown, 2);
}

TEST(BatchBytes, AreRefusedWhereTheyEndTooEarly) {
  Rich value = rich(5);
  std::string bytes;
  detail::append_bytes(BatchView(value), bytes);
  EXPECT_EQ(bytes.size(), detail::count_bytes(BatchView(value)));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    Rich other;
    auto left = std::string_view(bytes).substr(0, size);
    EXPECT_THROW(detail::take_bytes(left, BatchView(other)), DistributedError) << size;
  }
  Rich other;
  std::string_view left = bytes;
  detail::take_bytes(left, BatchView(other));
  EXPECT_TRUE(left.empty());
  expect_same(other, value);
}

}  // namespace
}  // namespace fulmen
