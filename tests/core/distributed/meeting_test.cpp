#include "core/distributed/meeting.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <future>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/distributed/key_value_server.h"
#include "core/distributed/key_value_store.h"
#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"
#include "tests/core/distributed/store_client.h"

namespace fulmen::detail {
namespace {

using fulmen::testing::error_text;
using fulmen::testing::expect_parts;
using std::chrono::seconds;

constexpr const char* kSecret = "a secret of this test";  // That of test_token().

std::string own_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

/// Two ranks; on two hosts unless their address is of loopback.
JobPlace place(int rank, const std::string& address, std::uint16_t port, LaunchMethod method) {
  const bool local = is_loopback(address);
  return {.method = method,
          .topology = {.rank = rank,
                       .local_rank = local ? rank : 0,
                       .world_size = 2,
                       .local_world_size = local ? 2 : 1,
                       .node_rank = local ? 0 : rank},
          .master_addr = address,
          .master_port = port,
          .job_id = "job"};
}

/// The variables of this process, as they were before.
class MeetingTest : public ::testing::Test {
 protected:
  MeetingTest() { clear(); }
  ~MeetingTest() override { clear(); }

  static void clear() {
    for (const auto* name :
         {"FULMEN_TOKEN", "FULMEN_TOKEN_FILE", "FULMEN_STORE", "FULMEN_STORE_PREFIX"})
      ::unsetenv(name);
  }
  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

  static void expect_to_meet(Meeting& first, Meeting& second) {
    first.store()->set("key", std::string("value"));
    EXPECT_EQ(second.store()->get_to_str("key"), "value");
  }
  static bool is_closed(const Meeting& meeting) {
    return dynamic_cast<const KeyValueStore*>(meeting.store().get()) != nullptr;
  }
  static std::uint16_t free_port() { return KeyValueServer({}).port(); }
};

TEST_F(MeetingTest, WithoutATokenIsInAStoreOfC10dOnLoopback) {
  Meeting first(place(0, "127.0.0.1", 0, LaunchMethod::kSelf), seconds(20));
  Meeting second(place(1, "127.0.0.1", first.port(), LaunchMethod::kSelf), seconds(20));
  EXPECT_FALSE(is_closed(first));
  expect_to_meet(first, second);
}

TEST_F(MeetingTest, WithATokenIsInAStoreThatIsClosedToOthers) {
  set("FULMEN_TOKEN", kSecret);
  Meeting first(place(0, "127.0.0.1", 0, LaunchMethod::kSelf), seconds(20));
  Meeting second(place(1, "127.0.0.1", first.port(), LaunchMethod::kSelf), seconds(20));
  EXPECT_TRUE(is_closed(first) && is_closed(second));
  expect_to_meet(first, second);
  set("FULMEN_TOKEN", "another secret than that");
  const auto text = error_text<DistributedError>(
      [&] { Meeting(place(1, "127.0.0.1", first.port(), LaunchMethod::kSelf), seconds(20)); });
  expect_parts(text, {"another token", "FULMEN_TOKEN_FILE"});
}

TEST_F(MeetingTest, OfSeveralHostsIsClosedUnderEveryLauncherIfThereIsAToken) {
  set("FULMEN_TOKEN", kSecret);
  for (const auto method : {LaunchMethod::kVariables, LaunchMethod::kSlurm}) {
    const auto port = free_port();
    Meeting first(place(0, own_host(), port, method), seconds(20));
    Meeting second(place(1, own_host(), port, method), seconds(20));
    EXPECT_TRUE(is_closed(first) && is_closed(second));
    EXPECT_FALSE(first.all_ranks_local());
    expect_to_meet(first, second);
  }
}

TEST_F(MeetingTest, OfSeveralHostsWithoutATokenIsRefusedIfSomebodySetTheVariables) {
  for (const int rank : {0, 1}) {
    const auto text = error_text<ConfigError>(
        [&] { Meeting(place(rank, "192.0.2.1", 29500, LaunchMethod::kVariables), seconds(1)); });
    expect_parts(text, {"192.0.2.1:29500", "FULMEN_TOKEN_FILE", "MASTER_ADDR=127.0.0.1"});
  }
}

TEST_F(MeetingTest, OfSeveralHostsWithoutATokenGoesOnWithAWarningUnderALauncher) {
  for (const auto method :
       {LaunchMethod::kTorchrun, LaunchMethod::kSlurm, LaunchMethod::kOpenMpi}) {
    const auto port = free_port();
    ::testing::internal::CaptureStderr();
    Meeting first(place(0, own_host(), port, method), seconds(20));
    const auto warned = ::testing::internal::GetCapturedStderr();
    expect_parts(warned, {"warning: ", "there is no token", "FULMEN_TOKEN_FILE"});
    ::testing::internal::CaptureStderr();
    Meeting second(place(1, own_host(), port, method), seconds(20));
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    EXPECT_FALSE(is_closed(first));
    expect_to_meet(first, second);
  }
}

TEST_F(MeetingTest, IsWhereFulmenRunServesItAndUnderThePrefixOfTheRound) {
  KeyValueServer server({.token = test_token()});
  set("FULMEN_TOKEN", kSecret);
  set("FULMEN_STORE", "agent");
  set("FULMEN_STORE_PREFIX", "round 7");
  Meeting first(place(0, "127.0.0.1", server.port(), LaunchMethod::kTorchrun), seconds(20));
  Meeting second(place(1, "127.0.0.1", server.port(), LaunchMethod::kTorchrun), seconds(20));
  expect_to_meet(first, second);
  EXPECT_EQ(server.drop_prefix("round 7"), 1U);
  EXPECT_EQ(server.num_keys(), 0U);
  set("FULMEN_STORE", "Agent");
  EXPECT_THROW(Meeting(place(1, "127.0.0.1", 1, LaunchMethod::kTorchrun), seconds(1)), ConfigError);
}

TEST_F(MeetingTest, NeedsNoTokenWhereFulmenRunServesItOnOneHost) {
  KeyValueServer server({});
  set("FULMEN_STORE", "agent");
  Meeting first(place(0, "127.0.0.1", server.port(), LaunchMethod::kTorchrun), seconds(20));
  Meeting second(place(1, "127.0.0.1", server.port(), LaunchMethod::kTorchrun), seconds(20));
  expect_to_meet(first, second);
}

TEST_F(MeetingTest, TakesOnlyThePlaceOfItsStoreFromTheStoreOfAnotherAgent) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  c10d::TCPStore agent("127.0.0.1", options);
  set("FULMEN_TOKEN", kSecret);
  for (const auto& host : {std::string("127.0.0.1"), own_host()}) {
    const auto join = [&](int rank) {
      auto at = place(rank, host, agent.getPort(), LaunchMethod::kTorchrun);
      at.agent_serves_store = true;
      at.job_id = "job at " + host;
      return std::make_unique<Meeting>(at, seconds(20));
    };
    auto later = std::async(std::launch::async, join, 1);
    const auto first = join(0);
    const auto second = later.get();
    EXPECT_TRUE(is_closed(*first) && is_closed(*second));
    EXPECT_NE(first->port(), agent.getPort());
    expect_to_meet(*first, *second);
    EXPECT_FALSE(agent.check({"key"}));
  }
}

}  // namespace
}  // namespace fulmen::detail
