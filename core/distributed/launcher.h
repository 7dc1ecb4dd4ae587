#pragma once

#include <memory>
#include <vector>

#include "core/distributed/child_process.h"

namespace fulmen::detail {

/// The other ranks of this host, started by the first process and ended with it. One thread with an
/// Asio loop starts them, passes their output on line by line with the prefix "[rank n] ", and
/// watches: when one ends by an error, the others are ended within 4 s, and so is this process
/// after 5 s if it does not end by itself. If this process is killed, the kernel kills them.
class Launcher {
 public:
  /// Returns when all are started. Throws DistributedError, and then none is left.
  explicit Launcher(const std::vector<ChildRank>& ranks);
  /// Kills those that are left. No signal may be on its way to this process.
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  /// This process has nothing more to do and would end with this code. Waits for the others: 30 s,
  /// then kills them; with an error code 1 s, then ends them. Returns the exit code of the job:
  /// this one if it is not 0, else that of the first rank that failed, else 0.
  int finish(int own_code);
  /// Whether no rank is left.
  bool all_ended() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulmen::detail
