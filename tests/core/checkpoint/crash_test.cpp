#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>

#include <csignal>
#include <functional>

#include "fulmen/core/checkpoint/checkpoint.h"
#include "tests/core/checkpoint/faulty_file_system.h"
#include "tests/core/checkpoint/support.h"

namespace fulmen {
namespace {

namespace fs = std::filesystem;

/// What ModelCheckpoint does when it keeps one file: the new one, the pointer, then the old one.
void save_and_rotate(const fs::path& directory, FileSystem& file_system) {
  write_checkpoint(directory / "new", sample_contents(2), file_system);
  write_pointer(directory, "last", "new", file_system);
  remove_checkpoint(directory / "old", file_system);
}

void prepare(const fs::path& directory) {
  write_checkpoint(directory / "old", sample_contents(1));
  write_pointer(directory, "last", "old");
}

/// The old or the new checkpoint must be found complete, and nothing that is half.
void expect_loadable(const fs::path& directory, const std::string& when) {
  SCOPED_TRACE(when);
  const auto last = read_pointer(directory, "last");
  ASSERT_TRUE(last.has_value());
  const double value = last->filename() == "old" ? 1 : 2;
  EXPECT_TRUE(same_contents(read_checkpoint(*last), sample_contents(value)));
  const auto listed = list_checkpoints(directory);
  EXPECT_FALSE(listed.empty());
  for (const auto& checkpoint : listed) EXPECT_NO_THROW(verify_checkpoint(checkpoint));
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name == "last" || name.front() == '.') continue;
    EXPECT_NO_THROW(verify_checkpoint(entry.path())) << name;
  }
}

/// Number of operations of save_and_rotate when nothing fails.
int operations_of_a_save() {
  const ScratchDirectory scratch(Medium::kMemory);
  prepare(scratch.path());
  FaultyFileSystem file_system({.at = 0, .kind = FaultKind::kFailOnce});
  save_and_rotate(scratch.path(), file_system);
  return file_system.count();
}

TEST(CheckpointCrash, AFailedOperationLeavesTheOtherCheckpointsAndNoRest) {
  const int operations = operations_of_a_save();
  ASSERT_GT(operations, 30);
  for (int n = 1; n <= operations; ++n) {
    const ScratchDirectory scratch(Medium::kMemory);
    prepare(scratch.path());
    FaultyFileSystem file_system({.at = n, .kind = FaultKind::kFailOnce});
    const auto text = checkpoint_error([&] { save_and_rotate(scratch.path(), file_system); });
    EXPECT_HAS(text, "injected");
    expect_loadable(
        scratch.path(),
        "operation " + std::to_string(n) + " of " + std::to_string(operations) + " failed");
    if (!fs::exists(scratch / "old")) continue;  // It failed while the old one was removed.
    for (const auto& entry : fs::directory_iterator(scratch.path())) {
      EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path() << " after " << n;
    }
  }
}

TEST(CheckpointCrash, AFailedWriteCanBeRepeatedUnderTheSameName) {
  const int operations = operations_of_a_save();
  for (int n = 1; n <= operations; ++n) {
    const ScratchDirectory scratch(Medium::kMemory);
    FaultyFileSystem file_system({.at = n, .kind = FaultKind::kFailOnce});
    try {
      write_checkpoint(scratch / "new", sample_contents(2), file_system);
      break;  // There were fewer operations.
    } catch (const CheckpointError&) {
      EXPECT_TRUE(fs::is_empty(scratch.path())) << "operation " << n;
    }
    write_checkpoint(scratch / "new", sample_contents(2), file_system);
    EXPECT_TRUE(same_contents(read_checkpoint(scratch / "new"), sample_contents(2)));
  }
}

TEST(CheckpointCrash, ADiskThatFailsForGoodLeavesTheOtherCheckpoints) {
  const int operations = operations_of_a_save();
  for (int n = 1; n <= operations; ++n) {
    const ScratchDirectory scratch(Medium::kMemory);
    prepare(scratch.path());
    FaultyFileSystem file_system({.at = n, .kind = FaultKind::kFailFromThenOn});
    checkpoint_error([&] { save_and_rotate(scratch.path(), file_system); });
    expect_loadable(scratch.path(), "everything failed from operation " + std::to_string(n));
  }
}

/// Runs `work` in a child that is expected to be killed or to end by itself.
void run_in_child(const std::function<void()>& work, bool& was_killed) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int result = 0;
    try {
      work();
    } catch (...) {
      result = 1;
    }
    ::_exit(result);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  ASSERT_TRUE(was_killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) << status;
}

class CheckpointKill : public testing::TestWithParam<FaultKind> {};

TEST_P(CheckpointKill, AtAnyOperationLeavesTheOldOrTheNewCheckpoint) {
  torch::set_num_threads(1);
  bool was_killed = true;
  int n = 0;
  int found_old = 0;
  int found_new = 0;
  while (was_killed) {
    ++n;
    ASSERT_LT(n, 1000);
    const ScratchDirectory scratch(Medium::kMemory);
    prepare(scratch.path());
    run_in_child(
        [&] {
          FaultyFileSystem file_system({.at = n, .kind = GetParam()});
          save_and_rotate(scratch.path(), file_system);
        },
        was_killed);
    expect_loadable(scratch.path(), "killed at operation " + std::to_string(n));
    if (testing::Test::HasFailure()) return;
    const bool is_old = read_pointer(scratch.path(), "last")->filename() == "old";
    ++(is_old ? found_old : found_new);

    remove_stale_temporaries(scratch.path());
    for (const auto& entry : fs::directory_iterator(scratch.path())) {
      EXPECT_NE(entry.path().filename().string().front(), '.') << entry.path();
    }
    expect_loadable(scratch.path(), "after cleaning");
  }
  EXPECT_GT(n, 30);
  EXPECT_GT(found_old, 0);
  EXPECT_GT(found_new, 1);
}

std::string kill_name(const testing::TestParamInfo<FaultKind>& info) {
  return info.param == FaultKind::kKillAfter ? "After" : "Inside";
}

INSTANTIATE_TEST_SUITE_P(Checkpoint,
                         CheckpointKill,
                         testing::Values(FaultKind::kKillAfter, FaultKind::kKillInside),
                         kill_name);

class CheckpointPowerCut : public testing::TestWithParam<LostNames> {};

TEST_P(CheckpointPowerCut, AtAnyOperationLeavesTheOldOrTheNewCheckpoint) {
  bool was_cut = true;
  for (int n = 1; was_cut; ++n) {
    ASSERT_LT(n, 1000);
    const ScratchDirectory scratch(Medium::kMemory);
    prepare(scratch.path());
    PowerCutFileSystem file_system(n);
    was_cut = false;
    try {
      save_and_rotate(scratch.path(), file_system);
    } catch (const PowerCut&) {
      was_cut = true;
    }
    file_system.lose_what_was_not_flushed(GetParam());
    expect_loadable(scratch.path(), "power cut after operation " + std::to_string(n));
    if (testing::Test::HasFailure()) return;
  }
}

std::string lost_name(const testing::TestParamInfo<LostNames>& info) {
  constexpr const char* kNames[] = {"NamesKept", "NamesLost", "DirectoriesLost", "FilesLost"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoint,
    CheckpointPowerCut,
    testing::Values(LostNames::kNone, LostNames::kAll, LostNames::kDirectories, LostNames::kFiles),
    lost_name);

}  // namespace
}  // namespace fulmen
