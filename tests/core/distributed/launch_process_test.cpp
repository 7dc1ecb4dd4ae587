#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/core/distributed/launch_roles.h"
#include "tests/support/sanitizers.h"

namespace fulmen {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

/// The process of a rank that waits.
pid_t pid_in(const std::string& output, int rank) {
  const auto end = output.find(" of rank " + std::to_string(rank) + " waits");
  const auto begin = output.rfind("pid ", end) + 4;
  return end == output.npos ? 0 : std::stoi(output.substr(begin, end - begin));
}

/// Whether the process has ended; a zombie has.
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

/// Ends with this code in this time, although no rank would end by itself.
ProgramResult expect_end(const std::string& role, int devices, int code, double limit) {
  auto result = run_role(role, devices);
  EXPECT_EQ(result.exit_code, code) << role << ": " << result.output;
  // The limits are about what happens after the start, which takes some seconds in a sanitizer.
  EXPECT_LT(result.seconds.count(), kIsSanitized ? 3 * limit : limit)
      << role << ": " << result.output;
  return result;
}

TEST(SelfLaunch, StartsTheOtherRanksAndPrefixesTheirOutput) {
  const auto result = run_role("sum", 3);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("rank 0 sum 6\n"));
  EXPECT_THAT(result.output, Not(HasSubstr("[rank 0]")));
  EXPECT_THAT(result.output, HasSubstr("[rank 1] rank 1 sum 6\n"));
  EXPECT_THAT(result.output, HasSubstr("[rank 2] rank 2 sum 6\n"));
  EXPECT_THAT(result.output, HasSubstr("Job: 3 ranks by self-launch, this is rank 0, rendezvous "));
  EXPECT_EQ(count(result.output, "self-launch"), 1) << result.output;
}

TEST(SelfLaunch, PassesAllOutputOnInWholeLines) {
  const auto result = run_role("output");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("[rank 1] to errors\n"));
  EXPECT_THAT(result.output, HasSubstr("[rank 1] input ends at once: 1\n[rank 1] \n"));
  EXPECT_EQ(count(result.output, "[rank 1] " + std::string(9000, 'x') + "\n"), 3);
  EXPECT_EQ(std::count(result.output.begin(), result.output.end(), 'Z'), 100000);
  EXPECT_THAT(result.output, HasSubstr("[rank 1] no newline\n"));
}

TEST(SelfLaunch, GivesTheOtherRanksTheSameArguments) {
  auto arguments = role_command("arguments", 2);
  for (const auto* more : {"two words", "", "--x=*", "last"}) arguments.emplace_back(more);
  const auto result = run_program({.arguments = arguments, .time_limit = kRoleLimit});
  EXPECT_EQ(count(result.output, "<two words><><--x=*><last>\n"), 2) << result.output;
}

TEST(SelfLaunch, KeepsTheFirstProcessesFilesToItself) {
  const auto result = run_role("files");
  EXPECT_THAT(result.output, HasSubstr("open 1\n"));
  EXPECT_THAT(result.output, HasSubstr("[rank 1] open 0\n"));
}

TEST(SelfLaunch, MakesOneWorldAfterAnother) {
  const auto result = run_role("twice");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(count(result.output, "rank 0 sum 3\n"), 2) << result.output;
  EXPECT_EQ(count(result.output, "[rank 1] rank 1 sum 3\n"), 2) << result.output;
}

TEST(SelfLaunch, RunsTwoJobsOnOneHostAtOnce) {
  Program first({.arguments = role_command("twice", 2), .time_limit = kRoleLimit});
  Program second({.arguments = role_command("twice", 2), .time_limit = kRoleLimit});
  EXPECT_EQ(first.wait().exit_code, 0);
  EXPECT_EQ(second.wait().exit_code, 0);
}

TEST(SelfLaunch, StartsAgainAfterAJobThatWasKilled) {
  const int starts = std::getenv("FULMEN_LONG_TESTS") != nullptr ? 20 : 4;
  for (int i = 0; i < starts; ++i) {
    {
      Program killed({.arguments = role_command("wait", 2), .time_limit = kRoleLimit});
      ASSERT_TRUE(killed.wait_for_output("waits"));
    }
    const auto result = run_role("sum");
    ASSERT_EQ(result.exit_code, 0) << "start " << i << ": " << result.output;
  }
}

