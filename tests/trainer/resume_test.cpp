#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/trainer/resumable.h"

namespace fulmen {
namespace {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "fulmen-resume-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Something a fresh process would not have: what is not restored shows.
void disturb_process() {
  torch::manual_seed(12345);
}

struct Outcome {
  RunRecord record;
  int calls = 0;
};

Outcome unbroken(ResumableOptions options) {
  TemporaryFolder folder;
  options.folder = folder.path();
  Outcome outcome;
  ResumableRun run(options, [&](const std::string&) { ++outcome.calls; });
  run.fit();
  outcome.record = run.record();
  return outcome;
}

/// The broken run's record up to where the resumed one began, then the resumed one's, must be the
/// unbroken one's.
void expect_same(const RunRecord& whole,
                 const RunRecord& before,
                 const RunRecord& after,
                 const std::string& what) {
  EXPECT_EQ(whole.end, after.end) << what;
  const auto tail = [](const std::vector<std::string>& all, std::size_t n) {
    return std::vector<std::string>(all.end() - static_cast<std::ptrdiff_t>(n), all.end());
  };
  ASSERT_LE(after.batches.size(), whole.batches.size()) << what;
  EXPECT_EQ(tail(whole.batches, after.batches.size()), after.batches) << what;
  ASSERT_LE(after.validations.size(), whole.validations.size()) << what;
  EXPECT_EQ(tail(whole.validations, after.validations.size()), after.validations) << what;
  // Nothing was left out between the two.
  EXPECT_GE(before.batches.size() + after.batches.size(), whole.batches.size()) << what;
}

enum class How { kRequestStop, kException };

/// Stops at the call number `stop_at` of any probe; false if the run had ended before.
bool stop_and_resume(const ResumableOptions& base, How how, int stop_at, const Outcome& whole) {
  TemporaryFolder folder;
  auto options = base;
  options.folder = folder.path();
  options.save_on_exception = how == How::kException;
  int calls = 0;
  std::string where;
  Trainer* trainer = nullptr;
  ResumableRun broken(options, [&](const std::string& name) {
    if (calls++ != stop_at) return;
    where = name;
    if (how == How::kException) throw std::runtime_error("stopped by the test");
    trainer->request_stop("stopped by the test");
  });
  trainer = &broken.trainer();
  disturb_process();
  try {
    if (broken.fit().status == RunStatus::kFinished && how == How::kRequestStop)
      return calls > stop_at;
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "stopped by the test");
  }
  const std::string what = (how == How::kException ? "exception in " : "stop in ") + where +
                           ", call " + std::to_string(stop_at);
  disturb_process();
  ResumableRun resumed(options);
  const bool saved = fs::exists(folder.path() / "last");
  // Before the first batch there is nothing to save.
  if (!saved) {
    EXPECT_TRUE(broken.record().batches.empty()) << what;
    return true;
  }
  resumed.fit("last");
  expect_same(whole.record, broken.record(), resumed.record(), what);
  return true;
}

void stop_everywhere(const ResumableOptions& base, How how) {
  const auto whole = unbroken(base);
  ASSERT_EQ(whole.record.batches.size(), 15u);
  for (int stop_at = 0; stop_at < whole.calls; ++stop_at) {
    stop_and_resume(base, how, stop_at, whole);
    if (::testing::Test::HasFailure()) return;  // One report is enough.
  }
}

TEST(Resume, EqualsTheUnbrokenRunAfterAStopInAnyHook) {
  stop_everywhere({}, How::kRequestStop);
}

TEST(Resume, EqualsTheUnbrokenRunAfterAStopWithValidationInsideWindows) {
  stop_everywhere({.folder = {}, .val_check_interval = every_n_batches(1)}, How::kRequestStop);
}

TEST(Resume, EqualsTheUnbrokenRunAfterAnExceptionInAnyHook) {
  stop_everywhere({}, How::kException);
}

TEST(Resume, EqualsTheUnbrokenRunAfterAnExceptionWithValidationInsideWindows) {
  stop_everywhere({.folder = {}, .val_check_interval = every_fraction(0.5)}, How::kException);
}

TEST(Resume, EqualsTheUnbrokenRunInManualOptimizationWithOpenGradients) {
  stop_everywhere({.folder = {}, .manual = true}, How::kRequestStop);
}

/// What SIGKILL leaves: the checkpoints that were written by then.
void resume_from_every_checkpoint(ResumableOptions options) {
  TemporaryFolder folder;
  options.folder = folder.path();
  ResumableRun whole(options);
  whole.fit();
  const auto checkpoints = list_checkpoints(folder.path());
  ASSERT_GE(checkpoints.size(), 3u);
  for (const auto& checkpoint : checkpoints) {
    disturb_process();
    TemporaryFolder other;
    auto again = options;
    again.folder = other.path();
    ResumableRun resumed(again);
    resumed.fit(checkpoint.string());
    expect_same(whole.record(), whole.record(), resumed.record(), checkpoint.filename().string());
  }
}

TEST(Resume, EqualsTheUnbrokenRunFromEveryCheckpointOfAnEpoch) {
  resume_from_every_checkpoint({});
}

TEST(Resume, EqualsTheUnbrokenRunFromEveryCheckpointOfAStep) {
  resume_from_every_checkpoint({.folder = {}, .every_n_train_steps = 1});
}

TEST(Resume, EqualsTheUnbrokenRunFromEveryCheckpointOfAStepWithValidationBetween) {
  resume_from_every_checkpoint(
      {.folder = {}, .val_check_interval = every_n_steps(2), .every_n_train_steps = 1});
}

TEST(Resume, GoesOnWithMoreEpochs) {
  const auto whole = unbroken({});
  TemporaryFolder folder;
  ResumableOptions options{.folder = folder.path(), .max_epochs = 2};
  ResumableRun first(options);
  first.fit();
  disturb_process();
  options.max_epochs = 3;
  ResumableRun second(options);
  second.fit("last");
  expect_same(whole.record, first.record(), second.record(), "two epochs, then three");
}

TEST(Resume, OfAFinishedRunTrainsNothingAndKeepsItsMetrics) {
  TemporaryFolder folder;
  ResumableRun first({.folder = folder.path()});
  first.fit();
  ResumableRun again({.folder = folder.path()});
  EXPECT_EQ(again.fit("last").status, RunStatus::kFinished);
  EXPECT_TRUE(again.record().batches.empty());
  EXPECT_EQ(again.record().end, first.record().end);
}

TEST(Resume, OfWeightsAloneStartsTheCountersAnew) {
  TemporaryFolder folder;
  ResumableRun first({.folder = folder.path(), .max_epochs = 2});
  first.fit();
  TemporaryFolder other;
  ResumableRun second({.folder = other.path(), .max_epochs = 1});
  second.fit((folder.path() / "last").string(), Restore::kWeights);
  EXPECT_EQ(second.record().batches.size(), 5u);
  EXPECT_EQ(second.trainer().progress().global_step, 3);
  // The same first batches as a run from fresh weights, but another loss.
  EXPECT_EQ(second.record().batches[0].substr(0, 16), first.record().batches[0].substr(0, 16));
  EXPECT_NE(second.record().batches[0], first.record().batches[0]);
}

}  // namespace
}  // namespace fulmen
