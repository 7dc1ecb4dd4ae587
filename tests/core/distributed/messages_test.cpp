#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"
#include "tests/core/distributed/rank_values.h"

namespace fulmen {
namespace {

using testing::error_text;
using testing::expect_equal;
using testing::expect_parts;
using testing::on_ranks;
using testing::values;

TEST(Work, ThatIsDroppedEndsItsMessage) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const auto group = world->all();
    auto tensor = values(0, {4});
    if (group.rank() == 0) {
      const auto sending = send_async(tensor.clone(), 1, group);
    } else {
      tensor.zero_();
      { const auto receiving = receive_async(tensor, 0, group); }
      expect_equal(tensor, values(0, {4}));
    }
    { const auto reducing = all_reduce_async(tensor, ReduceOp::kSum, group); }
    expect_equal(tensor, 2 * values(0, {4}));
  });
}

TEST(Collectives, NameThemselvesTheirGroupAndTheTimeLimitInErrors) {
  run_thread_ranks(
      2,
      [](const std::shared_ptr<World>& world) {
        const auto group = world->all();
        barrier("start", group);
        auto tensor = at::ones({2});
        if (group.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(600));
          return;
        }
        auto work = all_reduce_async(tensor, ReduceOp::kSum, group);
        expect_parts(error_text<DistributedError>([&] { work.wait(); }),
                     {"all_reduce: failed on rank 0", "world {0, 1}", "0.2 s", "Timed out"});
        work.wait();
        expect_parts(error_text<DistributedError>([&] { broadcast(tensor, 0, group); }),
                     {"broadcast: failed on rank 0"});
      },
      {.timeout = std::chrono::milliseconds(200)});
}

TEST(SendAndReceive, GoAroundARing) {
  on_ranks(
      [](const ProcessGroup& group) {
        const int next = (group.rank() + 1) % group.size();
        const int previous = (group.rank() + group.size() - 1) % group.size();
        auto received = at::zeros({2, 3}, at::kDouble);
        auto sending = send_async(values(group.rank(), {3, 2}).t(), next, group);
        auto receiving = receive_async(received, previous, group);
        receiving.wait();
        sending.wait();
        expect_equal(received, values(previous, {3, 2}).t());
      },
      2);
}

TEST(SendAndReceive, MatchByTag) {
  run_thread_ranks(3, [](const std::shared_ptr<World>& world) {
    const auto group = world->group({0, 2, 1}, "all");
    if (group.rank() == 0) {
      auto one = send_async(values(1, {2}), 2, group, 1);
      auto two = send_async(values(2, {2}), 2, group, 2);
      two.wait();
      one.wait();
    } else if (group.rank() == 2) {
      auto whole = at::zeros({2, 2}, at::kDouble);
      auto column = whole.select(1, 0);
      auto row = at::zeros({2}, at::kDouble);
      receive(column, 0, group, 2);
      receive(row, 0, group, 1);
      expect_equal(row, values(1, {2}));
      expect_equal(whole, at::stack({values(2, {2}), at::zeros({2}, at::kDouble)}, 1));
    }
  });
}

TEST(SendAndReceive, RefuseRanksThatAreNoPeers) {
  on_ranks([](const ProcessGroup& group) {
    auto tensor = at::zeros({1});
    expect_parts(error_text<ConfigError>([&] { send(tensor, group.rank(), group); }),
                 {"send: rank", "is this rank itself"});
    EXPECT_THROW(receive(tensor, group.rank(), group), ConfigError);
    EXPECT_THROW(send(tensor, group.size(), group), ConfigError);
    auto strided = at::zeros({2, 3}).t();
    if (group.size() > 1) {
      EXPECT_THROW((void)receive_async(strided, (group.rank() + 1) % group.size(), group),
                   ConfigError);
    }
  });
}

TEST(Barrier, ReturnsWhenAllHaveCalledIt) {
  for (int size = 1; size <= 4; ++size) {
    std::atomic<int> arrived = 0;
    run_thread_ranks(size, [&](const std::shared_ptr<World>& world) {
      const auto group = world->all();
      std::this_thread::sleep_for(std::chrono::milliseconds(20 * group.rank()));
      ++arrived;
      barrier("there", group);
      EXPECT_EQ(arrived, size);
    });
  }
}

TEST(CommCounters, CountEachCallOnceInTheGroupAndTheWorld) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const auto group = world->all();
    auto tensor = at::zeros({2, 3}, at::kDouble);
    const int peer = 1 - group.rank();
    all_reduce(tensor, ReduceOp::kMean, group);
    auto strided = tensor.t();
    all_reduce(strided, ReduceOp::kMax, group);
    all_gather(tensor, group);
    all_gather_rows(tensor, group);
    reduce_scatter(tensor, ReduceOp::kSum, group);
    all_to_all(tensor, group);
    broadcast(tensor, 1, group);
    barrier("here", group);
    auto sending = send_async(tensor, peer, group);
    auto other = at::zeros({2, 3}, at::kDouble);
    receive(other, peer, group);
    sending.wait();
    auto empty = at::zeros({0});
    broadcast(empty, 0, group);

    const auto expect = [&](CollectiveKind kind, int64_t calls, int64_t bytes) {
      for (const auto* counters : {&group.counters(), &world->counters()}) {
        EXPECT_EQ(counters->of(kind).calls, calls);
        EXPECT_EQ(counters->of(kind).bytes, bytes);
      }
    };
    expect(CollectiveKind::kAllReduce, 2, 96);
    expect(CollectiveKind::kAllGather, 3, 96 + 16 + 96);
    expect(CollectiveKind::kReduceScatter, 1, 48);
    expect(CollectiveKind::kAllToAll, 1, 48);
    expect(CollectiveKind::kBroadcast, 2, 48);
    expect(CollectiveKind::kSend, 1, 48);
    expect(CollectiveKind::kReceive, 1, 48);
    expect(CollectiveKind::kBarrier, 1, 0);
    EXPECT_EQ(world->counters().total().calls, 12);

    const auto alone = world->group({world->rank()}, "alone");
    all_reduce(tensor, ReduceOp::kSum, alone);
    barrier("alone", alone);
    EXPECT_EQ(alone.counters().total().calls, 0);
    EXPECT_EQ(world->counters().total().calls, 12);
    group.counters().reset();
    EXPECT_EQ(group.counters().total().calls, 0);
    EXPECT_EQ(world->counters().total().calls, 12);
  });
}

}  // namespace
}  // namespace fulmen
