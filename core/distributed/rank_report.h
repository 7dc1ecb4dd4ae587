#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/distributed/collective_record.h"
#include "core/distributed/process_identity.h"

namespace fulmen::detail {

/// What a rank says about itself in the store of the job, while it or another rank waits for long.
struct RankReport {
  struct Group {
    std::string name;
    std::int64_t started = 0;
    std::int64_t finished = 0;
    std::int64_t waiting = 0;
    CollectiveFailure failure = CollectiveFailure::kNone;
    std::int64_t last_sequence = 0;
    std::string last = {};  ///< The last call, described.
  };
  std::int64_t count = 0;  ///< Grows with each report, so that an old one can be told.
  bool left = false;
  double quiet_seconds = 0;                  ///< Since it last began or ended a collective.
  std::map<std::string, Group> groups = {};  ///< By GroupLog::key().

  std::string to_text() const;
  /// What is not a report gives an empty one.
  static RankReport from_text(std::string_view text);
};

/// What one rank found out about another.
struct RankAnswer {
  int rank = 0;  ///< Of the world.
  bool answered = false;
  RankReport report = {};  ///< An old one, or empty, if it has not answered.
  ProcessState process = ProcessState::kUnknown;
};

/// Whether it ended or left before the group with this key failed.
bool is_surely_gone(const RankAnswer& answer, const std::string& key);

struct RankAnswers {
  std::string store_error = {};  ///< Not empty: nothing is known but the states of processes.
  std::vector<RankAnswer> ranks = {};
};

/// Says which ranks a collective of the group with this key failed for, and what they did last.
/// `answers` are of its other members; of the peer for point to point.
std::string explain_failure(const CollectiveRecord& record,
                            const std::string& key,
                            CollectiveFailure failure,
                            const RankAnswers& answers);

}  // namespace fulmen::detail
