#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "core/distributed/collective_check.h"
#include "core/distributed/collective_record.h"
#include "core/distributed/world_state.h"
#include "fulmen/core/distributed/collectives.h"

namespace fulmen {

struct Work::State {
  using Launch = std::function<c10::intrusive_ptr<c10d::Work>(c10d::ProcessGroup&)>;

  c10::intrusive_ptr<c10d::Work> work;  // Null once it was waited for.
  std::vector<at::Tensor> tensors;      // In use until the work is done.
  std::function<void()> then;           // What wait() does when the work is done; may be empty.
  std::shared_ptr<ProcessGroup::State> group;
  detail::CollectiveRecord record;
  // With checks: what goes before the work, and the work's start if there is anything to send.
  std::optional<detail::CollectiveCheck::Exchange> exchange = {};
  Launch launch = {};

  ~State();

 private:
  void end_dropped();
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
  std::int64_t bytes = 0;
  at::Tensor shown = {};  ///< Whose shape and dtype must be equal on all ranks.
  std::int8_t reduce_op = -1;
  int root = -1;  ///< Rank of the group.
  std::string_view label = {};
  std::vector<at::Tensor> tensors = {};
  std::function<void()> then = {};
};

/// Not where there are no bytes, which holds on all ranks alike.
inline bool sends(const CollectiveRecord& record) {
  return record.bytes > 0 || record.kind == CollectiveKind::kBarrier;
}
/// Counts and notes the call. Null if there is nothing to send.
std::shared_ptr<Work::State> prepare(const ProcessGroup& group, Call&& call);
/// Throws DistributedError that says for which ranks the collective failed.
[[noreturn]] void fail_collective(const Work::State& state, const std::exception& error);

/// Starts a call; `launch` returns c10d's work, and refers to nothing on the stack. Nothing is done
/// on a group of one rank. With checks, `launch` is called in wait().
template <class Launch>
Work start(const ProcessGroup& group, Call call, Launch launch) {
  if (group.size() == 1) return {};
  auto state = prepare(group, std::move(call));
  if (state == nullptr) return {};
  if (state->exchange) {
    if (sends(state->record)) state->launch = std::move(launch);
    return Work(std::move(state));
  }
  try {
    state->work = launch(group.c10d());
  } catch (const std::exception& error) {
    fail_collective(*state, error);
  }
  return Work(std::move(state));
}

/// Throws ConfigError unless `root` is a rank of the group.
void check_root(std::string_view what, int root, const ProcessGroup& group);
/// The same, and another one than this.
void check_peer(std::string_view what, int peer, const ProcessGroup& group);

}  // namespace detail
}  // namespace fulmen
