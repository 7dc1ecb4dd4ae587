// Real processes that are killed and resumed. The test starts itself again as the program that
// trains.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <thread>

#include "tests/support/run_program.h"
#include "tests/trainer/resumable.h"

namespace fulmen {
namespace {

namespace fs = std::filesystem;

constexpr const char* kChild = "--train";

/// Trains in `folder`, resuming if there is something to resume, and leaves the record of the
/// finished run there.
int train(const fs::path& folder, std::chrono::milliseconds pause, std::int64_t save_every) {
  at::set_num_threads(1);
  ResumableRun run({.folder = folder,
                    .every_n_train_steps = save_every,
                    .signals = SignalHandling::kSaveAndStop},
                   [&](const std::string&) {
                     std::ofstream(folder / "alive", std::ios::app) << ".";
                     std::this_thread::sleep_for(pause);
                   });
  const bool resumes = fs::exists(folder / "last");
  if (run.fit(resumes ? "last" : "").status != RunStatus::kFinished) return 3;
  std::ofstream(folder / "record") << run.record().end;
  return 0;
}

pid_t start(const fs::path& folder, std::chrono::milliseconds pause, std::int64_t save_every = 1) {
  const auto save_text = std::to_string(save_every);
  const auto folder_text = folder.string();
  const auto pause_text = std::to_string(pause.count());
  const pid_t child = fork();
  if (child == 0) {
    execl("/proc/self/exe",
          "train",
          kChild,
          folder_text.c_str(),
          pause_text.c_str(),
          save_text.c_str(),
          nullptr);
    _exit(127);
  }
  return child;
}

/// Waits until the child has called out `calls` times or ended.
void wait_for_calls(pid_t child, const fs::path& folder, std::uintmax_t calls) {
  std::error_code none;
  siginfo_t ended = {};
  while (waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         ended.si_pid == 0) {
    if (fs::exists(folder / "alive") && fs::file_size(folder / "alive", none) >= calls) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

int wait_for_end(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

const std::string& unbroken_record() {
  static const std::string record = [] {
    TemporaryFolder folder;
    EXPECT_EQ(wait_for_end(start(folder.path(), std::chrono::milliseconds(0))), 0);
    return read_file(folder.path() / "record");
  }();
  return record;
}

/// Kills the run after `calls` calls, again and again, until one run gets through.
void kill_until_done(int signal, std::uintmax_t calls) {
  TemporaryFolder folder;
  int killed = 0;
  for (int attempt = 0; attempt < 40 && !fs::exists(folder.path() / "record"); ++attempt) {
    fs::remove(folder.path() / "alive");
    const auto child = start(folder.path(), std::chrono::milliseconds(2));
    wait_for_calls(child, folder.path(), calls);
    kill(child, signal);
    const int status = wait_for_end(child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
      continue;  // It was done before the signal came.
    ++killed;
    // As the shell's 128 + signal: whoever waits sees the signal.
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit code " << WEXITSTATUS(status);
    EXPECT_EQ(WTERMSIG(status), signal);
  }
  EXPECT_GE(killed, 1);
  ASSERT_TRUE(fs::exists(folder.path() / "record")) << "never got through";
  EXPECT_EQ(read_file(folder.path() / "record"), unbroken_record());
}

TEST(Process, ResumedAfterSigtermsEndsAsTheUnbrokenRun) {
  kill_until_done(SIGTERM, 9);
}

TEST(Process, ResumedAfterSigintsEndsAsTheUnbrokenRun) {
  kill_until_done(SIGINT, 14);
}

TEST(Process, ResumedAfterSigkillsEndsAsTheUnbrokenRun) {
  kill_until_done(SIGKILL, 25);
}

TEST(Process, SigtermLeavesOneCheckpointOfTheStop) {
  TemporaryFolder folder;
  constexpr std::int64_t kNever = 1000;
  const auto child = start(folder.path(), std::chrono::milliseconds(2), kNever);
  wait_for_calls(child, folder.path(), 10);
  kill(child, SIGTERM);
  wait_for_end(child);
  int interrupted = 0;
  for (const auto& checkpoint : list_checkpoints(folder.path())) {
    if (checkpoint.filename().string().starts_with("interrupted-")) ++interrupted;
  }
  EXPECT_EQ(interrupted, 1);
}

/// A folder with an scontrol that writes down its arguments and ends with this code.
void make_scontrol(const fs::path& folder, int exit_code) {
  fs::create_directories(folder);
  std::ofstream(folder / "scontrol")
      << "#!/bin/sh\necho \"$@\" >> " << folder.string() << "/calls\nexit " << exit_code << "\n";
  fs::permissions(folder / "scontrol", fs::perms::owner_all);
}

class SlurmVariables {
 public:
  explicit SlurmVariables(const fs::path& tools) : path_(std::getenv("PATH")) {
    setenv("PATH", (tools.string() + ":" + path_).c_str(), 1);
    setenv("SLURM_JOB_ID", "77", 1);
    setenv("SLURM_JOB_NAME", "train", 1);
    setenv("SLURM_ARRAY_JOB_ID", "70", 1);
    setenv("SLURM_ARRAY_TASK_ID", "4", 1);
  }
  ~SlurmVariables() {
    setenv("PATH", path_.c_str(), 1);
    for (const auto* name :
         {"SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"})
      unsetenv(name);
  }

 private:
  std::string path_;
};

// faults.md 96
TEST(Process, OfABatchJobOfSlurmIsRequeuedAfterSigusr1AndResumes) {
  TemporaryFolder folder;
  TemporaryFolder tools;
  make_scontrol(tools.path() / "bin", 0);
  constexpr std::int64_t kNever = 1000;
  pid_t child = 0;
  {
    const SlurmVariables variables(tools.path() / "bin");
    child = start(folder.path(), std::chrono::milliseconds(2), kNever);
  }
  wait_for_calls(child, folder.path(), 10);
  kill(child, SIGUSR1);
  const int status = wait_for_end(child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGUSR1);
  EXPECT_EQ(read_file(tools.path() / "bin" / "calls"), "requeue 70_4\n");
  const auto again = start(folder.path(), std::chrono::milliseconds(0), kNever);
  EXPECT_EQ(wait_for_end(again), 0);
  EXPECT_EQ(read_file(folder.path() / "record"), unbroken_record());
}

TEST(Process, OfABatchJobOfSlurmThatCannotBeRequeuedSaysSoAndKeepsItsCheckpoint) {
  TemporaryFolder folder;
  TemporaryFolder tools;
  make_scontrol(tools.path() / "bin", 1);
  pid_t child = 0;
  {
    const SlurmVariables variables(tools.path() / "bin");
    child = start(folder.path(), std::chrono::milliseconds(2), 1000);
  }
  wait_for_calls(child, folder.path(), 10);
  kill(child, SIGUSR1);
  const int status = wait_for_end(child);
  EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_FALSE(list_checkpoints(folder.path()).empty());
}

}  // namespace
}  // namespace fulmen

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == fulmen::kChild) {
    return fulmen::train(
        argv[2], std::chrono::milliseconds(std::stoi(argv[3])), std::stoi(argv[4]));
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
