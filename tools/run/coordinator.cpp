#include "tools/run/coordinator.h"

#include <signal.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace fulmen::detail {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFailureGrace(4000);  // The peers of a failed rank cannot do much more.
constexpr milliseconds kHintAfter(10'000);
constexpr milliseconds kStopSlack(15'000);  // Above the grace time, for an agent to answer.

std::string with_lines(const std::string& text, const std::string& last_lines) {
  if (last_lines.empty()) return text + ".";
  auto lines = last_lines;
  while (lines.ends_with("\n")) lines.pop_back();
  return text + ". Last lines of its standard error:\n" + lines;
}

std::string counted(int count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace

std::string Coordinator::Node::name() const {
  return "node " + (number < 0 ? "" : std::to_string(number) + " ") + "(" + join.host + ")";
}

Coordinator::Coordinator(CoordinatorOptions options, Time now)
    : options_(std::move(options)), deadline_(now + options_.join_timeout) {}

std::vector<Outgoing> Coordinator::take_outgoing() {
  return std::exchange(outgoing_, {});
}

void Coordinator::on_message(NodeId from, const Message& message, Time now) {
  if (const auto* join = std::get_if<Join>(&message)) return on_join(from, *join, now);
  const auto found = nodes_.find(from);
  if (found == nodes_.end()) return send(from, Refusal{.text = "the first message must be join"});
  auto& node = found->second;
  if (const auto* failure = std::get_if<RankFailure>(&message)) {
    on_failure(node, *failure, now);
  } else if (const auto* signal = std::get_if<SignalRanks>(&message)) {
    on_signal(node, signal->number, now);
  } else if (const auto* done = std::get_if<RoundDone>(&message); done && done->round == round_) {
    if (node.part == Part::kRunning) node.part = Part::kDone;
    if (node.part == Part::kStopping) node.part = Part::kWaiting;
    if (state_ == State::kRunning && count(Part::kRunning) == 0) return end({});
    go_on_if_stopped(now);
  } else if (const auto* over = std::get_if<RoundStopped>(&message);
             over && over->round == round_) {
    if (node.part == Part::kStopping) node.part = Part::kWaiting;
    go_on_if_stopped(now);
  }
}

void Coordinator::on_join(NodeId from, const Join& join, Time now) {
  if (const auto refusal = refuse(join)) return send(from, *refusal);
  if (nodes_.contains(from)) return;
  nodes_[from] = {.join = join};
  const auto is_back = std::find_if(gone_.begin(), gone_.end(), [&](const Gone& gone) {
    return gone.join.order == join.order && gone.join.host == join.host;
  });
  if (is_back != gone_.end()) gone_.erase(is_back);
  if (state_ == State::kGathering) {
    // What happened under a coordinator that was lost counts.
    next_round_ = std::max(next_round_, join.rounds);
    restarts_ = std::max(restarts_, join.restarts);
    start_if_complete(now);
  } else if (state_ == State::kRunning && world_nodes_ < options_.max_nodes &&
             count(Part::kDone) == 0) {
    const auto text = nodes_[from].name() + " has come";
    options_.say(text + "; all ranks start again with it.");
    stop_round(text, options_.shutdown_timeout, now);
  }
}

std::optional<Refusal> Coordinator::refuse(const Join& join) const {
  const auto differs = [](const std::string& flag, const std::string& theirs, const auto& ours) {
    return Refusal{.text = flag + " is " + theirs + " here, but " + ours +
                           " on the node that serves the endpoint; all nodes need the same"};
  };
  if (state_ == State::kEnded) return Refusal{.text = "the job has ended"};
  if (join.job != options_.job) return differs("--rdzv-id", join.job, options_.job);
  if (join.min_nodes != options_.min_nodes || join.max_nodes != options_.max_nodes) {
    const auto range = [](int min, int max) {
      return std::to_string(min) + ":" + std::to_string(max);
    };
    return differs("--nnodes",
                   range(join.min_nodes, join.max_nodes),
                   range(options_.min_nodes, options_.max_nodes));
  }
  if (join.max_restarts != options_.max_restarts) {
    return differs(
        "--max-restarts", std::to_string(join.max_restarts), std::to_string(options_.max_restarts));
  }
  for (const auto& [id, node] : nodes_) {
    if (join.order != kAnyOrder && node.join.order == join.order) {
      // Perhaps the same one, started again before its end was seen here.
      return Refusal{
          .text = "--node-rank " + std::to_string(join.order) + " is taken by " + node.join.host,
          .again = true};
    }
  }
  return std::nullopt;
}

void Coordinator::on_failure(Node& node, const RankFailure& failure, Time now) {
  if (state_ != State::kRunning || node.part != Part::kRunning || failure.round != round_) return;
  fail_round(node.name() + ": " + failure.text, failure.code, failure.last_lines, now);
}

void Coordinator::on_lost(NodeId id, const std::string& reason, Time now) {
  const auto found = nodes_.find(id);
  if (found == nodes_.end()) return;
  const auto node = found->second;
  nodes_.erase(found);
  const auto text = node.name() + " was lost: " + reason;
  const bool had_ranks = node.part == Part::kRunning || node.part == Part::kStopping;
  if (node.number >= 0) gone_.push_back({.join = node.join, .text = node.name()});
  if (state_ == State::kRunning) {
    if (node.part == Part::kRunning) return fail_round(text, 1, "", now);
    if (node.part == Part::kDone && count(Part::kRunning) == 0 && count(Part::kDone) == 0)
      return end({});
  } else if (state_ == State::kStopping) {
    if (pending_end_ && had_ranks && signal_ == 0) pending_end_->text += "\n" + text + ", too.";
    go_on_if_stopped(now);
  } else if (state_ == State::kGathering) {
    start_if_complete(now);
  }
}

void Coordinator::on_signal(Node& node, int number, Time now) {
  if (state_ == State::kEnded || signal_ == number) return;
  signal_ = number;
  const auto text = "signal " + std::to_string(number) + " came to " + node.name();
  const EndJob result{.code = 128 + number, .text = text + "; the job has ended."};
  if (state_ == State::kGathering) return end(result);
  options_.say(text + "; all ranks get it, and the job ends with them.");
  pending_end_ = result;
  for (auto& [id, other] : nodes_) {
    if (other.part == Part::kDone) other.part = Part::kWaiting;
    if (other.part == Part::kRunning) other.part = Part::kStopping;
    if (other.part == Part::kStopping) send(id, SignalRanks{.number = number});
  }
  // Who asks for a checkpoint with SIGUSR1 decides how long it may take.
  deadline_ = number == SIGUSR1 ? Time::max() : now + options_.shutdown_timeout + kStopSlack;
  state_ = State::kStopping;
  go_on_if_stopped(now);
}

void Coordinator::fail_round(const std::string& text,
                             int code,
                             const std::string& last_lines,
                             Time now) {
  if (restarts_ < options_.max_restarts) {
    ++restarts_;
    options_.say(text + "; all ranks start again, restart " + std::to_string(restarts_) + " of " +
                 std::to_string(options_.max_restarts) + ".");
  } else {
    const bool none = options_.max_restarts == 0;
    const auto why = none ? "" : " after " + counted(restarts_, "restart");
    pending_end_ =
        EndJob{.code = code, .text = with_lines("error" + why + ": " + text, last_lines)};
  }
  stop_round(text, std::min(kFailureGrace, options_.shutdown_timeout), now);
}

void Coordinator::stop_round(const std::string& reason, milliseconds grace, Time now) {
  state_ = State::kStopping;
  deadline_ = now + grace + kStopSlack;
  for (auto& [id, node] : nodes_) {
    if (node.part == Part::kRunning) {
      node.part = Part::kStopping;
      send(id,
           StopRound{
               .round = round_, .reason = reason, .grace_ms = static_cast<int>(grace.count())});
    } else if (node.part == Part::kDone) {
      node.part = Part::kWaiting;
    }
  }
  go_on_if_stopped(now);
}

void Coordinator::go_on_if_stopped(Time now) {
  if (state_ != State::kStopping || count(Part::kStopping) > 0) return;
  if (pending_end_) return end(*pending_end_);
  gather(now);
}

void Coordinator::gather(Time now) {
  state_ = State::kGathering;
  deadline_ = now + options_.join_timeout;
  last_call_.reset();
  hinted_ = false;
  start_if_complete(now);
}

void Coordinator::start_if_complete(Time now) {
  const int here = count(Part::kWaiting);
  if (here < options_.min_nodes) return last_call_.reset();
  const bool as_before = round_ >= 0 && gone_.empty() && here == world_nodes_;
  if (here >= options_.max_nodes || as_before) return start_round(now);
  if (!last_call_) last_call_ = now + options_.last_call;
}

std::vector<NodeId> Coordinator::choose_nodes() const {
  std::vector<std::tuple<int, int, NodeId>> order;
  for (const auto& [id, node] : nodes_) {
    const int before = node.number < 0 ? kAnyOrder : node.number;
    order.emplace_back(node.join.order, before, id);
  }
  std::sort(order.begin(), order.end());
  std::vector<NodeId> chosen;
  for (const auto& [ignored, too, id] : order) {
    if (static_cast<int>(chosen.size()) < options_.max_nodes) chosen.push_back(id);
  }
  return chosen;
}

void Coordinator::start_round(Time) {
  const auto chosen = choose_nodes();
  const auto store = options_.open_store();
  state_ = State::kRunning;
  round_ = next_round_++;
  world_nodes_ = static_cast<int>(chosen.size());
  last_call_.reset();
  gone_.clear();
  StartRound start{.round = round_,
                   .restarts = restarts_,
                   .nodes = world_nodes_,
                   .world_size = 0,
                   .prefix = store.prefix,
                   .port = store.port};
  for (const auto id : chosen) start.world_size += nodes_[id].join.ranks;
  for (const auto id : chosen) {
    auto& node = nodes_[id];
    node.part = Part::kRunning;
    node.number = start.node;
    send(id, start);
    ++start.node;
    start.first_rank += node.join.ranks;
  }
}

void Coordinator::on_tick(Time now) {
  if (state_ == State::kGathering) {
    if (last_call_ && now >= *last_call_) return start_round(now);
    if (now >= deadline_ && !last_call_) return end({.code = 1, .text = who_is_missing()});
    if (hinted_ || now < deadline_ - options_.join_timeout + kHintAfter) return;
    hinted_ = true;
    options_.say("waiting for nodes: " + std::to_string(count(Part::kWaiting)) + " of at least " +
                 std::to_string(options_.min_nodes) + " here.");
  } else if (state_ == State::kStopping && now >= deadline_) {
    std::vector<NodeId> late;
    for (const auto& [id, node] : nodes_) {
      if (node.part == Part::kStopping) late.push_back(id);
    }
    for (const auto id : late) {
      send(id, Refusal{.text = "its ranks did not end in time"});
      on_lost(id, "its ranks did not end in time", now);
    }
  }
}

void Coordinator::end(EndJob result) {
  state_ = State::kEnded;
  for (const auto& [id, node] : nodes_) send(id, result);
  result_ = std::move(result);
}

int Coordinator::count(Part part) const {
  return static_cast<int>(std::count_if(
      nodes_.begin(), nodes_.end(), [&](const auto& entry) { return entry.second.part == part; }));
}

std::string Coordinator::who_is_missing() const {
  const int here = count(Part::kWaiting);
  const double limit = static_cast<double>(options_.join_timeout.count()) / 1000.0;
  std::string limit_text = std::to_string(limit);
  limit_text.erase(limit_text.find('.') + 2);
  std::string missing;
  const auto add = [&](const std::string& who) { missing += (missing.empty() ? "" : ", ") + who; };
  int unknown = options_.min_nodes - here;
  for (const auto& gone : gone_) {
    add(gone.text + ", which was lost");
    --unknown;
  }
  const bool numbered = std::any_of(nodes_.begin(), nodes_.end(), [](const auto& entry) {
    return entry.second.join.order > 0 && entry.second.join.order < kAnyOrder;
  });
  if (unknown > 0 && numbered) {
    for (int rank = 0; rank < options_.min_nodes; ++rank) {
      const auto has = [rank](const Join& join) { return std::max(join.order, 0) == rank; };
      const bool known =
          std::any_of(nodes_.begin(),
                      nodes_.end(),
                      [&](const auto& entry) { return has(entry.second.join); }) ||
          std::any_of(gone_.begin(), gone_.end(), [&](const Gone& gone) { return has(gone.join); });
      if (!known) add("--node-rank " + std::to_string(rank));
    }
  } else if (unknown > 0) {
    add(counted(unknown, "node") + " that never came");
  }
  std::string present;
  for (const auto& [id, node] : nodes_) present += (present.empty() ? "" : ", ") + node.join.host;
  return "error: " + counted(here, "node") + " of at least " + std::to_string(options_.min_nodes) +
         (here == 1 ? " is" : " are") + " here after " + limit_text + " s (" + present +
         "); missing: " + missing + ".";
}

}  // namespace fulmen::detail
