#include "core/distributed/rank_report.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/core/distributed/error_text.h"

namespace fulmen {
namespace {

using detail::CollectiveFailure;
using detail::CollectiveRecord;
using detail::explain_failure;
using detail::GroupLog;
using detail::process_identity;
using detail::process_state;
using detail::ProcessState;
using detail::RankAnswer;
using detail::RankAnswers;
using detail::RankReport;

CollectiveRecord barrier_record(std::int64_t sequence) {
  CollectiveRecord record{.sequence = sequence};
  record.set_label("b");
  return record;
}

/// Of a rank that has called and finished so many collectives.
RankAnswer answer(int rank, std::int64_t started, CollectiveFailure failure = {}) {
  RankReport report{.count = 1, .quiet_seconds = 7};
  report.groups["g"] = {.name = "world {0, 1}",
                        .started = started,
                        .finished = started,
                        .failure = failure,
                        .last_sequence = started,
                        .last = barrier_record(started).describe()};
  return {.rank = rank, .answered = true, .report = report};
}

RankAnswer silence(int rank, ProcessState process) {
  return {.rank = rank, .process = process};
}

std::string explain(CollectiveFailure failure, std::vector<RankAnswer> ranks) {
  return explain_failure(barrier_record(3), "g", failure, {.ranks = std::move(ranks)});
}

TEST(ExplainFailure, JoinsRanksWithOneFate) {
  std::vector<RankAnswer> ranks{answer(1, 3)};
  for (int rank = 2; rank < 12; ++rank) ranks.push_back(answer(rank, 2));
  EXPECT_EQ(explain(CollectiveFailure::kTimedOut, ranks),
            "Ranks 2, 3, 4, 5, 6, 7, 8, 9 and 2 more did not come to it; last there: collective 2, "
            "barrier \"b\" (done); in no collective for 7 s.");
}

TEST(ExplainFailure, NamesSilentRanksByWhatIsKnownOfThem) {
  EXPECT_EQ(explain(CollectiveFailure::kTimedOut,
                    {silence(1, ProcessState::kUnknown),
                     silence(2, ProcessState::kStopped),
                     silence(3, ProcessState::kRuns),
                     silence(4, ProcessState::kEnded)}),
            "Rank 1 did not answer: stopped, cut off, or busy elsewhere. "
            "Rank 2 did not answer: the process is stopped. "
            "Rank 3 did not answer, though the process runs. Rank 4 ended.");
}

TEST(ExplainFailure, SaysSoWhenAllCame) {
  EXPECT_EQ(explain(CollectiveFailure::kTimedOut, {answer(1, 3)}),
            "All of its ranks came to it: the network between them is slow or broken, or the time "
            "limit is too short.");
  EXPECT_EQ(explain(CollectiveFailure::kBroken, {answer(1, 3)}),
            "A connection broke, but all of its ranks answer.");
}

TEST(ExplainFailure, TakesABreakForATimeOutIfAPeerRanOutOfTime) {
  EXPECT_EQ(explain(CollectiveFailure::kBroken,
                    {answer(1, 3, CollectiveFailure::kTimedOut), answer(2, 2)}),
            "Rank 2 did not come to it; last there: collective 2, barrier \"b\" (done); in no "
            "collective for 7 s.");
}

TEST(ExplainFailure, SuspectsSilentRanksOfABreakOnlyIfNobodyIsKnownToBeGone) {
  const auto far = silence(1, ProcessState::kUnknown);
  EXPECT_EQ(explain(CollectiveFailure::kBroken, {far, answer(2, 3)}),
            "Rank 1 did not answer: ended, cut off, or busy.");
  EXPECT_EQ(explain(CollectiveFailure::kBroken, {far, silence(2, ProcessState::kEnded)}),
            "Rank 2 ended.");
  auto left = answer(2, 2);
  left.report.left = true;
  EXPECT_EQ(explain(CollectiveFailure::kBroken, {far, left}), "Rank 2 left the job.");
}

TEST(ExplainFailure, KeepsToProcessesWhenTheStoreIsGone) {
  EXPECT_EQ(explain_failure(
                barrier_record(3),
                "g",
                CollectiveFailure::kTimedOut,
                {.store_error = "does not answer",
                 .ranks = {silence(0, ProcessState::kStopped), silence(1, ProcessState::kRuns)}}),
            "What the other ranks did is not known: the store of the job, which rank 0 serves "
            "unless an agent does, does not answer. Rank 0 did not answer: the process is "
            "stopped.");
}

TEST(RankReport, SurvivesItsText) {
  auto report = answer(1, 5, CollectiveFailure::kBroken).report;
  report.left = true;
  report.groups["g"].waiting = GroupLog::kPointToPoint;
  const auto text = report.to_text();
  EXPECT_EQ(RankReport::from_text(text).to_text(), text);
  EXPECT_NE(text, RankReport{}.to_text());
  for (const auto* wrong : {"", "{}", "[1]", "{\"count\":\"x\"}", "\xff"})
    EXPECT_EQ(RankReport::from_text(wrong).to_text(), RankReport{}.to_text());
}

TEST(GroupLog, IsReadWholeWhileItIsWritten) {
  GroupLog log("g", "group");
  std::atomic<bool> end = false;
  std::atomic<std::int64_t> reads = 0;
  std::thread reader([&] {
    while (!end) {
      const auto last = log.read().last;
      EXPECT_EQ(last.bytes, last.sequence);
      for (const auto size : last.shape) EXPECT_EQ(size, last.sequence);
      ++reads;
    }
  });
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (std::int64_t i = 1; reads < 1000 && std::chrono::steady_clock::now() < limit; ++i) {
    CollectiveRecord record{.bytes = i, .kind = CollectiveKind::kAllReduce};
    record.shape.fill(i);
    log.start(record);
    EXPECT_EQ(record.sequence, i);
  }
  end = true;
  reader.join();
  EXPECT_GE(reads, 1000);
}

TEST(GroupLog, KeepsThePlaceAndTheFirstFailure) {
  GroupLog log("g", "group");
  CollectiveRecord first{.kind = CollectiveKind::kAllReduce};
  log.start(first);
  log.wait(first);
  log.finish(first);
  CollectiveRecord send{.kind = CollectiveKind::kSend};
  log.start(send);
  EXPECT_EQ(send.sequence, 0);
  log.wait(send);
  EXPECT_EQ(log.read().waiting, GroupLog::kPointToPoint);
  log.finish(send);
  CollectiveRecord second{.kind = CollectiveKind::kAllReduce};
  log.start(second);
  log.wait(second);
  log.fail(CollectiveFailure::kTimedOut);
  log.fail(CollectiveFailure::kBroken);
  const auto state = log.read();
  EXPECT_EQ(state.started, 2);
  EXPECT_EQ(state.finished, 1);
  EXPECT_EQ(state.waiting, 2);
  EXPECT_EQ(state.failure, CollectiveFailure::kTimedOut);
}

TEST(CollectiveRecord, DescribesWhatFitsAndCutsTheRest) {
  CollectiveRecord record{.kind = CollectiveKind::kAllReduce,
                          .reduce_op = static_cast<std::int8_t>(ReduceOp::kMean)};
  record.set_tensor(at::zeros({1, 2, 3, 1, 2, 3, 1, 2}, at::kBFloat16));
  record.set_label(std::string(60, 'x'));
  EXPECT_EQ(record.describe(),
            "all_reduce mean bfloat16 (1, 2, 3, 1, 2, 3, ...) \"" + std::string(47, 'x') + "\"");
  record.set_tensor(at::zeros({}, at::kLong));
  EXPECT_EQ(record.details(), "mean int64 () \"" + std::string(47, 'x') + "\"");
}

TEST(ProcessState, IsThatOfTheKernel) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto identity = process_identity();
    [[maybe_unused]] const auto written = ::write(ready[1], identity.data(), identity.size());
    while (true) ::pause();
  }
  std::string identity(500, ' ');
  identity.resize(static_cast<std::size_t>(::read(ready[0], identity.data(), identity.size())));
  EXPECT_EQ(process_state(identity), ProcessState::kRuns);
  int status = 0;
  ::kill(child, SIGSTOP);
  ::waitpid(child, &status, WUNTRACED);
  EXPECT_EQ(process_state(identity), ProcessState::kStopped);
  ::kill(child, SIGKILL);
  siginfo_t info;
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);  // It is a zombie.
  EXPECT_EQ(process_state(identity), ProcessState::kEnded);
  ::waitpid(child, &status, 0);
  EXPECT_EQ(process_state(identity), ProcessState::kEnded);
  // A later process with the same number; another boot; nothing known; this process.
  auto other = identity.substr(0, identity.rfind(' ')) + " 1";
  EXPECT_EQ(process_state(other), ProcessState::kEnded);
  EXPECT_EQ(process_state("x" + identity), ProcessState::kUnknown);
  EXPECT_EQ(process_state(""), ProcessState::kUnknown);
  EXPECT_EQ(process_state(process_identity()), ProcessState::kUnknown);
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace fulmen
