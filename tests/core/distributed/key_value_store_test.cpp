#include "core/distributed/key_value_store.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "core/distributed/key_value_server.h"
#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/distributed/world.h"
#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"
#include "tests/core/distributed/store_client.h"

namespace fulmen::detail {
namespace {

using fulmen::testing::error_text;
using fulmen::testing::expect_parts;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Bytes = std::vector<std::uint8_t>;
using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<KeyValueStore>;

/// Of what must not wait; far below the time limits of the stores.
constexpr seconds kFast(5);

Bytes bytes(std::string_view text) {
  return {text.begin(), text.end()};
}

/// What one store does and another must do, too.
void use(c10d::Store& store, std::vector<std::string>& seen) {
  const auto note = [&](auto value) { seen.push_back(std::to_string(value)); };
  store.set("a", std::string("1"));
  store.set("a", std::string("2"));
  seen.push_back(store.get_to_str("a"));
  store.set("empty", std::string());
  seen.push_back(store.get_to_str("empty"));
  const std::string binary("\0\n\xff key", 7);
  store.set(binary, binary);
  seen.push_back(store.get_to_str(binary));
  note(store.add("n", 5));
  note(store.add("n", -7));
  seen.push_back(store.get_to_str("n"));
  store.set("m", std::string("40"));
  note(store.add("m", 2));
  note(store.check({"a", "n"}));
  note(store.check({"a", "none"}));
  note(store.check({}));
  seen.push_back(store.compareSet("a", "wrong", "3"));
  seen.push_back(store.compareSet("a", "2", "3"));
  seen.push_back(store.compareSet("new", "wrong", "3"));
  note(store.check({"new"}));
  seen.push_back(store.compareSet("new", "", "3"));
  store.append("list", bytes("x"));
  store.append("list", bytes("yz"));
  seen.push_back(store.get_to_str("list"));
  store.multiSet({"p", "q"}, {bytes("P"), bytes("Q")});
  for (const auto& value : store.multiGet({"q", "p"}))
    seen.emplace_back(value.begin(), value.end());
  note(store.deleteKey("p"));
  note(store.deleteKey("p"));
  store.wait({"q", "a"});
  store.wait({});
  note(store.getNumKeys());
  auto keys = store.listKeys();
  std::ranges::sort(keys);
  seen.insert(seen.end(), keys.begin(), keys.end());
}

TEST(KeyValueStore, DoesWhatC10dsStoreInMemoryDoes) {
  KeyValueServer server({.token = test_token()});
  std::vector<std::string> expected;
  std::vector<std::string> seen;
  c10d::HashStore memory;
  use(memory, expected);
  use(*connect_to(server), seen);
  EXPECT_EQ(seen, expected);
  EXPECT_EQ(server.num_keys(), 8U);
}

TEST(KeyValueStore, HasABarrierAndPrefixesOfC10d) {
  KeyValueServer server({.token = test_token()});
  std::atomic<int> arrived = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const auto store = c10::make_intrusive<c10d::PrefixStore>("job", connect_to(server));
      ++arrived;
      store->barrier("all", 4, seconds(20));
      EXPECT_EQ(arrived, 4);
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(KeyValueStore, WaitsUntilAnotherClientSetsTheLastKey) {
  KeyValueServer server({.token = test_token()});
  const auto other = connect_to(server);
  other->set("b", std::string("B"));
  std::atomic<bool> done = false;
  std::thread waiting([&] {
    const auto values = connect_to(server)->multiGet({"a", "b", "c"});
    done = true;
    EXPECT_EQ(values, (std::vector<Bytes>{bytes("A"), bytes("B"), bytes("C")}));
  });
  other->set("c", std::string("C"));
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_FALSE(done);
  other->append("a", bytes("A"));
  waiting.join();
}

TEST(KeyValueStore, WaitsNoLongerThanAllowedAndNamesTheKeyAndTheAddress) {
  KeyValueServer server({.token = test_token()});
  const auto store = connect_to(server);
  store->set("there", std::string("x"));
  const auto start = Clock::now();
  const auto text = error_text<DistributedError>([&] {
    store->wait({"there", "not there"}, milliseconds(200));
  });
  EXPECT_GE(Clock::now() - start, milliseconds(200));
  EXPECT_LT(Clock::now() - start, kFast);
  expect_parts(text, {"\"not there\" was not set within 0.2 s", store->address()});
  expect_parts(store->address(), {"127.0.0.1:", std::to_string(server.port())});
  store->setTimeout(milliseconds(100));
  EXPECT_EQ(store->getTimeout(), milliseconds(100));
  EXPECT_EQ(store->clone()->getTimeout(), milliseconds(100));
  expect_parts(error_text<DistributedError>([&] { store->get("key 7"); }), {"\"key 7\"", "0.1 s"});
  EXPECT_EQ(store->get_to_str("there"), "x") << "the store is of no use after a wait in vain";
}

TEST(KeyValueStore, HoldsNoOtherThreadUpWhileOneWaits) {
  KeyValueServer server({.token = test_token()});
  const auto store = connect_to(server);
  std::thread waiting([&] { EXPECT_EQ(store->get_to_str("late"), "x"); });
  std::this_thread::sleep_for(milliseconds(50));
  for (int i = 1; i <= 100; ++i) EXPECT_EQ(store->add("n", 1), i);
  store->set("late", std::string("x"));  // Would never come if the wait held it up.
  waiting.join();
  EXPECT_LE(server.num_connections(), 2U);
}

TEST(KeyValueStore, ServesManyThreadsOfManyClients) {
  KeyValueServer server({.token = test_token()});
  constexpr int kClients = 64;
  std::vector<std::thread> clients;
  for (int rank = 0; rank < kClients; ++rank) {
    clients.emplace_back([&, rank] {
      const auto store = connect_to(server);
      store->set("rank/" + std::to_string(rank), std::to_string(rank));
      std::vector<std::string> keys;
      for (int other = 0; other < kClients; ++other)
        keys.push_back("rank/" + std::to_string(other));
      const auto values = store->multiGet(keys);
      for (int other = 0; other < kClients; ++other)
        EXPECT_EQ(values[static_cast<std::size_t>(other)], bytes(std::to_string(other)));
      for (int i = 0; i < 20; ++i) store->add("sum", rank);
      store->barrier("end", kClients, seconds(30));
    });
  }
  for (auto& client : clients) client.join();
  EXPECT_EQ(connect_to(server)->add("sum", 0), 20 * kClients * (kClients - 1) / 2);
}

TEST(KeyValueStore, RefusesAnotherTokenAtOnceAndSaysWhatToDo) {
  KeyValueServer server({.token = test_token()});
  const auto start = Clock::now();
  const auto wrong = JobToken::from_text("another secret than that", "test");
  const auto text = error_text<DistributedError>([&] { connect_to(server, wrong); });
  expect_parts(text, {"127.0.0.1:", "another token", "FULMEN_TOKEN_FILE"});
  EXPECT_EQ(text.find("another secret"), std::string::npos);
  const auto none = error_text<DistributedError>([&] { connect_to(server, nullptr); });
  expect_parts(none, {"asks for the job's token", "FULMEN_TOKEN_FILE"});
  EXPECT_LT(Clock::now() - start, kFast);
  EXPECT_EQ(server.num_keys(), 0U);
}

TEST(KeyValueStore, SaysThatNobodyListensAfterItsTimeLimit) {
  std::uint16_t port = 0;
  { port = KeyValueServer({.token = test_token()}).port(); }
  const auto text = error_text<DistributedError>([&] {
    const KeyValueStore store(
        {.host = "127.0.0.1", .port = port, .token = test_token(), .timeout = milliseconds(300)});
  });
  expect_parts(text, {"cannot be reached within 0.3 s", "refused"});
}

TEST(KeyValueStore, WaitsForAServerThatComesLater) {
  std::uint16_t port = 0;
  { port = KeyValueServer({.token = test_token()}).port(); }
  std::thread client([&] {
    const auto store = c10::make_intrusive<KeyValueStore>(KeyValueStoreOptions{
        .host = "127.0.0.1", .port = port, .token = test_token(), .timeout = seconds(30)});
    store->set("a", std::string("1"));
  });
  std::this_thread::sleep_for(milliseconds(200));
  KeyValueServer server({.port = port, .token = test_token()});
  client.join();
  EXPECT_EQ(server.num_keys(), 1U);
}

TEST(KeyValueStore, FailsSoonAfterItsServerHasGone) {
  auto server = std::make_unique<KeyValueServer>(KeyValueServerOptions{.token = test_token()});
  const auto store = connect_to(*server);
  std::string waited;
  std::thread waiting([&] { waited = error_text<DistributedError>([&] { store->get("never"); }); });
  std::this_thread::sleep_for(milliseconds(100));
  const auto start = Clock::now();
  server.reset();
  EXPECT_LT(Clock::now() - start, seconds(1));
  waiting.join();
  expect_parts(waited, {"get of \"never\"", store->address()});
  expect_parts(error_text<DistributedError>([&] { store->check({"k"}); }), {"check of \"k\""});
  expect_parts(error_text<DistributedError>([&] { store->clone(); }), {store->address()});
  EXPECT_LT(Clock::now() - start, kFast);
}

TEST(KeyValueStore, RefusesAMessageThatIsTooLongAndStaysOfUse) {
  KeyValueServer server({.token = test_token()});
  const auto store = connect_to(server);
  const auto text =
      error_text<DistributedError>([&] { store->set("big", Bytes(kMostStoreMessageBytes, 0)); });
  expect_parts(text, {"set of \"big\"", "more than 16777216"});
  const Bytes large(kMostStoreMessageBytes - 100, 7);
  store->set("large", large);
  EXPECT_EQ(store->get("large"), large);
  store->set("more", Bytes(1000, 0));
  expect_parts(error_text<DistributedError>([&] {
                 store->multiGet({"large", "more"});
               }),
               {"fewer keys"});
  expect_parts(error_text<DistributedError>([&] { store->add("large", 1); }), {"needs a number"});
  EXPECT_EQ(store->add("n", 1), 1);
}

TEST(KeyValueStore, ForgetsAnOldRound) {
  KeyValueServer server({.token = test_token()});
  const auto store = connect_to(server);
  for (const auto* key : {"round/1/a", "round/1/b", "round/10/a", "round/2/a"})
    store->set(key, std::string("x"));
  EXPECT_EQ(server.drop_prefix("round/1/"), 2U);
  EXPECT_FALSE(store->check({"round/1/a"}));
  EXPECT_TRUE(store->check({"round/10/a", "round/2/a"}));
  EXPECT_EQ(store->drop_prefix("round/"), 2);
  EXPECT_EQ(server.num_keys(), 0U);
  // The last message counts until the server knows that its answer was sent.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (server.num_bytes() > 0 && std::chrono::steady_clock::now() < limit)
    std::this_thread::yield();
  EXPECT_EQ(server.num_bytes(), 0U);
}

void run_job(KeyValueServer& server,
             const std::shared_ptr<const JobToken>& token,
             int size,
             std::int64_t base) {
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto world = World::join(
          {.rank = rank, .world_size = size}, connect_to(server, token), {.timeout = seconds(60)});
      for (std::int64_t i = 0; i < 20; ++i) {
        auto tensor = at::full({3}, base + rank + i, at::kLong);
        all_reduce(tensor, ReduceOp::kSum, world->all());
        EXPECT_EQ(tensor[2].item<std::int64_t>(), size * (base + i) + size * (size - 1) / 2);
      }
      if (rank < 2) {
        auto pair = at::full({1}, rank, at::kLong);
        all_reduce(pair, ReduceOp::kSum, world->group({0, 1}, "pair"));
        EXPECT_EQ(pair.item<std::int64_t>(), 1);
      }
      barrier("end", world->all());
    });
  }
  for (auto& rank : ranks) rank.join();
}

TEST(KeyValueStore, CarriesGlooOfTwoJobsSideBySide) {
  const auto second = JobToken::from_text("the secret of another job", "test");
  KeyValueServer one({.token = test_token()});
  KeyValueServer two({.token = second});
  std::thread thread([&] { run_job(two, second, 3, 1000); });
  run_job(one, test_token(), 4, 0);
  thread.join();
}

TEST(KeyValueStore, LetsAWorldNameTheRanksThatDidNotCome) {
  KeyValueServer server({.token = test_token()});
  const auto text = error_text<DistributedError>([&] {
    World::join({.rank = 0, .world_size = 3}, connect_to(server), {.timeout = milliseconds(300)});
  });
  expect_parts(text, {"missing: 1, 2."});
}

}  // namespace
}  // namespace fulmen::detail
