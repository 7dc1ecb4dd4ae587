#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "core/distributed/twin_group.h"
#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"
#include "tests/core/distributed/rank_values.h"

namespace fulmen {
namespace {

using std::chrono::milliseconds;
using testing::error_text;
using testing::expect_equal;
using testing::expect_parts;
using testing::stacked;
using testing::values;
using Clock = std::chrono::steady_clock;
using WorldPtr = std::shared_ptr<World>;
using CallOfRank = std::function<void(int rank, const ProcessGroup& group)>;

void run_checked(int size,
                 const std::function<void(const WorldPtr&)>& body,
                 milliseconds timeout = std::chrono::seconds(20)) {
  run_thread_ranks(
      size, body, {.timeout = timeout, .debug_collectives = CollectiveChecks::kCompare});
}

/// The one error of both ranks.
std::string mismatch_of(const CallOfRank& call) {
  std::array<std::string, 2> texts;
  const auto begin = Clock::now();
  run_checked(2, [&](const WorldPtr& world) {
    const auto group = world->group({0, 1}, "model");
    barrier("start", group);
    const auto rank = world->rank();
    texts[static_cast<std::size_t>(rank)] =
        error_text<DistributedError>([&] { call(rank, group); });
    // Nor is there another collective after it.
    EXPECT_EQ(error_text<DistributedError>([&] { barrier("next", group); }),
              texts[static_cast<std::size_t>(rank)]);
  });
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  return texts[0];
}

TEST(CollectiveCheck, NamesTheOperations) {
  const auto text = mismatch_of([](int rank, const ProcessGroup& group) {
    auto tensor = at::ones({8, 4});
    if (rank == 0) {
      all_reduce(tensor, ReduceOp::kSum, group);
    } else {
      all_gather(at::ones({8}), group);
    }
  });
  EXPECT_EQ(text,
            "Ranks call different collectives: collective 2 on model {0, 1}: all_reduce sum "
            "float32 (8, 4) on rank 0 and all_gather float32 (8) on rank 1.");
}

TEST(CollectiveCheck, ComparesEverythingThatMustBeEqual) {
  const auto reduce = [](at::ScalarType dtype, at::IntArrayRef shape, ReduceOp op, const char* of) {
    return [=, shape = shape.vec()](const ProcessGroup& group) {
      auto tensor = at::ones(shape, dtype);
      all_reduce_async(tensor, op, group, of).wait();
    };
  };
  const auto differ =
      [](const auto& zero, const auto& one, std::string_view a, std::string_view b) {
        const auto text = mismatch_of(
            [&](int rank, const ProcessGroup& group) { rank == 0 ? zero(group) : one(group); });
        expect_parts(
            text,
            {": " + std::string(a) + " on rank 0 and ", " and " + std::string(b) + " on rank 1."});
      };
  const std::string usual_text = "all_reduce sum float32 (2, 3) \"w\"";
  const auto usual = reduce(at::kFloat, {2, 3}, ReduceOp::kSum, "w");
  differ(usual,
         reduce(at::kDouble, {2, 3}, ReduceOp::kSum, "w"),
         usual_text,
         "all_reduce sum float64 (2, 3) \"w\"");
  differ(usual,
         reduce(at::kFloat, {3, 2}, ReduceOp::kSum, "w"),
         usual_text,
         "all_reduce sum float32 (3, 2) \"w\"");
  differ(usual,
         reduce(at::kFloat, {0}, ReduceOp::kSum, "w"),
         usual_text,
         "all_reduce sum float32 (0) \"w\"");
  differ(usual,
         reduce(at::kFloat, {2, 3}, ReduceOp::kMean, "w"),
         usual_text,
         "all_reduce mean float32 (2, 3) \"w\"");
  differ(usual,
         reduce(at::kFloat, {2, 3}, ReduceOp::kSum, "b"),
         usual_text,
         "all_reduce sum float32 (2, 3) \"b\"");
  const auto from = [](int root) {
    return [=](const ProcessGroup& group) {
      auto tensor = at::ones({2});
      broadcast(tensor, root, group);
    };
  };
  differ(
      from(0), from(1), "broadcast from rank 0 float32 (2)", "broadcast from rank 1 float32 (2)");
  const auto meet = [](const char* name) {
    return [=](const ProcessGroup& group) { barrier(name, group); };
  };
  differ(meet("a"), meet("b"), "barrier \"a\"", "barrier \"b\"");
}

TEST(CollectiveCheck, ComparesWhatAMessageWouldCut) {
  const std::string same(100, 'x');
  const auto labels = mismatch_of([&](int rank, const ProcessGroup& group) {
    auto tensor = at::ones({1});
    all_reduce(tensor, ReduceOp::kSum, group, same + std::to_string(rank));
  });
  expect_parts(labels, {"x0 on rank 0", "x1 on rank 1"});
  const auto shapes = mismatch_of([](int rank, const ProcessGroup& group) {
    auto tensor = at::ones({1, 1, 1, 1, 1, 1, 2 + rank});
    all_reduce(tensor, ReduceOp::kSum, group);
  });
  expect_parts(shapes, {"1 2 on rank 0", "1 3 on rank 1"});
}

TEST(CollectiveCheck, GroupsRanksThatCallTheSame) {
  std::array<std::string, 4> texts;
  run_checked(4, [&](const WorldPtr& world) {
    auto tensor = at::ones({world->rank() == 2 ? 1 : 2});
    texts[static_cast<std::size_t>(world->rank())] =
        error_text<DistributedError>([&] { all_reduce(tensor, ReduceOp::kSum, world->all()); });
  });
  for (const auto& text : texts) EXPECT_EQ(text, texts[0]);
  expect_parts(texts[0], {"(2) on ranks 0, 1, 3 and all_reduce sum float32 (1) on rank 2."});
}

TEST(CollectiveCheck, NamesARankThatNeverComesWithinTheTimeLimit) {
  const auto begin = Clock::now();
  run_checked(
      3,
      [&](const WorldPtr& world) {
        const auto all = world->all();
        auto tensor = at::ones({2});
        all_reduce(tensor, ReduceOp::kSum, all, "w");
        if (world->rank() == 1) return std::this_thread::sleep_for(milliseconds(2500));
        expect_parts(
            error_text<DistributedError>([&] { all_reduce(tensor, ReduceOp::kSum, all, "w"); }),
            {"all_reduce: failed on rank " + std::to_string(world->rank()),
             "Rank 1 did not come to it; last there: collective 1"});
        EXPECT_LT(Clock::now() - begin, milliseconds(2200));
      },
      milliseconds(1000));
}

TEST(CollectiveCheck, LeavesResultsAndCountsAsTheyAre) {
  for (int size = 2; size <= 4; ++size) {
    const auto calls_of = [&](CollectiveChecks checks) {
      std::atomic<int64_t> calls = 0;
      run_thread_ranks(size,
                       [&](const WorldPtr& world) {
                         const auto all = world->all();
                         auto sum = values(world->rank(), {3, 2});
                         all_reduce(sum, ReduceOp::kSum, all);
                         expect_equal(sum, stacked(size, {3, 2}).sum(0));
                         expect_equal(all_gather(values(world->rank(), {2}), all),
                                      stacked(size, {2}));
                         auto rows = values(world->rank(), {world->rank() + 1, 2});
                         EXPECT_EQ(all_gather_rows(rows, all).size(0), size * (size + 1) / 2);
                         auto empty = at::zeros({0});
                         broadcast(empty, 0, all);
                         EXPECT_EQ(gather_bytes("x", 0, all).size(), world->rank() == 0 ? size : 0);
                         EXPECT_EQ(all_gather_object(world->rank(), all).at(1).as_int64(), 1);
                         agree_or_fail("test", "", all);
                         if (world->rank() == 0) calls = world->counters().total().calls;
                         barrier("end", all);
                       },
                       {.timeout = std::chrono::seconds(20), .debug_collectives = checks});
      return calls.load();
    };
    EXPECT_EQ(calls_of(CollectiveChecks::kCompare), calls_of(CollectiveChecks::kNone));
  }
}

TEST(CollectiveCheck, LetsRanksStartCollectivesOfTwoGroupsInDifferentOrders) {
  run_checked(2, [](const WorldPtr& world) {
    const auto all = world->all();
    const auto twin = detail::twin_of(all);
    auto gradient = at::full({2}, world->rank() + 1.0);
    auto activation = at::full({2}, world->rank() + 2.0);
    Work work;
    if (world->rank() == 0) work = all_reduce_async(gradient, ReduceOp::kSum, twin, "gradient");
    all_reduce(activation, ReduceOp::kSum, all, "activation");
    if (world->rank() == 1) work = all_reduce_async(gradient, ReduceOp::kSum, twin, "gradient");
    work.wait();
    EXPECT_EQ(gradient[0].item<float>(), 3);
    EXPECT_EQ(activation[1].item<float>(), 5);
  });
}

TEST(CollectiveCheck, StartsCollectivesInTheOrderOfTheirCallsWhicheverIsWaitedForFirst) {
  run_checked(2, [](const WorldPtr& world) {
    const auto all = world->all();
    auto a = at::full({2}, world->rank() + 1.0);
    auto b = at::full({2}, world->rank() + 2.0);
    auto first = all_reduce_async(a, ReduceOp::kSum, all, "a");
    auto second = all_reduce_async(b, ReduceOp::kSum, all, "b");
    if (world->rank() == 0) {
      second.wait();
      first.wait();
    } else {
      first.wait();
      second.wait();
    }
    EXPECT_EQ(a[0].item<float>(), 3);
    EXPECT_EQ(b[1].item<float>(), 5);
  });
}

TEST(CollectiveCheck, EndsCollectivesWhoseHandleIsDropped) {
  run_checked(2, [](const WorldPtr& world) {
    const auto all = world->all();
    auto tensor = at::ones({2});
    { const auto work = all_reduce_async(tensor, ReduceOp::kSum, all); }
    EXPECT_EQ(tensor[0].item<float>(), 2);
    auto work = all_reduce_async(tensor, ReduceOp::kSum, all);
    barrier("after", all);  // Starts it.
    work.wait();
    EXPECT_EQ(tensor[0].item<float>(), 4);
  });
}

/// Whether ranks of a world with these options compare.
bool compares(const WorldOptions& first, const WorldOptions& second) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<int> found = 0;
  const auto run_rank = [&](int rank) {
    const auto world =
        World::join({.rank = rank, .world_size = 2}, store, rank == 0 ? first : second);
    auto tensor = at::ones({2, 3}).reshape(rank == 0 ? at::IntArrayRef{2, 3} : at::IntArrayRef{6});
    try {
      all_reduce(tensor, ReduceOp::kSum, world->all());
    } catch (const DistributedError& error) {
      expect_parts(error.what(), {"Ranks call different collectives"});
      ++found;
    }
  };
  std::thread other([&] { run_rank(1); });
  run_rank(0);
  other.join();
  EXPECT_NE(found, 1);
  return found == 2;
}

TEST(CollectiveCheck, IsSwitchedByRankZeroForAll) {
  constexpr auto kTimeout = std::chrono::seconds(20);
  const WorldOptions on{.timeout = kTimeout, .debug_collectives = CollectiveChecks::kCompare};
  const WorldOptions off{.timeout = kTimeout};
  EXPECT_TRUE(compares(on, off));
  EXPECT_FALSE(compares(off, on));
}

TEST(CollectiveCheck, IsSwitchedOnByAVariable) {
  const WorldOptions off{.timeout = std::chrono::seconds(20)};
  ::setenv("FULMEN_DEBUG_COLLECTIVES", "1", 1);
  EXPECT_TRUE(compares(off, off));
  ::setenv("FULMEN_DEBUG_COLLECTIVES", "0", 1);
  EXPECT_FALSE(compares(off, off));
  ::setenv("FULMEN_DEBUG_COLLECTIVES", "yes", 1);
  EXPECT_THROW(World::join({.rank = 0, .world_size = 2}, c10::make_intrusive<c10d::HashStore>()),
               ConfigError);
  ::unsetenv("FULMEN_DEBUG_COLLECTIVES");
}

}  // namespace
}  // namespace fulmen
