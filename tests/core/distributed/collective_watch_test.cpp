#include "core/distributed/collective_watch.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <mutex>
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
using WorldPtr = std::shared_ptr<World>;

constexpr auto kLimit = milliseconds(1000);

void sleep_for(double limits) {
  std::this_thread::sleep_for(limits * kLimit);
}

void expect_no_part(const std::string& text, std::string_view part) {
  EXPECT_EQ(text.find(part), std::string::npos) << "\"" << part << "\" in: " << text;
}

/// What a wait of this rank says in the end.
template <class Body>
std::string wait_in_vain(const Body& body) {
  return error_text<DistributedError>(body);
}

/// Runs ranks, and returns when all are done, whatever was thrown.
void run(int size, const std::function<void(const WorldPtr&)>& body) {
  run_thread_ranks(size, body, {.timeout = kLimit});
}

TEST(CollectiveWatch, NamesTheRankThatDidNotComeAndItsLastCollective) {
  run(3, [](const WorldPtr& world) {
    const auto all = world->all();
    auto tensor = at::ones({8, 4});
    for (int i = 0; i < 2; ++i) all_reduce(tensor, ReduceOp::kSum, all, "weights");
    if (world->rank() == 2) return sleep_for(3);
    const auto text = wait_in_vain([&] { barrier("end of epoch", all); });
    const auto me = std::to_string(world->rank());
    expect_parts(text,
                 {"barrier \"end of epoch\": failed on rank " + me,
                  "world {0, 1, 2}",
                  "its collective 3",
                  "time limit 1 s",
                  "Rank 2 did not come to it; last there: collective 2, all_reduce sum float32 "
                  "(8, 4) \"weights\" (done); in no collective for "});
    expect_no_part(text, "Rank 0");
    expect_no_part(text, "Rank 1");
  });
}

TEST(CollectiveWatch, SaysInWhichOtherCollectiveARankWaits) {
  run(3, [](const WorldPtr& world) {
    const auto all = world->all();
    if (world->rank() == 0) {
      expect_parts(wait_in_vain([&] { barrier("all", all); }),
                   {"Rank 2 did not come to it; called nothing there yet; waiting in barrier "
                    "\"pair\", collective 1 of pair {1, 2}."});
      return sleep_for(1);
    }
    const auto pair = world->group({1, 2}, "pair");
    if (world->rank() == 1) {
      expect_parts(wait_in_vain([&] { barrier("all", all); }), {"Rank 2 did not come to it"});
      return sleep_for(1);
    }
    sleep_for(0.5);
    expect_parts(wait_in_vain([&] { barrier("pair", pair); }),
                 {"Rank 1 did not come to it; called nothing there yet; waited in vain in barrier "
                  "\"all\", collective 1 of world {0, 1, 2}."});
  });
}

TEST(CollectiveWatch, SaysWhatARankCalledInPlaceOfIt) {
  run(2, [](const WorldPtr& world) {
    const auto all = world->all();
    auto tensor = at::ones({2, 3}, at::kDouble);
    if (world->rank() == 0) {
      expect_parts(wait_in_vain([&] { broadcast(tensor, 1, all); }),
                   {"broadcast: failed on rank 0",
                    "from rank 1 float64 (2, 3)",
                    "Rank 1 called all_reduce max float64 (2, 3) in its place."});
    } else {
      expect_parts(wait_in_vain([&] { all_reduce(tensor, ReduceOp::kMax, all); }),
                   {"Rank 0 called broadcast from rank 1 float64 (2, 3) in its place."});
    }
    sleep_for(1);
  });
}

TEST(CollectiveWatch, NamesAPeerThatSendsNothing) {
  run(2, [](const WorldPtr& world) {
    const auto all = world->all();
    barrier("start", all);
    auto tensor = at::ones({2});
    if (world->rank() == 1) return sleep_for(2.5);
    expect_parts(wait_in_vain([&] { receive(tensor, 1, all); }),
                 {"receive from rank 1: failed on rank 0",
                  "Rank 1 was elsewhere; last there: collective 1, barrier \"start\" (done); in no "
                  "collective for "});
  });
}

TEST(CollectiveWatch, TellsARankThatLeftFromOneThatDidNotCome) {
  const auto begin = Clock::now();
  std::atomic<int> failed = 0;
  EXPECT_THROW(run(3,
                   [&](const WorldPtr& world) {
                     const auto all = world->all();
                     barrier("start", all);
                     if (world->rank() == 1) throw std::logic_error("the cause");
                     const auto text = wait_in_vain([&] { barrier("never", all); });
                     expect_parts(text, {"Rank 1 left the job."});
                     expect_no_part(text, "did not come");
                     ++failed;
                   }),
               std::logic_error);
  EXPECT_EQ(failed, 2);
  EXPECT_LT(Clock::now() - begin, kLimit);
}

