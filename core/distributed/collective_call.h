#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "core/distributed/world_state.h"
#include "fulmen/core/distributed/collectives.h"

namespace fulmen {

struct Work::State {
  c10::intrusive_ptr<c10d::Work> work;  // Null once it was waited for.
  std::vector<at::Tensor> tensors;      // In use until the work is done.
  std::function<void()> then;           // What wait() does when the work is done; may be empty.
  std::shared_ptr<ProcessGroup::State> group;
  std::string what;

  ~State();
};

namespace detail {

/// While one lives on this thread, handles that are dropped do not wait: the rank leaves its job,
/// and its peers wait for that.
class NoWaiting {
 public:
  NoWaiting();
  ~NoWaiting();
  NoWaiting(const NoWaiting&) = delete;
  NoWaiting& operator=(const NoWaiting&) = delete;
};

/// One call of a collective on a group of more than one rank.
struct Call {
  CollectiveKind kind;
  std::string what;
  std::int64_t bytes = 0;
  std::vector<at::Tensor> tensors = {};
  std::function<void()> then = {};
};

/// Counts the call and starts it; `launch` returns c10d's work. Nothing is done on a group of one
/// rank, and nothing is sent where there are no bytes, which holds on all ranks alike.
Work start(const ProcessGroup& group,
           Call call,
           const std::function<c10::intrusive_ptr<c10d::Work>()>& launch);

/// Throws ConfigError unless `root` is a rank of the group.
void check_root(std::string_view what, int root, const ProcessGroup& group);
/// The same, and another one than this.
void check_peer(std::string_view what, int peer, const ProcessGroup& group);

}  // namespace detail
}  // namespace fulmen
