// Ranks that are processes: one of three is stopped, killed or busy while the others wait for it.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <iostream>
#include <memory>
#include <thread>

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/distributed/job.h"
#include "fulmen/core/support/log.h"
#include "tests/support/run_program.h"

namespace fulmen {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

constexpr auto kLimit = milliseconds(2000);
/// A rank looks around after 1 s, and listens to the store when it is quiet for 2.5 s.
constexpr auto kLongLimit = milliseconds(20000);
constexpr int kRanks = 3;

constexpr int kNobody = -1;  ///< Rank 0 ends first, and the others have no more to say to it.

/// A rank: one step, then a barrier, to which the rank that is named does not come.
int play(int absent) {
  Log log;
  const auto limit = absent == kNobody ? kLongLimit : kLimit;
  const auto world = join_job({.devices = kRanks, .timeout = limit}, log);
  const auto all = world->all();
  auto tensor = at::ones({8, 4});
  all_reduce(tensor, ReduceOp::kSum, all, "weights");
  std::cout << "ready" << std::endl;
  if (absent == kNobody) {
    std::this_thread::sleep_for(milliseconds(world->rank() == 0 ? 1600 : 4500));
    return 0;
  }
  if (world->rank() == absent) {
    std::this_thread::sleep_for(std::chrono::seconds(20));
    return 0;
  }
  // The test has time for a signal, after the ranks have looked at each other's processes.
  std::this_thread::sleep_for(milliseconds(1000));
  barrier("end", all);
  return 0;
}

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

using Ranks = std::array<std::unique_ptr<Program>, kRanks>;

Ranks start_ranks(int absent) {
  const auto port = std::to_string(free_port());
  Ranks ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks[static_cast<std::size_t>(rank)] = std::make_unique<Program>(
        ProgramOptions{.arguments = {own_program(), "--role", std::to_string(absent)},
                       .variables = {{"RANK", std::to_string(rank)},
                                     {"WORLD_SIZE", std::to_string(kRanks)},
                                     {"LOCAL_RANK", std::to_string(rank)},
                                     {"LOCAL_WORLD_SIZE", std::to_string(kRanks)},
                                     {"MASTER_ADDR", "127.0.0.1"},
                                     {"MASTER_PORT", port}},
                       .time_limit = std::chrono::seconds(30)});
  }
  return ranks;
}

/// What the other ranks print when this happens to one of them; number 0: it is busy elsewhere.
std::array<std::string, kRanks> outputs_without(int absent, int number) {
  const auto ranks = start_ranks(absent);
  auto& victim = *ranks[static_cast<std::size_t>(absent)];
  EXPECT_TRUE(victim.wait_for_output("ready"));
  std::this_thread::sleep_for(milliseconds(500));
  if (number != 0) ::kill(victim.pid(), number);
  std::array<std::string, kRanks> outputs;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == absent) continue;
    const auto result = ranks[static_cast<std::size_t>(rank)]->wait();
    EXPECT_EQ(result.exit_code, 1) << result.output;
    EXPECT_LT(result.seconds.count(), 15);
    outputs[static_cast<std::size_t>(rank)] = result.output;
    EXPECT_THAT(result.output, HasSubstr("barrier \"end\": failed on rank "));
    EXPECT_THAT(result.output, HasSubstr("as its collective 2 (time limit 2 s)."));
  }
  return outputs;
}

TEST(CollectiveWatchOfProcesses, NamesARankThatIsStopped) {
  const auto outputs = outputs_without(2, SIGSTOP);
  for (const int rank : {0, 1}) {
    const auto& text = outputs[static_cast<std::size_t>(rank)];
    EXPECT_THAT(text, HasSubstr("Rank 2 did not answer: the process is stopped."));
    EXPECT_THAT(text, Not(HasSubstr("Rank " + std::to_string(1 - rank) + " ")));
  }
}

TEST(CollectiveWatchOfProcesses, NamesARankThatWasKilled) {
  const auto outputs = outputs_without(1, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_THAT(outputs[static_cast<std::size_t>(rank)], HasSubstr("Rank 1 ended. "));
  }
}

TEST(CollectiveWatchOfProcesses, NamesARankThatIsBusyElsewhere) {
  const auto outputs = outputs_without(0, 0);
  for (const int rank : {1, 2}) {
    EXPECT_THAT(outputs[static_cast<std::size_t>(rank)],
                HasSubstr("Rank 0 did not come to it; last there: collective 1, all_reduce sum "
                          "float32 (8, 4) \"weights\" (done); in no collective for "));
  }
}

TEST(CollectiveWatchOfProcesses, NamesRankZeroWithWhichTheStoreIsGone) {
  const std::pair<int, std::string> cases[] = {
      {SIGSTOP, "Rank 0 did not answer: the process is stopped."}, {SIGKILL, "Rank 0 ended."}};
  for (const auto& [number, fate] : cases) {
    const auto outputs = outputs_without(0, number);
    for (const int rank : {1, 2}) {
      const auto& text = outputs[static_cast<std::size_t>(rank)];
      EXPECT_THAT(text,
                  HasSubstr("the store of the job, which rank 0 serves unless an agent does, "
                            "does not answer"));
      EXPECT_THAT(text, HasSubstr(fate));
    }
  }
}

TEST(CollectiveWatchOfProcesses, IsQuietWhenRankZeroHasDoneItsWork) {
  const auto ranks = start_ranks(kNobody);
  for (const auto& rank : ranks) {
    const auto result = rank->wait();
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_TRUE(result.output.ends_with("ready\n")) << result.output;
  }
}

}  // namespace
}  // namespace fulmen

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "--role") {
    try {
      return fulmen::play(std::stoi(argv[2]));
    } catch (const std::exception& error) {
      std::cerr << "error: " << error.what() << std::endl;
      return 1;
    }
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
