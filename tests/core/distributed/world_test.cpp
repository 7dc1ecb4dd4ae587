#include "fulmen/core/distributed/world.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"

namespace fulmen {
namespace {

using std::chrono::milliseconds;
using testing::error_text;
using testing::expect_parts;
using Clock = std::chrono::steady_clock;
using Ranks = std::vector<int>;
using WorldPtr = std::shared_ptr<World>;

/// Far below the time limit of thread ranks, far above what a failure needs.
constexpr auto kFast = std::chrono::seconds(20);

TEST(World, OfOneProcessHasGroupsOfOneRank) {
  const auto world = World::single();
  EXPECT_EQ(world->size(), 1);
  EXPECT_EQ(world->rank(), 0);
  const auto all = world->all();
  EXPECT_EQ(all.size(), 1);
  EXPECT_EQ(all.ranks(), Ranks{0});
  expect_parts(error_text<DistributedError>([&] { all.c10d(); }), {"world {0}", "one rank"});
}

TEST(World, RefusesARankThatIsNotOfTheWorld) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto join = [&](int rank, int size) {
    return error_text<ConfigError>([&] { World::join({.rank = rank, .world_size = size}, store); });
  };
  expect_parts(join(2, 2), {"rank 2 of 2"});
  expect_parts(join(-1, 2), {"rank -1 of 2"});
  expect_parts(join(0, 0), {"rank 0 of 0"});
}

TEST(World, NamesTheRanksThatDidNotCome) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto text = error_text<DistributedError>(
      [&] { World::join({.rank = 1, .world_size = 4}, store, {.timeout = milliseconds(250)}); });
  expect_parts(text, {"rank 1 waited 0.25 s", "4 ranks", "missing: 0, 2, 3."});
}

TEST(World, IsNotMetByAWorldWithAnotherPrefixInTheSameStore) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto meet = [&](const std::string& prefix) {
    const auto join = [&](int rank) {
      auto world = World::join({.rank = rank, .world_size = 2},
                               store,
                               {.timeout = std::chrono::seconds(30), .key_prefix = prefix});
      auto tensor = at::full({1}, rank + 1, at::kLong);
      all_reduce(tensor, ReduceOp::kSum, world->all());
      EXPECT_EQ(tensor.item<int64_t>(), 3);
      return world;
    };
    WorldPtr other;
    std::thread thread([&] { other = join(1); });
    const auto world = join(0);
    thread.join();
  };
  meet("first");
  meet("second");
  EXPECT_THROW(World::join({.rank = 0, .world_size = 2},
                           store,
                           {.timeout = milliseconds(100), .key_prefix = "third"}),
               DistributedError);
}

TEST(World, GivesGroupsWhoseRanksAreInAscendingOrder) {
  run_thread_ranks(4, [](const WorldPtr& world) {
    EXPECT_EQ(world->topology().local_rank, world->rank());
    EXPECT_EQ(world->topology().local_world_size, 4);
    const bool even = world->rank() % 2 == 0;
    const auto group = world->group(even ? Ranks{2, 0} : Ranks{3, 1}, "model");
    EXPECT_EQ(group.ranks(), (even ? Ranks{0, 2} : Ranks{1, 3}));
    EXPECT_EQ(group.rank(), world->rank() / 2);
    EXPECT_EQ(group.size(), 2);
    EXPECT_EQ(group.describe(), even ? "model {0, 2}" : "model {1, 3}");
    auto tensor = at::full({1}, world->rank(), at::kLong);
    all_reduce(tensor, ReduceOp::kSum, group);
    EXPECT_EQ(tensor.item<int64_t>(), even ? 2 : 4);
  });
}

TEST(World, GivesTheSameGroupForTheSameRanks) {
  run_thread_ranks(3, [](const WorldPtr& world) {
    const auto all = world->all();
    EXPECT_TRUE(all == world->group({2, 0, 1}, "data"));
    EXPECT_TRUE(all == world->all());
    const auto alone = world->group({world->rank()}, "alone");
    EXPECT_FALSE(all == alone);
    EXPECT_EQ(alone.rank(), 0);
    EXPECT_EQ(&all.c10d(), &world->all().c10d());
  });
}

