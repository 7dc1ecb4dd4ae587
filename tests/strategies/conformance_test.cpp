// The installed suite, on our strategies, on one that is written with public headers alone, and on
// some that are wrong.
#include <fulmen/testing/strategy_conformance.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/consumer/project/naive_strategy.h"

namespace fulmen {
namespace {

using testing::Contains;
using testing::HasSubstr;

template <class S>
StrategyUnderTest of(int ranks) {
  return {.make = [](const auto& world) { return std::make_shared<S>(world); }, .ranks = ranks};
}

StrategyUnderTest ddp(std::vector<MeshAxis> mesh, int ranks, GradientReducerOptions reducer = {}) {
  return {.make =
              [mesh, reducer](const auto& world) {
                return DdpStrategy::make({.mesh = mesh, .reducer = reducer, .world = world});
              },
          .ranks = ranks};
}

void expect_conformance(const StrategyUnderTest& strategy) {
  for (const auto& failure : check_strategy(strategy)) ADD_FAILURE() << failure;
}

TEST(Conformance, OfSingleDevice) {
  expect_conformance(
      {.make = [](const auto&) { return SingleDeviceStrategy::make(); }, .ranks = 1});
}

TEST(Conformance, OfDdp) {
  for (const int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    expect_conformance(ddp({}, ranks));
  }
}

TEST(Conformance, OfDdpWithSmallBuckets) {
  expect_conformance(ddp({}, 3, {.bucket_cap_bytes = 1, .first_bucket_cap_bytes = 1}));
}

TEST(Conformance, OfDdpOnAMeshWithAModelAxis) {
  expect_conformance(ddp({{.name = "data", .size = 2}, {.name = "model", .size = 2}}, 4));
  expect_conformance(ddp({{.name = "data", .size = 1}, {.name = "model", .size = 3}}, 3));
}

TEST(Conformance, OfAStrategyMadeOfPublicHeaders) {
  expect_conformance(of<NaiveStrategy>(1));
  expect_conformance(of<NaiveStrategy>(3));
}

struct DividesByTheWorld : NaiveStrategy {
  using NaiveStrategy::NaiveStrategy;
  double divisor(double weight) const override { return weight > 0 ? 12.0 * world()->size() : 1; }
};
struct DoesNotSum : NaiveStrategy {
  using NaiveStrategy::NaiveStrategy;
  void sum_over_ranks(at::Tensor&) const override {}
};
struct SumsTwice : NaiveStrategy {
  using NaiveStrategy::NaiveStrategy;
  void sum_over_ranks(at::Tensor& gradient) const override {
    NaiveStrategy::sum_over_ranks(gradient);
    NaiveStrategy::sum_over_ranks(gradient);
  }
};
struct ClipsLocally : DoesNotSum {
  using DoesNotSum::DoesNotSum;
  at::Tensor clip_grad_norm(std::span<const at::Tensor> parameters, double max_norm) override {
    return fulmen::clip_grad_norm(parameters, max_norm * 2);
  }
};
struct DecidesAlone : NaiveStrategy {
  using NaiveStrategy::NaiveStrategy;
  WindowVerdict finish_gradients(std::span<const at::Tensor> parameters,
                                 const WindowVote& vote) override {
    auto verdict = NaiveStrategy::finish_gradients(parameters, vote);
    verdict.skip = vote.skip;
    return verdict;
  }
};

TEST(Conformance, SeesWhatIsWrong) {
  EXPECT_THAT(check_strategy(of<DividesByTheWorld>(2)), Contains(HasSubstr("equals one process")));
  EXPECT_THAT(check_strategy(of<DoesNotSum>(2)), Contains(HasSubstr("equals one process")));
  EXPECT_THAT(check_strategy(of<SumsTwice>(2)), Contains(HasSubstr("equals one process")));
  EXPECT_THAT(check_strategy(of<ClipsLocally>(2)), Contains(HasSubstr("Clipping the norm")));
  EXPECT_THAT(check_strategy(of<DecidesAlone>(2)), Contains(HasSubstr("skips the step on all")));
}

}  // namespace
}  // namespace fulmen
