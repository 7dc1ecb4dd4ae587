#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/run/messages.h"

namespace fulmen::detail {

/// The keys and the store of a round.
struct RoundStore {
  std::string prefix;
  std::uint16_t port = 0;
};

struct CoordinatorOptions {
  std::string job;
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds last_call{3000};
  std::chrono::milliseconds shutdown_timeout{30'000};
  std::function<RoundStore()> open_store;  ///< Once a round; what was opened before is of no use.
  std::function<void(const std::string&)> say = [](const std::string&) {};
};

/// A connection to an agent.
using NodeId = std::uint64_t;
struct Outgoing {
  NodeId to = 0;
  Message message;  ///< After a Refusal the connection is closed.
};

/// Decides who takes part in which round, and how the job ends. Knows neither sockets nor clocks:
/// it is told what happens and when, and says what to send.
///
/// Gathering (nodes come) -> running -> stopping (all end their ranks) -> gathering again, or
/// ended.
class Coordinator {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  Coordinator(CoordinatorOptions options, Time now);

  /// The first of a connection must be a Join.
  void on_message(NodeId from, const Message& message, Time now);
  void on_lost(NodeId node, const std::string& reason, Time now);
  /// At least every 100 ms.
  void on_tick(Time now);

  std::vector<Outgoing> take_outgoing();
  /// Set when the job has ended; all nodes were told.
  const std::optional<EndJob>& result() const { return result_; }

 private:
  enum class State { kGathering, kRunning, kStopping, kEnded };
  enum class Part { kWaiting, kRunning, kDone, kStopping };  ///< Done: all ranks ended with 0.
  struct Node {
    Join join;
    Part part = Part::kWaiting;
    int number = -1;  ///< In the last round that it took part in.
    std::string name() const;
  };
  struct Gone {
    Join join;
    std::string text;
  };

  void on_join(NodeId from, const Join& join, Time now);
  std::optional<Refusal> refuse(const Join& join) const;
  void on_failure(Node& node, const RankFailure& failure, Time now);
  void on_signal(Node& node, int number, Time now);
  /// The round cannot go on.
  void fail_round(const std::string& text, int code, const std::string& last_lines, Time now);
  void stop_round(const std::string& reason, std::chrono::milliseconds grace, Time now);
  void gather(Time now);
  void start_if_complete(Time now);
  void start_round(Time now);
  std::vector<NodeId> choose_nodes() const;
  void go_on_if_stopped(Time now);
  void end(EndJob result);
  void send(NodeId to, Message message) { outgoing_.push_back({to, std::move(message)}); }
  int count(Part part) const;
  std::string who_is_missing() const;

  CoordinatorOptions options_;
  State state_ = State::kGathering;
  std::map<NodeId, Node> nodes_;
  std::vector<Gone> gone_;  ///< Lost in a round, and not back yet.
  int round_ = -1;
  int next_round_ = 0;
  int restarts_ = 0;
  int world_nodes_ = 0;  ///< Of the round that runs.
  Time deadline_;        ///< For nodes to come; to have stopped.
  std::optional<Time> last_call_;
  bool hinted_ = false;
  std::optional<EndJob> pending_end_;  ///< When all have stopped.
  int signal_ = 0;
  std::vector<Outgoing> outgoing_;
  std::optional<EndJob> result_;
};

}  // namespace fulmen::detail