TEST(World, RefusesGroupsThatCannotBe) {
  run_thread_ranks(2, [](const WorldPtr& world) {
    const auto refused = [&](const Ranks& ranks) {
      return error_text<ConfigError>([&] { world->group(ranks, "model"); });
    };
    const auto me = std::to_string(world->rank());
    expect_parts(refused({1 - world->rank()}), {"\"model\"", "must have rank " + me});
    expect_parts(refused({0, 1, 2}), {"{0, 1, 2}", "from 0 to 1"});
    expect_parts(refused({-1, 0, 1}), {"{-1, 0, 1}"});
    expect_parts(refused({0, 1, 1}), {"{0, 1, 1}", "each rank once"});
    expect_parts(refused({}), {"{}"});
  });
}

TEST(World, NamesTheMembersThatDidNotAskForAGroup) {
  const auto text = error_text<DistributedError>([&] {
    run_thread_ranks(3,
                     [](const WorldPtr& world) {
                       if (world->rank() != 1) world->group({0, 1, 2}, "joint");
                     },
                     {.timeout = milliseconds(300)});
  });
  expect_parts(text, {"\"joint\" of ranks {0, 1, 2}", "0.3 s", "Not asked for by: 1."});
}

TEST(World, KeepsAGroupThatOutlivesIt) {
  run_thread_ranks(2, [](const WorldPtr& world) {
    static thread_local std::vector<ProcessGroup> kept;
    kept.push_back(world->all());
    auto tensor = at::ones({2});
    all_reduce(tensor, ReduceOp::kSum, kept.back());
    EXPECT_EQ(tensor.sum().item<float>(), 4);
    kept.clear();
  });
}

TEST(ThreadRanks, RethrowTheFirstExceptionAndNotItsEchoes) {
  const auto begin = Clock::now();
  std::atomic<int> echoes = 0;
  const auto text = error_text<std::logic_error>([&] {
    run_thread_ranks(3, [&](const WorldPtr& world) {
      const auto all = world->all();
      barrier("start", all);
      if (world->rank() == 1) throw std::logic_error("the cause");
      try {
        barrier("never", all);
      } catch (const DistributedError& error) {
        ++echoes;
        expect_parts(error.what(), {"barrier \"never\"", "world {0, 1, 2}", "60 s"});
        throw;
      }
    });
  });
  EXPECT_EQ(text, "the cause");
  EXPECT_EQ(echoes, 2);
  EXPECT_LT(Clock::now() - begin, kFast);
}

TEST(ThreadRanks, PreferACauseToAnEarlierDistributedError) {
  const auto text = error_text<std::logic_error>([&] {
    run_thread_ranks(2, [](const WorldPtr& world) {
      if (world->rank() == 0) throw DistributedError("early");
      std::this_thread::sleep_for(milliseconds(50));
      throw std::logic_error("late");
    });
  });
  EXPECT_EQ(text, "late");
}

TEST(ThreadRanks, RethrowTheDistributedErrorThatWasFirst) {
  for (int i = 0; i < 20; ++i) {
    const auto text = error_text<DistributedError>([&] {
      run_thread_ranks(2, [](const WorldPtr& world) {
        const auto all = world->all();
        barrier("start", all);
        if (world->rank() == 1) throw DistributedError("the cause");
        barrier("never", all);
      });
    });
    EXPECT_EQ(text, "the cause");
  }
}

TEST(ThreadRanks, EndFastWhenAFailedRankHasAMessageUnderWay) {
  const auto begin = Clock::now();
  EXPECT_THROW(run_thread_ranks(2,
                                [](const WorldPtr& world) {
                                  const auto all = world->all();
                                  auto tensor = at::zeros({1000});
                                  if (world->rank() == 0) {
                                    const auto receiving = receive_async(tensor, 1, all);
                                    throw std::logic_error("the cause");
                                  }
                                  barrier("never", all);
                                }),
               std::logic_error);
  EXPECT_LT(Clock::now() - begin, kFast);
}

TEST(ThreadRanks, KeepTheGroupsOfARankThatIsDoneUntilAllAre) {
  std::weak_ptr<World> first;
  std::atomic<bool> alive = false;
  run_thread_ranks(2, [&](const WorldPtr& world) {
    if (world->rank() == 0) first = world;
    barrier("start", world->all());
    if (world->rank() == 0) return;
    std::this_thread::sleep_for(milliseconds(100));
    alive = !first.expired();
  });
  EXPECT_TRUE(alive);
  EXPECT_TRUE(first.expired());
}

TEST(ThreadRanks, RefuseASizeBelowOne) {
  EXPECT_THROW(run_thread_ranks(0, [](const WorldPtr&) {}), ConfigError);
}

}  // namespace
}  // namespace fulmen
