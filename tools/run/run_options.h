#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/distributed/job_token.h"

namespace fulmen::detail {

/// Where the agents meet.
struct Endpoint {
  std::string host;          ///< A name or an address, without brackets. Empty: none was given.
  std::uint16_t port = 0;    ///< 0: a free one, on one node.
  std::string text() const;  ///< "host:port" or "[::1]:port".
};

/// Which of a rank's two streams go somewhere.
struct Streams {
  bool output = false;
  bool errors = false;
};

/// How an agent and the coordinator find that the other is gone.
struct BeatOptions {
  std::chrono::milliseconds interval{1000};
  int attempts = 5;  ///< Lost after that many intervals without a sign of life.
};

/// What the command line asks for, checked.
struct RunOptions {
  int min_nodes = 1;
  int max_nodes = 1;
  int ranks = 1;  ///< Of this node.
  std::optional<int> node_rank = {};
  Endpoint endpoint = {};
  std::string job_id = "none";
  int max_restarts = 0;
  std::filesystem::path token_file = {};  ///< Absolute; empty: FULMEN_TOKEN_FILE or FULMEN_TOKEN.
  std::filesystem::path log_dir = {};     ///< Empty: no files.
  Streams to_files = {};
  Streams to_terminal = {.output = true, .errors = true};
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds last_call{3000};  ///< After the least number of nodes has come.
  std::chrono::milliseconds shutdown_timeout{30'000};  ///< From SIGTERM to SIGKILL.
  BeatOptions beat = {};
  std::vector<std::string> command;  ///< The program, found in PATH, and its arguments.
};

/// Reads the command line. Empty: help or the version was asked for, and is on `out`. Throws
/// ConfigError that names flag, value and remedy.
std::optional<RunOptions> parse_command_line(int argc, const char* const* argv, std::ostream& out);

/// The job's token, and what ranks need in their environment to find it too.
struct RunToken {
  std::shared_ptr<const JobToken> token = {};
  std::map<std::string, std::string> variables = {};
};

/// That of the user; on one node without one, a new one for this job. Throws ConfigError if several
/// nodes have none.
RunToken find_token(const RunOptions& options);

/// A part of the above.
Endpoint parse_endpoint(const std::string& flag, const std::string& text);

}  // namespace fulmen::detail
