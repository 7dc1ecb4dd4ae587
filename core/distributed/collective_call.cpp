#include "core/distributed/collective_call.h"

#include <exception>
#include <utility>

#include "core/distributed/collective_watch.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

using detail::CollectiveFailure;

thread_local int leaving = 0;  // Scopes of NoWaiting.

// While an exception ends this rank there is no waiting, because its peers wait for that end.
bool must_not_wait() {
  return std::uncaught_exceptions() > 0 || leaving > 0;
}

CollectiveFailure kind_of_failure(const std::string& text) {
  for (const auto* part : {"Timed out", "timed out", "Timeout", "timeout"}) {
    if (text.find(part) != std::string::npos) return CollectiveFailure::kTimedOut;
  }
  return CollectiveFailure::kBroken;
}

// Without the place in Gloo's sources, and what it guesses.
std::string brief(const std::exception& error) {
  auto text = detail::text_of(error);
  if (text.starts_with("[/")) text.erase(0, text.find("] ") + 2);
  return text.substr(0, text.find(" This is typically caused by"));
}

// Which ranks are to blame; empty if that was asked before, or is not to be asked.
std::string find_reason(const Work::State& state, const std::exception& error) {
  if (dynamic_cast<const Error*>(&error) != nullptr) return {};
  auto& group = *state.group;
  const auto failure = kind_of_failure(detail::text_of(error));
  const bool first = group.log->failure() == CollectiveFailure::kNone;
  group.log->fail(failure);
  if (!first || must_not_wait()) return {};
  const auto& record = state.record;
  const int self = group.ranks[static_cast<std::size_t>(group.rank)];
  std::vector<int> others;
  for (const int rank : group.ranks) {
    if (rank != self && (!record.is_point_to_point() || rank == record.root))
      others.push_back(rank);
  }
  const auto answers = group.watch->ask({.key = group.log->key(),
                                         .ranks = std::move(others),
                                         .sequence = record.sequence,
                                         .failure = failure});
  return " " + detail::explain_failure(record, group.log->key(), failure, answers);
}

// Waits until the ranks have compared this call and those before it, and starts them.
void settle(Work::State& state) {
  auto& pending = state.group->check->pending();
  while (state.exchange) {
    auto& first = *pending.front();
    pending.pop_front();
    auto exchange = *std::exchange(first.exchange, std::nullopt);
    const auto launch = std::exchange(first.launch, nullptr);
    try {
      state.group->check->end(exchange);
      if (launch) first.work = launch(ProcessGroup(first.group).c10d());
    } catch (const DistributedError&) {
      throw;
    } catch (const std::exception& error) {
      detail::fail_collective(first, error);
    }
  }
}

}  // namespace

detail::NoWaiting::NoWaiting() {
  ++leaving;
}
detail::NoWaiting::~NoWaiting() {
  --leaving;
}

void Work::State::end_dropped() {
  try {
    // A handle that was dropped: nobody asked for the result or its errors, but a message must not
    // lose its memory half way. c10d itself holds the tensors of what is not point to point.
    if (must_not_wait()) {
      if (work != nullptr) work->abort();
      return;
    }
    group->log->wait(record);
    if (exchange) settle(*this);
    if (work != nullptr) work->wait();
    group->log->finish(record);
  } catch (...) {
  }
}

Work::State::~State() {
  if (work == nullptr && !exchange) return;
  end_dropped();
  if (exchange) std::erase(group->check->pending(), this);
}

void Work::wait() {
  if (state_ == nullptr || (state_->work == nullptr && !state_->exchange)) return;
  auto& log = *state_->group->log;
  log.wait(state_->record);
  if (state_->exchange) settle(*state_);
  const auto work = std::exchange(state_->work, nullptr);
  const auto tensors = std::exchange(state_->tensors, {});
  try {
    if (work != nullptr) work->wait();
  } catch (const std::exception& error) {
    detail::fail_collective(*state_, error);
  }
  log.finish(state_->record);
  if (const auto then = std::exchange(state_->then, nullptr)) then();
}

namespace detail {

namespace {

// In full, where a record is cut.
std::string describe_in_full(const Call& call, const CollectiveRecord& record) {
  auto text = record.describe();
  if (call.label.size() > CollectiveRecord::kMostLabel) text += " " + std::string(call.label);
  if (call.shown.defined() &&
      static_cast<std::size_t>(call.shown.dim()) > CollectiveRecord::kMostDims) {
    text += " shape";
    for (const auto size : call.shown.sizes()) text += " " + std::to_string(size);
  }
  return text;
}

}  // namespace

std::shared_ptr<Work::State> prepare(const ProcessGroup& group, Call&& call) {
  auto& state = *group.state();
  state.count(call.kind, call.bytes);
  CollectiveRecord record{.bytes = call.bytes, .kind = call.kind, .reduce_op = call.reduce_op};
  if (call.shown.defined()) record.set_tensor(call.shown);
  if (call.root >= 0) record.root = state.ranks[static_cast<std::size_t>(call.root)];
  record.set_label(call.label);
  state.log->start(record);
  const bool checked = state.check != nullptr && !record.is_point_to_point();
  if (!sends(record) && !checked) return nullptr;
  auto work = std::make_shared<Work::State>();
  work->tensors = std::move(call.tensors);
  work->then = std::move(call.then);
  work->group = group.state();
  work->record = record;
  if (checked) {
    try {
      work->exchange = state.check->begin(record.sequence, describe_in_full(call, record));
    } catch (const DistributedError&) {
      throw;
    } catch (const std::exception& error) {
      fail_collective(*work, error);
    }
    state.check->pending().push_back(work.get());
  }
  return work;
}

void fail_collective(const Work::State& state, const std::exception& error) {
  const ProcessGroup group(state.group);
  const auto& record = state.record;
  const auto details = record.details();
  const auto reason = find_reason(state, error);
  fail<DistributedError>(
      record.name(),
      "failed on rank ",
      group.ranks()[static_cast<std::size_t>(group.rank())],
      " in the group ",
      group.describe(),
      record.sequence > 0 ? " as its collective " + std::to_string(record.sequence) : "",
      details.empty() ? "" : ", " + details + ",",
      " (time limit ",
      detail::seconds(state.group->timeout),
      ").",
      reason,
      " ",
      brief(error));
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
