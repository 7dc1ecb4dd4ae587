// Training on two nodes, which are network namespaces of this host, under an agent on each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <thread>

#include "tests/ranks/network.h"
#include "tests/ranks/training.h"

namespace fulmen {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr const char* kEndpoint = "10.77.0.1:29400";

class Nodes : public testing::Test {
 protected:
  void SetUp() override {
    if (!network_.problem().empty()) GTEST_SKIP() << network_.problem();
  }

  ProgramOptions agent(int node,
                       TrainingRun run,
                       const std::string& endpoint = kEndpoint,
                       const std::string& nodes = "2",
                       const std::string& token = std::string(64, 'b')) const {
    Words command = {FULMEN_RUN,
                     "--nnodes",
                     nodes,
                     "--node-rank",
                     std::to_string(node),
                     "--rdzv-endpoint",
                     endpoint,
                     "--max-restarts",
                     "5",
                     "--shutdown-timeout",
                     "1",
                     "--rdzv-conf",
                     "join_timeout=20,last_call_timeout=1,keep_alive_interval=0.2,"
                     "keep_alive_max_attempt=5"};
    if (nodes != "2") command.erase(command.begin() + 3, command.begin() + 5);
    for (const auto& word : command_of(run)) command.push_back(word);
    return {.arguments = network_.on(node, command),
            .variables = {{"OMP_NUM_THREADS", "1"}, {"FULMEN_TOKEN", token}},
            .time_limit = std::chrono::seconds(90)};
  }

  /// Both agents to their ends, which must be good.
  void expect_success(Program& first, Program& second) {
    for (auto* program : {&first, &second}) {
      const auto result = program->wait();
      ASSERT_EQ(result.exit_code, 0) << result.output;
    }
  }

  /// What two ranks of one host make of it.
  void expect_weights_of_one_host(const std::filesystem::path& folder) {
    const TemporaryFolder whole;
    ProgramOptions options{.arguments = command_of({.folder = whole.path(), .devices = 2}),
                           .variables = {{"OMP_NUM_THREADS", "1"}}};
    const auto result = run_program(options);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    expect_same_weights(folder, whole.path());
  }

  const TwoNodes network_;
  const TemporaryFolder folder_;  // Both nodes see it, as a file system of a cluster.
};

TEST_F(Nodes, TrainAsOneHostDoes) {
  for (const std::string endpoint : {"10.77.0.1:29400", "[fd77::1]:29400"}) {
    const TemporaryFolder folder;
    Program first(agent(0, {.folder = folder.path()}, endpoint));
    Program second(agent(1, {.folder = folder.path()}, endpoint));
    expect_success(first, second);
    expect_weights_of_one_host(folder.path());
  }
}

TEST_F(Nodes, GoOnWhenACutLinkIsBack) {
  Program first(agent(0, {.folder = folder_.path(), .pause = 20}));
  Program second(agent(1, {.folder = folder_.path(), .pause = 20}));
  ASSERT_TRUE(first.wait_for_output("batch 9\n"));
  network_.cut();
  EXPECT_TRUE(first.wait_for_output("was lost: "));
  network_.mend();
  expect_success(first, second);
  expect_weights_of_one_host(folder_.path());
}

TEST_F(Nodes, GoOnWithoutTheOneWhoseLinkStaysCut) {
  Program second(agent(1, {.folder = folder_.path(), .pause = 20}, kEndpoint, "1:2"));
  Program first(agent(0, {.folder = folder_.path(), .pause = 20}, kEndpoint, "1:2"));
  ASSERT_TRUE(first.wait_for_output("batch 9\n"));
  network_.cut();
  const auto result = first.wait();
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("was lost: "));
  EXPECT_EQ(weights_of(folder_.path()).size(), 4U);
}

TEST_F(Nodes, TrainOverASlowLink) {
  if (!network_.slow_down()) GTEST_SKIP() << "tc has neither netem nor tbf here";
  Program first(agent(0, {.folder = folder_.path()}));
  Program second(agent(1, {.folder = folder_.path()}));
  expect_success(first, second);
  expect_weights_of_one_host(folder_.path());
}

TEST_F(Nodes, DoNotLetInWhoHasAnotherToken) {
  Program first(agent(0, {.folder = folder_.path()}));
  Program second(agent(1, {.folder = folder_.path()}, kEndpoint, "2", std::string(64, 'c')));
  const auto refused = second.wait();
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.output, HasSubstr("token"));
  Program right(agent(1, {.folder = folder_.path()}));
  expect_success(first, right);
}

/// Ranks that somebody starts by variables, under a name that means loopback on its own host.
TEST_F(Nodes, MeetUnderANameThatMeansLoopbackOnItsOwnHost) {
  std::vector<std::unique_ptr<Program>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    // `ip netns exec` takes files of /etc/netns only; a mount namespace of its own is as good.
    const auto hosts = folder_.path() / ("hosts" + std::to_string(rank));
    std::ofstream(hosts) << (rank == 0 ? "127.0.1.1" : "10.77.0.1")
                         << " node-a\n127.0.0.1 localhost\n";
    std::string script = "mount --bind " + hosts.string() + " /etc/hosts && exec \"$@\"";
    Words command = {"sh", "-c", script, "sh"};
    for (const auto& word : command_of({.folder = folder_.path()})) command.push_back(word);
    ranks.push_back(std::make_unique<Program>(
        ProgramOptions{.arguments = network_.on(rank, command),
                       .variables = {{"OMP_NUM_THREADS", "1"},
                                     {"FULMEN_TOKEN", std::string(64, 'b')},
                                     {"RANK", std::to_string(rank)},
                                     {"WORLD_SIZE", "2"},
                                     {"LOCAL_RANK", "0"},
                                     {"LOCAL_WORLD_SIZE", "1"},
                                     {"MASTER_ADDR", "node-a"},
                                     {"MASTER_PORT", "29500"}}}));
  }
  expect_success(*ranks[0], *ranks[1]);
  expect_weights_of_one_host(folder_.path());
}

}  // namespace
}  // namespace fulmen

int main(int argc, char** argv) {
  if (const auto code = fulmen::train_if_told_so(argc, argv)) return *code;
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
