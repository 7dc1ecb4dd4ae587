// Training on ranks that are processes, one of which fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <thread>

#include "tests/ranks/training.h"

namespace fulmen {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 3;
constexpr double kAllEndWithin = 5000;    // Milliseconds.
constexpr double kAHangIsEndedIn = 6000;  // After its time limit; 5 s are for its last words.

enum class By { kTrainer, kRun };

struct Case {
  By by;
  int rank;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return std::string(info.param.by == By::kRun ? "FulmenRun" : "Trainer") + "Rank" +
         std::to_string(info.param.rank);
}

/// Three ranks, started by the trainer or by fulmen-run.
ProgramOptions job(By by, TrainingRun run, int ranks = kRanks, int restarts = 0) {
  ProgramOptions options{.arguments = {}, .time_limit = std::chrono::seconds(90)};
  if (by == By::kTrainer) run.devices = ranks;
  if (by == By::kRun) {
    options.arguments = {FULMEN_RUN,
                         "--nproc-per-node",
                         std::to_string(ranks),
                         "--max-restarts",
                         std::to_string(restarts)};
  }
  for (const auto& word : command_of(run)) options.arguments.push_back(word);
  options.variables = {{"OMP_NUM_THREADS", "1"}};
  return options;
}

class Failure : public testing::TestWithParam<Case> {
 protected:
  /// The result of the job, which must have ended in time, with an error.
  ProgramResult result_of(const std::string& kind,
                          int time_limit = 30000,
                          double all_end_within = kAllEndWithin) {
    const auto [by, rank] = GetParam();
    const auto fault = kind + ":" + std::to_string(rank) + ":7";
    const auto result =
        run_program(job(by, {.folder = folder_.path(), .fault = fault, .time_limit = time_limit}));
    const auto passed = since_fault(result.output);
    EXPECT_TRUE(passed.has_value()) << "no fault: " << result.output;
    EXPECT_LT(passed.value_or(0), all_end_within) << result.output;
    EXPECT_GT(result.exit_code, 0) << result.output;
    return result;
  }
  std::string rank() const { return std::to_string(GetParam().rank); }

  const TemporaryFolder folder_;
};

TEST_P(Failure, ByAnExceptionEndsAllAndShowsIt) {
  const auto result = result_of("throw");
  EXPECT_THAT(result.output, HasSubstr("error: the fault of rank " + rank()));
}

TEST_P(Failure, BySigkillEndsAllAndNamesTheRank) {
  const auto result = result_of("kill");
  if (GetParam().by == By::kTrainer && GetParam().rank == 0) {
    // Nobody is left who could say it but the shell.
    EXPECT_EQ(result.exit_code, 128 + SIGKILL);
    return;
  }
  EXPECT_THAT(result.output, HasSubstr("rank " + rank()));
  EXPECT_THAT(result.output, HasSubstr("signal 9"));
}

TEST_P(Failure, ByAHangIsNamedWithTheCollective) {
  const auto result = result_of("hang", 1500, 1500 + kAHangIsEndedIn);
  EXPECT_THAT(result.output, HasSubstr("error: all_reduce: failed on rank "));
  EXPECT_THAT(result.output, HasSubstr("Rank " + rank() + " did not come to it"));
}

INSTANTIATE_TEST_SUITE_P(Of,
                         Failure,
                         testing::Values(Case{By::kTrainer, 0},
                                         Case{By::kTrainer, 1},
                                         Case{By::kTrainer, 2},
                                         Case{By::kRun, 0},
                                         Case{By::kRun, 2}),
                         name_of);

TEST(Sigterm, OfOneRankSavesAllAtOneStepAndIsTheExitCode) {
  for (const auto by : {By::kTrainer, By::kRun}) {
    const TemporaryFolder folder;
    const auto stopped =
        run_program(job(by, {.folder = folder.path(), .fault = "term:1:10", .pause = 5}));
    EXPECT_EQ(stopped.exit_code, 128 + SIGTERM) << stopped.output;
    const TemporaryFolder whole;
    ASSERT_EQ(run_program(job(by, {.folder = whole.path()})).exit_code, 0);
    const auto resumed = run_program(job(by, {.folder = folder.path()}));
    ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
    // From where it stopped, not from the checkpoint of step 9.
    const auto at = resumed.output.find("batch ");
    EXPECT_GE(std::stoi(resumed.output.substr(at + 6)), 10) << resumed.output;
    expect_same_weights(folder.path(), whole.path());
  }
}

class Resume : public testing::TestWithParam<int> {};

TEST_P(Resume, OnTheSameRanksIsBitwise) {
  const int ranks = GetParam();
  const TemporaryFolder whole;
  ASSERT_EQ(run_program(job(By::kRun, {.folder = whole.path()}, ranks)).exit_code, 0);
  for (const int batch : {1, 5, 11, 14}) {
    const TemporaryFolder folder;
    const auto fault = "kill:" + std::to_string(ranks - 1) + ":" + std::to_string(batch);
    const auto result =
        run_program(job(By::kRun, {.folder = folder.path(), .fault = fault}, ranks, 1));
    ASSERT_EQ(result.exit_code, 0) << result.output;
    EXPECT_TRUE(since_fault(result.output).has_value());
    expect_same_weights(folder.path(), whole.path());
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks,
                         Resume,
                         testing::Values(1, 3, 4),
                         testing::PrintToStringParamName());

/// FULMEN_LONG_TESTS=1: as often as it is promised.
int crashes() {
  const auto* value = std::getenv("FULMEN_LONG_TESTS");
  return value != nullptr && std::string(value) == "1" ? 20 : 4;
}

TEST(Start, AfterACrashOfTheWholeJobAlwaysSucceeds) {
  const TemporaryFolder whole;
  ASSERT_EQ(run_program(job(By::kRun, {.folder = whole.path()})).exit_code, 0);
  const TemporaryFolder folder;
  for (int i = 0; i < crashes(); ++i) {
    auto options = job(By::kRun, {.folder = folder.path(), .pause = 20});
    // One endpoint for all starts: its port and keys must not be those of the last one.
    const std::vector<std::string> endpoint = {"--rdzv-endpoint", "127.0.0.1:29417"};
    options.arguments.insert(options.arguments.begin() + 1, endpoint.begin(), endpoint.end());
    options.variables["FULMEN_TOKEN"] = std::string(64, 'a');
    Program program(options);
    ASSERT_TRUE(program.wait_for_output("batch ")) << i << ": " << program.wait().output;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::kill(program.pid(), SIGKILL);  // The agent; its ranks follow.
  }
  const auto result = run_program(job(By::kRun, {.folder = folder.path()}));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  expect_same_weights(folder.path(), whole.path());
}

}  // namespace
}  // namespace fulmen

int main(int argc, char** argv) {
  if (const auto code = fulmen::train_if_told_so(argc, argv)) return *code;
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
