#pragma once

#include <signal.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace fulmen::detail {

/// One rank to be started.
struct ChildRank {
  int rank = 0;
  std::map<std::string, std::string> variables;  ///< Besides those of this process.
  /// The path of a program, and its arguments. Empty: this executable with the same arguments.
  std::vector<std::string> command = {};
};

struct StartedChild {
  pid_t pid = 0;
  int output = -1;  ///< To be read and closed by the caller.
  int errors = -1;
};

/// Starts it in a process group of its own, with no input. The kernel kills it when the calling
/// thread ends, so that must be one that lives as long as this process. Signals should be blocked
/// in the calling thread: until it is another program it has this one's handlers. Throws
/// DistributedError.
StartedChild start_child(const ChildRank& rank, const sigset_t& signal_mask);

/// "rank 1 was ended by signal 9 (Killed)" or "rank 1 ended with exit code 3", of waitpid's status.
std::string describe_end(int rank, int status);
/// 128 + the signal for one that was ended by a signal, as in a shell.
int exit_code(int status);

}  // namespace fulmen::detail