TEST(CollectiveWatch, KnowsARankThatLeft) {
  run(2, [&](const WorldPtr& world) {
    const auto all = world->all();
    barrier("start", all);
    if (world->rank() == 1) return world->leave();
    expect_parts(wait_in_vain([&] { barrier("never", all); }), {"Rank 1 left the job."});
  });
}

TEST(CollectiveWatch, AsksOnceForEachGroup) {
  run(2, [](const WorldPtr& world) {
    const auto all = world->all();
    if (world->rank() == 1) return sleep_for(2.5);
    expect_parts(wait_in_vain([&] { barrier("first", all); }), {"Rank 1 did not come to it"});
    const auto begin = Clock::now();
    expect_no_part(wait_in_vain([&] { barrier("second", all); }), "Rank 1");
    EXPECT_LT(Clock::now() - begin, milliseconds(150));
  });
}

/// A world of two ranks on this store, each of which is a thread.
void join_on(const c10::intrusive_ptr<c10d::Store>& store,
             const std::function<void(const WorldPtr&)>& body) {
  const auto run_rank = [&](int rank) {
    body(World::join({.rank = rank, .world_size = 2}, store, {.timeout = kLimit}));
  };
  std::thread other([&] { run_rank(1); });
  run_rank(0);
  other.join();
}

TEST(CollectiveWatch, WritesNothingWhileNobodyWaits) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<int64_t> keys_before = 0;
  std::atomic<int64_t> keys_after = 0;
  join_on(store, [&](const WorldPtr& world) {
    const auto all = world->all();
    barrier("start", all);
    if (world->rank() == 0) keys_before = store->getNumKeys();
    auto go_on = at::ones({1});
    const auto begin = Clock::now();
    while (go_on.item<float>() > 0) {
      if (Clock::now() - begin > 1.5 * kLimit) go_on.zero_();
      all_reduce(go_on, ReduceOp::kMin, all);
      std::this_thread::sleep_for(milliseconds(5));
    }
    sleep_for(0.7);  // Nor in a long step, as nobody waits.
    if (world->rank() == 0) keys_after = store->getNumKeys();
    barrier("end", all);
  });
  EXPECT_EQ(keys_before, keys_after);
}

TEST(CollectiveWatch, TakesItsQuestionBackWhenALateRankComes) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::atomic<bool> asked = false;
  join_on(store, [&](const WorldPtr& world) {
    const auto all = world->all();
    barrier("start", all);
    if (world->rank() == 1) {
      sleep_for(0.8);
      asked = store->check({"fulmen/watch/asked"});
    }
    barrier("late", all);
    for (int i = 0; i < 40; ++i) {
      std::this_thread::sleep_for(milliseconds(10));
      barrier("on", all);
    }
    EXPECT_FALSE(store->check({"fulmen/watch/asked"}));
  });
  EXPECT_TRUE(asked);
}

/// Fails, or stands still, when it is told to.
class FragileStore : public c10d::HashStore {
 public:
  enum class State { kWorks, kFails, kHangs };
  std::atomic<State> state = State::kWorks;
  bool check(const std::vector<std::string>& keys) override {
    fragile();
    return HashStore::check(keys);
  }
  void set(const std::string& key, const std::vector<uint8_t>& data) override {
    fragile();
    HashStore::set(key, data);
  }

 private:
  void fragile() {
    if (state == State::kFails) throw std::runtime_error("Broken pipe");
    while (state == State::kHangs) std::this_thread::sleep_for(milliseconds(10));
  }
};

void expect_text_with_store(FragileStore::State state, std::string_view part) {
  const auto store = c10::make_intrusive<FragileStore>();
  join_on(store, [&](const WorldPtr& world) {
    const auto all = world->all();
    barrier("start", all);
    store->state = state;
    if (world->rank() == 1) return sleep_for(4);
    const auto begin = Clock::now();
    expect_parts(wait_in_vain([&] { barrier("never", all); }),
                 {"What the other ranks did is not known", "rank 0 serves", part, "Timed out"});
    EXPECT_LT(Clock::now() - begin, 3.5 * kLimit);
  });
  store->state = FragileStore::State::kWorks;
}

TEST(CollectiveWatch, SaysThatTheStoreIsGone) {
  expect_text_with_store(FragileStore::State::kFails, "does not answer (Broken pipe).");
}

TEST(CollectiveWatch, IsNotHeldByAStoreThatStandsStill) {
  expect_text_with_store(FragileStore::State::kHangs, "does not answer.");
}

}  // namespace
}  // namespace fulmen
