// fulmen-run with real processes: several agents on one host are the nodes.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "tests/support/run_program.h"

namespace fulmen {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;
using Words = std::vector<std::string>;

constexpr seconds kLimit(40);
constexpr const char* kToken = "5d41402abc4b2a76b9719d911017c592aabbccddeeff00112233445566778899";

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
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

ProgramOptions agent(Words flags, const Words& rank, const std::string& token = kToken) {
  ProgramOptions options{.arguments = {FULMEN_RUN}, .time_limit = kLimit};
  for (const auto& flag : flags) options.arguments.push_back(flag);
  options.arguments.emplace_back(FULMEN_RUN_RANK);
  for (const auto& word : rank) options.arguments.push_back(word);
  options.variables = {{"FULMEN_TOKEN", token}, {"FULMEN_TOKEN_FILE", ""}, {"OMP_NUM_THREADS", ""}};
  return options;
}

ProgramResult run(Words flags, const Words& rank) {
  return run_program(agent(std::move(flags), rank, ""));
}

/// Flags of agents that meet, and are fast to give each other up.
Words meeting(const std::string& nodes, const std::string& endpoint, int restarts = 0) {
  return {"--nnodes",
          nodes,
          "--rdzv-endpoint",
          endpoint,
          "--max-restarts",
          std::to_string(restarts),
          "--rdzv-conf",
          "join_timeout=20,last_call_timeout=1,keep_alive_interval=0.2,keep_alive_max_attempt=5"};
}

std::string local_endpoint() {
  return "127.0.0.1:" + std::to_string(free_port());
}

/// The process of a rank that waits.
pid_t pid_in(const std::string& output, int rank) {
  const auto end = output.find(" of rank " + std::to_string(rank) + " of ");
  const auto begin = output.rfind("pid ", end) + 4;
  return end == output.npos ? 0 : std::stoi(output.substr(begin, end - begin));
}

bool is_gone(pid_t pid) {
  const auto status = read_file("/proc/" + std::to_string(pid) + "/stat");
  return status.empty() || status.find(") Z ") != std::string::npos;
}

bool goes_within(pid_t pid, milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!is_gone(pid) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(milliseconds(10));
  return is_gone(pid);
}

TEST(FulmenRun, GivesRanksTheirPlaceAndPrefixesTheirLines) {
  const auto result =
      run({"--nproc-per-node", "2", "--rdzv-id", "j", "--max-restarts", "3"}, {"place"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("[rank 0] place 0 2 0 2 0 127.0.0.1 j 0 3  agent\n"));
  EXPECT_THAT(result.output, HasSubstr("[rank 1] place 1 2 1 2 0 127.0.0.1 j 0 3  agent\n"));
  EXPECT_EQ(count(result.output, "\n"), 2) << "it has nothing to say itself: " << result.output;
}

TEST(FulmenRun, PassesArgumentsOnAsTheyAre) {
  const auto result = run({"--standalone"}, {"arguments", "two words", "", "--nnodes", "-x", "*"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output,
              HasSubstr("[rank 0] arguments <arguments> <two words> <> <--nnodes> <-x> <*>\n"));
  EXPECT_THAT(result.output, HasSubstr("[rank 0] to errors\n"));
}

TEST(FulmenRun, EndsAllRanksWithTheCodeOfTheFirstThatFails) {
  const auto result = run({"--nproc-per-node", "3"}, {"fail", "1", "7"});
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_LT(result.seconds.count(), 5);
  EXPECT_THAT(result.output,
              HasSubstr("rank 1 ended with exit code 7. Last lines of its standard "
                        "error:\nfirst line\nthe reason of rank 1\n"));
  EXPECT_THAT(result.output, HasSubstr("node 0 ("));
  const auto killed = run({"--nproc-per-node", "3"}, {"fail", "2", "kill"});
  EXPECT_EQ(killed.exit_code, 128 + SIGKILL);
  EXPECT_LT(killed.seconds.count(), 5);
  EXPECT_THAT(killed.output, HasSubstr("rank 2 was ended by signal 9 (Killed)"));
}

TEST(FulmenRun, StartsAllRanksAgainAfterAFailure) {
  for (const std::string how : {"3", "kill"}) {
    const auto result =
        run({"--nproc-per-node", "2", "--max-restarts", "3"}, {"fail_until", "1", how, "2"});
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("[rank 0] place 0 2 0 2 0 127.0.0.1 none 2 3"));
    EXPECT_THAT(result.output, HasSubstr("[rank 1] place 1 2 1 2 0 127.0.0.1 none 2 3"));
    EXPECT_THAT(result.output, HasSubstr("restart 1 of 3"));
    EXPECT_THAT(result.output, HasSubstr("restart 2 of 3"));
    EXPECT_THAT(result.output, Not(HasSubstr("restart 3 of 3")));
  }
}

TEST(FulmenRun, GivesUpAfterTheLastRestart) {
  const auto result = run({"--nproc-per-node", "2", "--max-restarts", "2"}, {"fail", "0", "5"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(count(result.output, "[rank 0] the reason of rank 0\n"), 3) << result.output;
  EXPECT_THAT(result.output, HasSubstr("error after 2 restarts: node 0 ("));
}

TEST(FulmenRun, KillsRanksThatDoNotHeedSigterm) {
  const auto result =
      run({"--nproc-per-node", "2", "--shutdown-timeout", "1"}, {"stubborn", "1", "3"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_LT(result.seconds.count(), 5);
  const auto other = pid_in(result.output, 0);
  EXPECT_TRUE(other == 0 || is_gone(other));
}

TEST(FulmenRun, WritesAFileForEachRoundAndRank) {
  const TemporaryFolder folder;
  const auto logs = (folder.path() / "logs").string();
  const auto result = run({"--nproc-per-node", "2", "--max-restarts", "1", "--log-dir", logs},
                          {"fail_until", "1", "3", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(read_file(logs + "/round_0/rank_1.log"), "first line\nthe reason of rank 1\n");
  EXPECT_THAT(read_file(logs + "/round_1/rank_1.log"), HasSubstr("place 1 2"));
  EXPECT_THAT(result.output, HasSubstr("[rank 1] place 1 2"));
  const auto quiet = run({"--log-dir", logs, "--redirects", "1"}, {"arguments"});
  EXPECT_THAT(read_file(logs + "/round_0/rank_0.log"), HasSubstr("arguments"));
  EXPECT_EQ(quiet.output, "[rank 0] to errors\n");
}

TEST(FulmenRun, NamesFlagValueAndRemedy) {
  const auto result = run({"--nnodes", "2:1"}, {"place"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.output, HasSubstr("error: --nnodes: got \"2:1\"; give N or MIN:MAX"));
}

TEST(FulmenRun, EndsWithTheSignalThatCame) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    Program job(agent({"--nproc-per-node", "2", "--max-restarts", "9"}, {"tidy"}, ""));
    ASSERT_TRUE(job.wait_for_output("of rank 0 of 2 waits"));
    ASSERT_TRUE(job.wait_for_output("of rank 1 of 2 waits"));
    ::kill(job.pid(), signal);
    const auto result = job.wait();
    EXPECT_EQ(result.exit_code, 128 + signal) << result.output;
    EXPECT_EQ(count(result.output, "tidied up\n"), 2) << result.output;
    EXPECT_THAT(result.output, Not(HasSubstr("restart 1")));
  }
}

TEST(FulmenRun, LeavesNoRankWhenItIsKilled) {
  Program job(agent({"--nproc-per-node", "2"}, {"wait"}, ""));
  ASSERT_TRUE(job.wait_for_output("of rank 0 of 2 waits"));
  ASSERT_TRUE(job.wait_for_output("of rank 1 of 2 waits"));
  ::kill(job.pid(), SIGKILL);
  const auto result = job.wait();
  EXPECT_TRUE(goes_within(pid_in(result.output, 0), seconds(2)));
  EXPECT_TRUE(goes_within(pid_in(result.output, 1), seconds(2)));
}

TEST(FulmenRun, StartsAgainAfterAJobThatWasKilled) {
  const auto endpoint = local_endpoint();
  for (int i = 0; i < 20; ++i) {
    {
      Program first(agent(meeting("2", endpoint), {"wait"}));
      Program second(agent(meeting("2", endpoint), {"wait"}));
      ASSERT_TRUE(first.wait_for_output(" waits")) << i;
      ::kill(first.pid(), SIGKILL);
      ::kill(second.pid(), SIGKILL);
    }
    Program first(agent(meeting("2", endpoint), {"place"}));
    Program second(agent(meeting("2", endpoint), {"place"}));
    const auto a = first.wait();
    const auto b = second.wait();
    ASSERT_EQ(a.exit_code, 0) << i << ": " << a.output;
    ASSERT_EQ(b.exit_code, 0) << i << ": " << b.output;
  }
}

TEST(FulmenRunNodes, NumberTheirRanks) {
  for (const std::string host : {"127.0.0.1", "[::1]", "localhost"}) {
    const auto endpoint = host + ":" + std::to_string(free_port());
    auto flags = meeting("2", endpoint);
    flags.insert(flags.end(), {"--nproc-per-node", "2", "--node-rank", "1"});
    Program second(agent(flags, {"place"}));
    std::this_thread::sleep_for(milliseconds(300));  // It waits for the one that serves.
    flags.back() = "0";
    flags[flags.size() - 3] = "1";
    Program first(agent(flags, {"place"}));
    const auto a = first.wait();
    const auto b = second.wait();
    EXPECT_EQ(a.exit_code, 0) << host << ": " << a.output;
    EXPECT_EQ(b.exit_code, 0) << host << ": " << b.output;
    EXPECT_THAT(a.output, HasSubstr("[rank 0] place 0 3 0 1 0 "));
    EXPECT_THAT(b.output, HasSubstr("[rank 1] place 1 3 0 2 1 "));
    EXPECT_THAT(b.output, HasSubstr("[rank 2] place 2 3 1 2 1 "));
  }
}

TEST(FulmenRunNodes, AllEndWithTheFirstFailure) {
  const auto endpoint = local_endpoint();
  Program first(agent(meeting("2", endpoint), {"fail", "1", "7"}));
  Program second(agent(meeting("2", endpoint), {"fail", "1", "7"}));
  const auto a = first.wait();
  const auto b = second.wait();
  for (const auto& result : {a, b}) {
    EXPECT_EQ(result.exit_code, 7) << result.output;
    EXPECT_THAT(result.output, HasSubstr("rank 1 ended with exit code 7. Last lines of"));
    EXPECT_THAT(result.output, HasSubstr("node 1 ("));
  }
}

TEST(FulmenRunNodes, GoOnWithoutOneThatWasKilledAndWithItWhenItIsBack) {
  const auto endpoint = local_endpoint();
  Program first(agent(meeting("1:2", endpoint, 5), {"wait"}));
  ASSERT_TRUE(first.wait_for_output("of 1 waits"));  // Serves, and runs alone at first.
  pid_t rank = 0;
  {
    Program second(agent(meeting("1:2", endpoint, 5), {"wait"}));
    ASSERT_TRUE(second.wait_for_output("of rank 1 of 2 waits"));
    ::kill(second.pid(), SIGKILL);
    rank = pid_in(second.wait().output, 1);
  }
  EXPECT_TRUE(goes_within(rank, seconds(2)));
  ASSERT_TRUE(first.wait_for_output("of rank 0 of 1 waits, restart 1"));
  Program third(agent(meeting("1:2", endpoint, 5), {"wait"}));
  ASSERT_TRUE(third.wait_for_output("of rank 1 of 2 waits"));
  ::kill(first.pid(), SIGTERM);
  const auto a = first.wait();
  const auto c = third.wait();
  EXPECT_EQ(a.exit_code, 143) << a.output;
  EXPECT_EQ(c.exit_code, 143) << c.output;
  EXPECT_THAT(a.output, HasSubstr(") was lost: "));
  EXPECT_EQ(count(a.output, "has come; all ranks start again with it"), 2) << a.output;
}

TEST(FulmenRunNodes, MeetAgainWhenTheOneThatServesIsKilled) {
  const auto endpoint = local_endpoint();
  Program second({agent(meeting("1:2", endpoint, 3), {"wait_for_restart"})});
  {
    ASSERT_TRUE(second.wait_for_output("of 1 waits"));
    Program first(agent(meeting("1:2", endpoint, 3), {"wait_for_restart"}));
    ASSERT_TRUE(first.wait_for_output("of rank 1 of 2 waits"));
    ::kill(second.pid(), SIGKILL);
    const auto result = first.wait();
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_THAT(result.output, HasSubstr("the node that serves " + endpoint + " was lost: "));
    EXPECT_THAT(result.output, HasSubstr("[rank 0] place 0 1 0 1 0 127.0.0.1 none 1 3"));
    EXPECT_LT(result.seconds.count(), 15);
  }
}

TEST(FulmenRunNodes, EndWhenTheOneThatServesIsLostAndNoRestartIsLeft) {
  const auto endpoint = local_endpoint();
  auto flags = meeting("2", endpoint);
  flags.insert(flags.end(), {"--node-rank", "0"});
  Program first(agent(flags, {"wait"}));
  flags.back() = "1";
  Program second(agent(flags, {"wait"}));
  ASSERT_TRUE(second.wait_for_output("of rank 1 of 2 waits"));
  const auto begin = std::chrono::steady_clock::now();
  ::kill(first.pid(), SIGKILL);
  const auto result = second.wait();
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(5));
  EXPECT_THAT(result.output, HasSubstr("no restart is left"));
  EXPECT_TRUE(is_gone(pid_in(result.output, 1)));
}

TEST(FulmenRunNodes, NameTheOneThatDoesNotComeBack) {
  auto flags = meeting("2", local_endpoint(), 3);
  flags.back() = "join_timeout=2,keep_alive_interval=0.2";
  Program first(agent(flags, {"wait"}));
  std::this_thread::sleep_for(milliseconds(300));
  Program second(agent(flags, {"wait"}));
  ASSERT_TRUE(second.wait_for_output("of rank 1 of 2 waits"));
  ::kill(second.pid(), SIGKILL);
  const auto result = first.wait();
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, HasSubstr("1 node of at least 2 is here after 2.0 s"));
  EXPECT_THAT(result.output, HasSubstr("missing: node 1 ("));
}

TEST(FulmenRunNodes, HandASignalToAllRanksOfAllNodes) {
  for (const int signal : {SIGTERM, SIGUSR1}) {
    const auto endpoint = local_endpoint();
    Program first(agent(meeting("2", endpoint, 5), {"tidy"}));
    Program second(agent(meeting("2", endpoint, 5), {"tidy"}));
    ASSERT_TRUE(first.wait_for_output(" waits"));
    ASSERT_TRUE(second.wait_for_output(" waits"));
    ::kill(second.pid(), signal);
    const auto a = first.wait();
    const auto b = second.wait();
    EXPECT_EQ(a.exit_code, 128 + signal) << a.output;
    EXPECT_EQ(b.exit_code, 128 + signal) << b.output;
    EXPECT_EQ(count(a.output + b.output, "tidied up\n"), 2) << a.output << b.output;
  }
}

TEST(FulmenRunNodes, GiveUpOneThatStandsStillAndTakeItBack) {
  const auto endpoint = local_endpoint();
  Program first(agent(meeting("1:2", endpoint, 5), {"wait"}));
  ASSERT_TRUE(first.wait_for_output("of 1 waits"));
  Program second(agent(meeting("1:2", endpoint, 5), {"wait"}));
  ASSERT_TRUE(first.wait_for_output("of rank 0 of 2 waits"));
  ASSERT_TRUE(second.wait_for_output("of rank 1 of 2 waits"));
  ::kill(second.pid(), SIGSTOP);
  ASSERT_TRUE(first.wait_for_output("no sign of life for 1 s"));
  ASSERT_TRUE(first.wait_for_output("of rank 0 of 1 waits, restart 1"));
  ::kill(second.pid(), SIGCONT);
  ASSERT_TRUE(first.wait_for_output("of rank 0 of 2 waits, restart 1"));
  ASSERT_TRUE(second.wait_for_output("of rank 1 of 2 waits, restart 1"));
  ::kill(second.pid(), SIGTERM);
  EXPECT_EQ(first.wait().exit_code, 143);
  EXPECT_EQ(second.wait().exit_code, 143);
}

TEST(FulmenRunNodes, RefuseAnotherJob) {
  const auto endpoint = local_endpoint();
  Program first(agent(meeting("2", endpoint), {"place"}));
  std::this_thread::sleep_for(milliseconds(300));
  auto flags = meeting("2", endpoint);
  flags.insert(flags.end(), {"--rdzv-id", "other"});
  const auto result = run_program(agent(flags, {"place"}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("--rdzv-id is other here, but none on the node"));
}

TEST(FulmenRunNodes, SayThatNobodyServesTheEndpoint) {
  const auto endpoint = local_endpoint();
  auto flags = meeting("2", endpoint);
  flags.insert(flags.end(), {"--node-rank", "1"});
  flags[7] = "join_timeout=1";
  const auto result = run_program(agent(flags, {"place"}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output,
              HasSubstr("could not join at " + endpoint + " within 1 s: Connection refused"));
}

}  // namespace
}  // namespace fulmen
