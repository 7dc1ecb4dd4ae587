#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/run/connection.h"
#include "tools/run/coordinator_server.h"
#include "tools/run/rank_group.h"
#include "tools/run/run_options.h"
#include "tools/run/terminal.h"

namespace fulmen::detail {

/// The agent of this node: serves the endpoint or connects to who does, starts the ranks of each
/// round, and hands signals on.
class Agent {
 public:
  Agent(boost::asio::io_context& context,
        Terminal& terminal,
        const RunOptions& options,
        const RunToken& token);
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  /// Returns the exit code of the job. In the thread that calls this the ranks are started.
  int run();

 private:
  using Clock = std::chrono::steady_clock;
  struct Round;

  void watch_signals();
  void meet();
  void connect();
  void try_addresses(std::vector<boost::asio::ip::tcp::endpoint> addresses, std::size_t index);
  void retry(const std::string& reason);
  void greet(boost::asio::ip::tcp::socket socket);
  void join(boost::asio::ip::tcp::socket socket);
  void on_message(const Message& message);
  void on_lost(const std::string& reason);
  void start_ranks(const StartRound& start);
  std::vector<ChildRank> list_ranks(const StartRound& start) const;
  void stop_ranks(const StopRound& stop);
  void on_failure(const RankEnd& end);
  void on_all_ended();
  void on_signal(int number);
  void meet_again();
  void finish(int code, const std::string& text);
  bool any_ranks() const { return ranks_ != nullptr && ranks_->any_left(); }

  boost::asio::io_context& context_;
  Terminal& terminal_;
  const RunOptions& options_;
  const RunToken& token_;
  boost::asio::signal_set signals_;
  boost::asio::steady_timer timer_;         ///< Of the way to the coordinator.
  boost::asio::steady_timer signal_timer_;  ///< Until ranks that got a signal are killed.
  boost::asio::ip::tcp::resolver resolver_;
  std::unique_ptr<CoordinatorServer> server_;
  std::string master_host_;
  std::shared_ptr<Connection> connection_;
  std::unique_ptr<RankGroup> ranks_;
  std::optional<StartRound> round_;
  Clock::time_point deadline_;
  std::string lost_reason_;  ///< Why there is no connection; empty: there was none yet.
  int rounds_ = 0;
  int restarts_ = 0;
  int signal_ = 0;
  bool hinted_ = false;
  bool failed_ = false;    ///< A rank of this round.
  bool stopping_ = false;  ///< The coordinator wants the end of the round.
  std::optional<int> result_;
};

}  // namespace fulmen::detail
