#pragma once

#include <sys/types.h>

#include <vector>

namespace fulmen::detail {

/// Hands SIGINT and SIGTERM on to the other ranks, waits up to 3 s for their end and then lets the
/// signal end this process. Only where the signal would have ended it anyway: a handler that was
/// there before is left alone, and one that is installed later (a Trainer's during a run) has
/// precedence. One at a time in a process.
class SignalRelay {
 public:
  explicit SignalRelay(std::vector<pid_t> processes);
  /// From here on these signals end this process at once, as if nothing had been installed.
  ~SignalRelay();
  SignalRelay(const SignalRelay&) = delete;
  SignalRelay& operator=(const SignalRelay&) = delete;

  /// It has ended, and its number may soon be another process's.
  void forget(pid_t process);
  /// A signal has come: this process is about to end.
  static bool is_active();
};

}  // namespace fulmen::detail
