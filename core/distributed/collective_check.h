#pragma once

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <deque>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "fulmen/core/distributed/collectives.h"

namespace fulmen::detail {

/// Of one group: before a collective the ranks exchange what each of them is about to call, over
/// connections of their own. The exchange of one that is asynchronous goes on until it is waited
/// for, so ranks may start collectives of several groups in different orders here too.
class CollectiveCheck {
 public:
  CollectiveCheck(c10::intrusive_ptr<c10d::ProcessGroup> c10d,
                  std::vector<int> ranks,
                  std::string group);

  struct Exchange {
    c10::intrusive_ptr<c10d::Work> work;
    at::Tensor mine;
    at::Tensor all;
    std::int64_t sequence = 0;
  };
  /// Starts it.
  Exchange begin(std::int64_t sequence, const std::string& call);
  /// Waits for it. Throws the same DistributedError on all ranks if they do not call the same, and
  /// for all later ones too. c10d's errors pass through.
  void end(Exchange& exchange);

  /// Calls whose exchange has begun and not ended, in order. They are started in this order, on all
  /// ranks, whichever is waited for first.
  std::deque<Work::State*>& pending() { return pending_; }
  /// Closes its connections.
  void leave() { c10d_.reset(); }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> c10d_;
  std::vector<int> ranks_;
  std::string group_;
  std::string mismatch_;  ///< The first one.
  std::deque<Work::State*> pending_;
};

}  // namespace fulmen::detail
