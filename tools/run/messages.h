#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace fulmen::detail {

// What agents and the coordinator say to each other: one JSON object each, {"type": ...}.

/// Agent: a node that wants to take part. The first message of a connection.
struct Join {
  std::string job = {};
  int min_nodes = 1;
  int max_nodes = 1;
  int max_restarts = 0;
  int ranks = 1;
  /// Nodes are numbered in this order: --node-rank, -1 for the node that serves the endpoint
  /// without one, kAnyOrder else.
  int order = 0;
  std::string host = {};  ///< To be named by.
  int rounds = 0;         ///< That it has taken part in, under an earlier coordinator too.
  int restarts = 0;       ///< Of these.
};
constexpr int kAnyOrder = 1 << 20;

/// Coordinator: not you. `again`: perhaps later.
struct Refusal {
  std::string text = {};
  bool again = false;
};

/// Coordinator: start your ranks.
struct StartRound {
  int round = 0;
  int restarts = 0;
  int node = 0;
  int nodes = 1;
  int first_rank = 0;
  int world_size = 1;
  std::string prefix = {};  ///< Of the keys of this round; not guessable, and never used before.
  std::uint16_t port = 0;   ///< Of the store, at the host of the endpoint.
};

/// Coordinator: end your ranks.
struct StopRound {
  int round = 0;
  std::string reason = {};
  int grace_ms = 0;
};

/// Agent: a rank of it ended by an error.
struct RankFailure {
  int round = 0;
  int rank = 0;
  int code = 1;
  std::string text = {};
  std::string last_lines = {};
};

/// Agent: all its ranks ended with 0.
struct RoundDone {
  int round = 0;
};

/// Agent: it has no ranks any more, after StopRound or SignalRanks.
struct RoundStopped {
  int round = 0;
};

/// Agent: it got this signal. Coordinator: hand it on to your ranks.
struct SignalRanks {
  int number = 0;
};

/// Coordinator: the job has ended; so do you.
struct EndJob {
  int code = 0;
  std::string text = {};  ///< Empty: nothing to say.
};

/// Both: still here.
struct Beat {};

using Message = std::variant<Join,
                             Refusal,
                             StartRound,
                             StopRound,
                             RankFailure,
                             RoundDone,
                             RoundStopped,
                             SignalRanks,
                             EndJob,
                             Beat>;

constexpr std::size_t kLongestMessage = 1 << 17;

/// Texts that are too long for a message are cut.
std::string to_text(const Message& message);
/// Throws DistributedError if it is none: unknown type, missing member, number out of range.
Message parse_message(std::string_view text);

}  // namespace fulmen::detail
