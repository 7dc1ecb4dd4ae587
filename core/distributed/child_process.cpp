#include "core/distributed/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "fulmen/core/support/error.h"

extern char** environ;

namespace fulmen::detail {
namespace {

[[noreturn]] void fail_start(int rank, const char* what, int number) {
  fail<DistributedError>("Launcher",
                         "rank ",
                         rank,
                         " could not be started: ",
                         what,
                         ": ",
                         std::generic_category().message(number),
                         ".");
}

std::vector<std::string> own_arguments(int rank) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  if (arguments.empty()) fail_start(rank, "/proc/self/cmdline", ENOENT);
  return arguments;
}

std::string own_executable() {
  std::array<char, 4096> path{};
  const auto size = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  std::string text(path.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  // A file that was replaced or removed while it runs is still reachable there.
  return ::access(text.c_str(), X_OK) == 0 ? text : "/proc/self/exe";
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    if (!variables.contains(text.substr(0, text.find('=')))) result.push_back(text);
  }
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

/// Texts as exec wants them.
class CStrings {
 public:
  explicit CStrings(std::vector<std::string> texts) : texts_(std::move(texts)) {
    for (auto& text : texts_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
  }
  char** data() { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<char*> pointers_;
};

class Pipe {
 public:
  explicit Pipe(int rank) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail_start(rank, "pipe", errno);
    for (std::size_t i = 0; i < 2; ++i) {
      // In a process without standard streams the pipe would be one of them.
      ends_[i] = ::fcntl(ends[i], F_DUPFD_CLOEXEC, 3);
      ::close(ends[i]);
    }
  }
  ~Pipe() {
    for (const int end : ends_) {
      if (end >= 0) ::close(end);
    }
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  int write_end() const { return ends_[1]; }
  int release_read_end() { return std::exchange(ends_[0], -1); }

 private:
  std::array<int, 2> ends_{-1, -1};
};

/// After fork() in a process with threads, only what may be called in a signal handler.
[[noreturn]] void become(const char* executable,
                         char** arguments,
                         char** variables,
                         std::pair<int, int> outputs,
                         const sigset_t& signal_mask,
                         pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::setpgid(0, 0);  // A Ctrl-C at the terminal reaches the first process alone.
  ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
  ::dup2(outputs.first, STDOUT_FILENO);
  ::dup2(outputs.second, STDERR_FILENO);
#ifdef SYS_close_range
  // What else this process has open (pipes, sockets of its host) is not for its copies to hold.
  constexpr unsigned int kCloseOnExec = 1U << 2;
  ::syscall(SYS_close_range, 3U, ~0U, kCloseOnExec);
#endif
  // A handler of this process would speak for it: its pipes to itself are the copy's too.
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action = {};
    if (::sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = SIG_DFL;
    ::sigaction(number, &action, nullptr);
  }
  ::sigprocmask(SIG_SETMASK, &signal_mask, nullptr);
  ::execve(executable, arguments, variables);
  ::_exit(127);
}

}  // namespace

StartedChild start_child(const ChildRank& rank, const sigset_t& signal_mask) {
  const bool is_own = rank.command.empty();
  CStrings arguments(is_own ? own_arguments(rank.rank) : rank.command);
  CStrings variables(environment_with(rank.variables));
  const auto executable = is_own ? own_executable() : rank.command.front();
  Pipe output(rank.rank);
  Pipe errors(rank.rank);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) fail_start(rank.rank, "fork", errno);
  if (pid == 0) {
    become(executable.c_str(),
           arguments.data(),
           variables.data(),
           {output.write_end(), errors.write_end()},
           signal_mask,
           parent);
  }
  return {.pid = pid, .output = output.release_read_end(), .errors = errors.release_read_end()};
}

std::string describe_end(int rank, int status) {
  const auto who = "rank " + std::to_string(rank);
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    return who + " was ended by signal " + std::to_string(number) + " (" + ::strsignal(number) +
           ")";
  }
  return who + " ended with exit code " + std::to_string(WEXITSTATUS(status));
}

int exit_code(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace fulmen::detail
