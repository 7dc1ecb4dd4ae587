#pragma once

#include <signal.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/distributed/child_process.h"
#include "tools/run/rank_output.h"
#include "tools/run/run_options.h"

namespace fulmen::detail {

/// A rank that ended by an error.
struct RankEnd {
  int rank = 0;
  int code = 0;                 ///< 128 + the signal.
  std::string text = {};        ///< "rank 1 ended with exit code 3".
  std::string last_lines = {};  ///< Of its standard error.
};

struct RankGroupEvents {
  /// Ranks ended by themselves with an error, in the order of their ends. Not after end() or
  /// hand_on().
  std::function<void(const RankEnd&)> on_failure;
  /// None is left, and their output was passed on.
  std::function<void()> on_all_ended;
};

/// The ranks of this node in one round: starts them, passes their output on, watches and ends them.
/// They are killed with their process groups by the destructor, and by the kernel when this process
/// ends.
class RankGroup {
 public:
  RankGroup(boost::asio::io_context& context,
            Terminal& terminal,
            const RunOptions& options,
            RankGroupEvents events);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  /// One of each; the log files go to round_<round>. Throws DistributedError, and then none is
  /// left.
  void start(const std::vector<ChildRank>& ranks, int round);
  /// Hands a signal on to all ranks. How they end after this is no failure.
  void hand_on(int signal);
  /// SIGTERM, and after the grace time SIGKILL, to whole process groups.
  void end(std::chrono::milliseconds grace);
  bool any_left() const;

 private:
  struct Child;
  void start_one(const ChildRank& rank, int round);
  std::shared_ptr<OwnedFile> open_log(int rank, int round) const;
  void watch();
  void reap();
  void drain(const std::shared_ptr<Child>& child);
  void report();
  void signal_groups(int signal);

  boost::asio::io_context& context_;
  Terminal& terminal_;
  const RunOptions& options_;
  RankGroupEvents events_;
  boost::asio::signal_set child_signals_;
  boost::asio::steady_timer timer_;
  std::vector<std::shared_ptr<Child>> children_;
  std::vector<std::shared_ptr<Child>> ended_;  ///< In that order; not reported yet.
  bool asked_to_end_ = false;
  bool reported_end_ = false;
};

}  // namespace fulmen::detail
