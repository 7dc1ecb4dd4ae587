#include "slurm_requeue.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <system_error>
#include <thread>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

constexpr std::string_view kWhere = "scontrol requeue";

/// The status of a process that has ended; kills it after the time limit.
int wait_for(pid_t process, const std::string& job) {
  constexpr std::chrono::seconds kLimit(30);
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  int status = 0;
  while (::waitpid(process, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(process, SIGKILL);
      ::waitpid(process, &status, 0);
      fail<Error>(kWhere, "job ", job, ": no answer within ", kLimit.count(), " s.");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return status;
}

}  // namespace

std::string slurm_batch_job(const VariableLookup& variable) {
  const auto job = variable("SLURM_JOB_ID").value_or("");
  const auto name = variable("SLURM_JOB_NAME").value_or("");
  if (name == "interactive" || name == "bash" || name == "sh") return {};
  const auto array = variable("SLURM_ARRAY_JOB_ID").value_or("");
  const auto task = variable("SLURM_ARRAY_TASK_ID").value_or("");
  return array.empty() || task.empty() ? job : array + "_" + task;
}

void requeue_slurm_job(const std::string& job) {
  std::string arguments[] = {"scontrol", "requeue", job};
  char* pointers[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  pid_t process = 0;
  const int failure = ::posix_spawnp(&process, pointers[0], nullptr, nullptr, pointers, ::environ);
  if (failure != 0) {
    fail<Error>(kWhere,
                "job ",
                job,
                " was not put back, scontrol cannot be started: ",
                std::generic_category().message(failure),
                ".");
  }
  const int status = wait_for(process, job);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    fail<Error>(kWhere,
                "job ",
                job,
                " was not put back: scontrol ended with ",
                WIFEXITED(status) ? "exit code " : "signal ",
                WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status),
                ".");
  }
}

}  // namespace fulmen::detail
