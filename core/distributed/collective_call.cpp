#include "core/distributed/collective_call.h"

#include <exception>
#include <utility>

#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

[[noreturn]] void fail_collective(const std::string& what,
                                  const ProcessGroup& group,
                                  const std::exception& error) {
  fail<DistributedError>(what,
                         "failed on rank ",
                         group.ranks()[static_cast<std::size_t>(group.rank())],
                         " in the group ",
                         group.describe(),
                         " (time limit ",
                         detail::seconds(group.state()->timeout),
                         "): ",
                         detail::text_of(error));
}

thread_local int leaving = 0;  // Scopes of NoWaiting.

}  // namespace

detail::NoWaiting::NoWaiting() {
  ++leaving;
}
detail::NoWaiting::~NoWaiting() {
  --leaving;
}

Work::State::~State() {
  if (work == nullptr) return;
  try {
    // A handle that was dropped: nobody asked for the result or its errors, but a message must not
    // lose its memory half way. While an exception ends this rank there is no waiting, because its
    // peers wait for that end; c10d itself holds the tensors of what is not point to point.
    if (std::uncaught_exceptions() > 0 || leaving > 0) {
      work->abort();
    } else {
      work->wait();
    }
  } catch (...) {
  }
}

void Work::wait() {
  if (state_ == nullptr || state_->work == nullptr) return;
  const auto work = std::exchange(state_->work, nullptr);
  const auto tensors = std::exchange(state_->tensors, {});
  try {
    work->wait();
  } catch (const std::exception& error) {
    fail_collective(state_->what, ProcessGroup(state_->group), error);
  }
  if (const auto then = std::exchange(state_->then, nullptr)) then();
}

namespace detail {

Work start(const ProcessGroup& group,
           Call call,
           const std::function<c10::intrusive_ptr<c10d::Work>()>& launch) {
  if (group.size() == 1) return {};
  group.state()->count(call.kind, call.bytes);
  if (call.bytes == 0 && call.kind != CollectiveKind::kBarrier) return {};
  auto state = std::make_shared<Work::State>();
  state->tensors = std::move(call.tensors);
  state->then = std::move(call.then);
  state->group = group.state();
  state->what = std::move(call.what);
  try {
    state->work = launch();
  } catch (const std::exception& error) {
    fail_collective(state->what, group, error);
  }
  return Work(std::move(state));
}

void check_root(std::string_view what, int root, const ProcessGroup& group) {
  if (root >= 0 && root < group.size()) return;
  fail<ConfigError>(what,
                    "rank ",
                    root,
                    " is none of the group ",
                    group.describe(),
                    "; ranks of a group are counted from 0 to ",
                    group.size() - 1,
                    ".");
}

void check_peer(std::string_view what, int peer, const ProcessGroup& group) {
  check_root(what, peer, group);
  if (peer != group.rank()) return;
  fail<ConfigError>(what,
                    "rank ",
                    peer,
                    " of the group ",
                    group.describe(),
                    " is this rank itself; copy the tensor instead.");
}

}  // namespace detail
}  // namespace fulmen
