#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/distributed/rank_report.h"

namespace c10d {
class Store;
}

namespace fulmen::detail {

/// Finds out for which ranks a collective has failed. One for each World: a thread that looks now
/// and then at what this rank's groups have noted. As long as that goes on it says nothing. When
/// this rank has been in one place for long, it asks the others by a key in the store of the job,
/// and while that key is there, each rank that is quiet keeps a report there. So a rank that hangs
/// in its own code answers too; one whose process stands still does not, and is known by that.
class CollectiveWatch {
 public:
  struct Options {
    c10::intrusive_ptr<c10d::Store> store;  ///< With a prefix of this world alone.
    int rank = 0;
    int world_size = 0;
    std::chrono::milliseconds timeout{0};  ///< Of collectives; all pauses follow from it.
    /// Where a rank has told its process_identity() in its last word.
    std::function<std::string(int rank)> identity_key = {};
  };
  explicit CollectiveWatch(Options options);
  ~CollectiveWatch();
  CollectiveWatch(const CollectiveWatch&) = delete;
  CollectiveWatch& operator=(const CollectiveWatch&) = delete;

  /// `key` is of this group alone, and the same on all of its ranks.
  std::shared_ptr<GroupLog> add_group(std::string key, std::string name);

  struct Question {
    std::string key;         ///< Of the group.
    std::vector<int> ranks;  ///< Whom to ask: ranks of the world, without this one.
    std::int64_t sequence = 0;
    CollectiveFailure failure = CollectiveFailure::kNone;
  };
  /// After the failure was noted in the group's log. Takes at most 3.5 s; 1 s if a connection
  /// broke.
  RankAnswers ask(Question question);
  /// Tells the others, if that is possible at once.
  void leave() noexcept;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace fulmen::detail