TEST(SelfLaunch, ListensOnLoopbackOnly) {
  Program job({.arguments = role_command("wait", 2), .time_limit = kRoleLimit});
  ASSERT_TRUE(job.wait_for_output("of rank 0 waits"));
  int listening = 0;
  // Local address and state (0A: listens) of all sockets of this host.
  for (const auto* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream sockets(file);
    std::string line;
    std::getline(sockets, line);
    while (std::getline(sockets, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state, skip, inode;
      fields >> number >> local >> remote >> state;
      for (int i = 0; i < 5; ++i) fields >> skip;
      fields >> inode;
      if (state != "0A") continue;
      for (const auto& entry :
           std::filesystem::directory_iterator("/proc/" + std::to_string(job.pid()) + "/fd")) {
        std::error_code ignored;
        if (std::filesystem::read_symlink(entry.path(), ignored) == "socket:[" + inode + "]") {
          EXPECT_EQ(local.substr(0, 9), "0100007F:") << line;
          ++listening;
        }
      }
    }
  }
  EXPECT_GT(listening, 0);
}

TEST(SelfLaunch, EndsAllRanksWhenOneFails) {
  // The first process fails by itself or is ended: with its own code or that of rank 1.
  for (const std::string when : {"fail_", "fail_early_"}) {
    const auto thrown = run_role(when + "throw", 3);
    EXPECT_EQ(thrown.exit_code, 1) << thrown.output;
    EXPECT_LT(thrown.seconds.count(), 10);
    EXPECT_THAT(thrown.output, HasSubstr("[rank 1] error: something broke on rank 1"));
    EXPECT_THAT(thrown.output, HasSubstr("ended with exit code 1"));
    const auto exited = run_role(when + "exit", 3);
    EXPECT_THAT(exited.exit_code, testing::AnyOf(1, 3)) << exited.output;
    EXPECT_LT(exited.seconds.count(), 10);
    EXPECT_THAT(exited.output, HasSubstr("rank 1 ended with exit code 3"));
    const auto killed = run_role(when + "kill", 3);
    EXPECT_THAT(killed.exit_code, testing::AnyOf(1, 128 + SIGKILL)) << killed.output;
    EXPECT_LT(killed.seconds.count(), 10);
    EXPECT_THAT(killed.output, HasSubstr("rank 1 was ended by signal 9 (Killed)"));
  }
}

TEST(SelfLaunch, EndsAProcessThatHangsInItsOwnCodeAfterAnotherFailed) {
  const auto result = expect_end("hang", 3, 3, 8);
  EXPECT_THAT(result.output, HasSubstr("error: rank 1 ended with exit code 3; the job ends.\n"));
  EXPECT_THAT(result.output, HasSubstr("a line of rank 0\n")) << "buffered output was lost";
}

TEST(SelfLaunch, EndsAtTheTimeLimitWhenARankHangs) {
  const auto result = expect_end("hang_in_time", 2, 1, 12);
  EXPECT_THAT(result.output, HasSubstr("error: "));
}

TEST(SelfLaunch, FailsWithARankThatFailsAfterTheFirstHasFinished) {
  EXPECT_THAT(expect_end("late_failure", 2, 5, 10).output,
              HasSubstr("rank 1 ended with exit code 5"));
}

TEST(SelfLaunch, KeepsTheFirstProcessesExitCode) {
  expect_end("return_seven", 2, 7, 10);
}

TEST(SelfLaunch, EndsTheOtherRanksWhenTheFirstFails) {
  const auto result = expect_end("throw_first", 2, 1, 10);
  EXPECT_THAT(result.output, HasSubstr("error: something broke on rank 0"));
  EXPECT_THAT(result.output, Not(HasSubstr("rank 1 ended"))) << "it was ended on purpose";
  const auto child = pid_in(result.output, 1);  // 0 if it did not come so far.
  EXPECT_TRUE(child == 0 || is_gone(child));
}

TEST(SelfLaunch, EndsTheOtherRanksWhenTheFirstProcessIsKilled) {
  for (const int signal : {SIGKILL, SIGTERM, SIGINT}) {
    Program job({.arguments = role_command("wait", 2), .time_limit = kRoleLimit});
    ASSERT_TRUE(job.wait_for_output("of rank 0 waits"));
    ASSERT_TRUE(job.wait_for_output("of rank 1 waits"));
    const auto begin = std::chrono::steady_clock::now();
    ::kill(job.pid(), signal);
    const auto result = job.wait();
    EXPECT_EQ(result.exit_code, 128 + signal) << result.output;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(2));
    EXPECT_TRUE(goes_within(pid_in(result.output, 1), seconds(2))) << "signal " << signal;
    EXPECT_THAT(result.output, Not(HasSubstr("error"))) << "signal " << signal;
  }
}

TEST(SelfLaunch, HandsASignalOnAndWaitsForItsHandlers) {
  Program job({.arguments = role_command("tidy", 2), .time_limit = kRoleLimit});
  ASSERT_TRUE(job.wait_for_output("of rank 0 waits"));
  ASSERT_TRUE(job.wait_for_output("of rank 1 waits"));
  ::kill(job.pid(), SIGTERM);
  const auto result = job.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.output;
  EXPECT_EQ(count(result.output, "[rank 1] tidied up\n"), 1) << result.output;
}

TEST(SelfLaunch, IsNotDisturbedByACopyOfAProcess) {
  // A leak check cannot stop the threads of a copy.
  const auto result = run_role("fork", 2, {{"ASAN_OPTIONS", "detect_leaks=0"}});
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("rank 0 sum 3\n"));
}

TEST(SelfLaunch, DividesTheCoresUnlessTheUserHasDone) {
  cpu_set_t set;
  ASSERT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  const int divided = std::max(1, CPU_COUNT(&set) / 2);
  const auto threads = [](int number) { return "threads " + std::to_string(number) + "\n"; };
  EXPECT_EQ(count(run_role("threads", 2, {{"OMP_NUM_THREADS", ""}}).output, threads(divided)), 2);
  // torch takes no more than there are cores.
  const int given = divided == 1 ? std::min(2, CPU_COUNT(&set)) : 1;
  const auto result = run_role("threads", 2, {{"OMP_NUM_THREADS", std::to_string(given)}});
  EXPECT_EQ(count(result.output, threads(given)), 2) << result.output;
}

TEST(SelfLaunch, KeepsItsNumberOfRanks) {
  EXPECT_THAT(run_role("one_then_two").output, HasSubstr("1 rank since its first run"));
}

TEST(Launch, RunsAFunctionOnRanksAndReturnsTheFirstFailure) {
  const auto good = run_role("launch", 2);
  EXPECT_EQ(good.exit_code, 0) << good.output;
  EXPECT_THAT(good.output, HasSubstr("[rank 1] rank 1 sum 3\n"));
  EXPECT_EQ(run_role("launch", 3).exit_code, 4);
  EXPECT_EQ(run_role("launch", 1).exit_code, 0);
}

TEST(Launch, NeverStartsAProcessIfToldSo) {
  const auto result = run_role("never");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("kNever"));
  EXPECT_THAT(result.output, Not(HasSubstr("[rank 1]")));
}

}  // namespace
}  // namespace fulmen
