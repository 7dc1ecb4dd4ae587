#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "tests/core/distributed/launch_roles.h"

namespace fulmen {
namespace {

using testing::HasSubstr;
using testing::Not;

/// A port of this host that nobody listens on.
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

std::map<std::string, std::string> rank_variables(int rank, int port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "2"},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(port)}};
}

TEST(JoinJob, StartsNoRanksOnOtherHosts) {
  const auto result = run_role("nodes");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("num_nodes is 2, but no launcher"));
}

TEST(JoinJob, NamesAVariableThatIsMissing) {
  auto variables = rank_variables(0, 1);
  variables.erase("MASTER_PORT");
  const auto result = run_role("sum", 2, variables);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("MASTER_PORT is missing"));
}

TEST(JoinJob, TakesItsPlaceByVariables) {
  const int port = free_port();
  // Also where no process may be started.
  for (const std::string role : {"sum", "never"}) {
    const auto options = [&](int rank) {
      return ProgramOptions{.arguments = role_command(role, 2),
                            .variables = rank_variables(rank, port),
                            .time_limit = kRoleLimit};
    };
    Program second(options(1));  // Waits for the one that serves.
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    Program first(options(0));
    const auto a = first.wait();
    const auto b = second.wait();
    EXPECT_EQ(a.exit_code, 0) << a.output;
    EXPECT_EQ(b.exit_code, 0) << b.output;
    EXPECT_THAT(a.output, HasSubstr("2 ranks by RANK variables"));
    EXPECT_THAT(b.output, Not(HasSubstr("Job: ")));
    EXPECT_EQ(count(b.output, "rank 1 sum 3\n"), role == "sum" ? 1 : 0) << b.output;
  }
}

TEST(JoinJob, NamesTheAddressThatItCannotReach) {
  const int port = free_port();
  const auto address = "127.0.0.1:" + std::to_string(port);
  const auto client = run_role("brief", 2, rank_variables(1, port));
  EXPECT_EQ(client.exit_code, 1);
  EXPECT_LT(client.seconds.count(), 6);
  EXPECT_THAT(client.output,
              HasSubstr("cannot reach rank 0 at " + address + " within 2 s: Connection refused"));
  const auto server = run_role("brief", 2, rank_variables(0, port));
  EXPECT_EQ(server.exit_code, 1);
  EXPECT_THAT(server.output, HasSubstr("waited 2 s for its 2 ranks; missing: 1"));
}

TEST(JoinJob, SaysThatAPortIsTaken) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int port = free_port();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  const auto result = run_role("brief", 2, rank_variables(0, port));
  ::close(fd);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("cannot listen on 127.0.0.1:" + std::to_string(port)));
}

TEST(JoinJob, RefusesAnotherNumberOfRanksThanTheLauncherStarted) {
  const auto result = run_role("sum", 1, rank_variables(0, 29511));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("started 2 ranks, but devices * num_nodes is 1"));
}

TEST(OpenMpi, StartsRanksThatMeet) {
  const auto mpirun = find_program("mpirun");
  if (mpirun.empty()) GTEST_SKIP() << "there is no mpirun (Debian: openmpi-bin)";
  const std::vector<std::string> two = {
      mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2"};
  const auto result = run_role("twice", 2, {}, two);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("2 ranks by Open MPI"));
  EXPECT_EQ(count(result.output, "rank 0 sum 3\n"), 2) << result.output;
  EXPECT_EQ(count(result.output, "rank 1 sum 3\n"), 2) << result.output;
  // Independent jobs are what would come of it unnoticed.
  const auto alone = run_role("sum", 1, {}, two);
  EXPECT_NE(alone.exit_code, 0);
  EXPECT_THAT(alone.output, HasSubstr("Open MPI started 2 ranks, but devices * num_nodes is 1"));
}

TEST(Torchrun, StartsRanksThatMeet) {
  const char* given = std::getenv("FULMEN_TORCHRUN");
  const auto torchrun = given != nullptr ? std::string(given) : find_program("torchrun");
  if (torchrun.empty()) {
    GTEST_SKIP() << "there is no torchrun: set FULMEN_TORCHRUN to that of a full torch";
  }
  const auto result = run_role("twice", 2, {}, {torchrun, "--no-python", "--nproc-per-node", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("2 ranks by torchrun"));
  EXPECT_EQ(count(result.output, "rank 1 sum 3\n"), 2) << result.output;
}

}  // namespace
}  // namespace fulmen
