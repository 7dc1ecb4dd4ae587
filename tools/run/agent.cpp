#include "tools/run/agent.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <filesystem>
#include <sstream>
#include <utility>

#include "core/distributed/handshake.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr milliseconds kPause(200);          // Between tries to reach the endpoint.
constexpr milliseconds kConnectLimit(5000);  // Of one address.
constexpr milliseconds kHintAfter(10'000);
constexpr milliseconds kLostGrace(4000);  // For ranks whose coordinator is lost.

std::string own_host() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

bool is_ignored(int signal) {
  struct sigaction action = {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

}  // namespace

Agent::Agent(asio::io_context& context,
             Terminal& terminal,
             const RunOptions& options,
             const RunToken& token)
    : context_(context),
      terminal_(terminal),
      options_(options),
      token_(token),
      signals_(context),
      timer_(context),
      signal_timer_(context),
      resolver_(context) {}

Agent::~Agent() {
  if (connection_ != nullptr) connection_->close();
}

int Agent::run() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    if (!is_ignored(signal)) signals_.add(signal);
  }
  watch_signals();
  deadline_ = Clock::now() + options_.join_timeout;
  asio::post(context_, [this] { meet(); });
  context_.run();
  return result_.value_or(1);
}

void Agent::watch_signals() {
  signals_.async_wait([this](const error_code& error, int number) {
    if (error) return;
    watch_signals();
    on_signal(number);
  });
}

void Agent::meet() {
  if (server_ == nullptr) {
    auto place = try_to_serve(context_, options_);
    master_host_ = options_.endpoint.host;
    if (!place.acceptors.empty()) {
      master_host_ = place.own_host;
      server_ = std::make_unique<CoordinatorServer>(
          context_, terminal_, options_, token_.token, std::move(place));
    }
  }
  connect();
}

void Agent::connect() {
  if (server_ != nullptr) return try_addresses({server_->address()}, 0);
  const auto& endpoint = options_.endpoint;
  resolver_.async_resolve(
      endpoint.host,
      std::to_string(endpoint.port),
      [this](const error_code& error, const tcp::resolver::results_type& found) {
        if (error) return retry(error.message());
        std::vector<tcp::endpoint> addresses;
        for (const auto& entry : found) addresses.push_back(entry.endpoint());
        try_addresses(std::move(addresses), 0);
      });
}

void Agent::try_addresses(std::vector<tcp::endpoint> addresses, std::size_t index) {
  const auto socket = std::make_shared<tcp::socket>(context_);
  timer_.expires_after(kConnectLimit);
  timer_.async_wait([socket](const error_code& error) {
    error_code ignored;
    if (!error) socket->close(ignored);
  });
  socket->async_connect(addresses[index], [=, this](const error_code& error) {
    timer_.cancel();
    if (!error && socket->is_open()) return greet(std::move(*socket));
    if (index + 1 < addresses.size()) return try_addresses(addresses, index + 1);
    retry(error == asio::error::operation_aborted ? "no answer" : error.message());
  });
}

void Agent::retry(const std::string& reason) {
  if (result_) return;
  if (signal_ != 0) return finish(128 + signal_, "");
  const auto now = Clock::now();
  const auto& endpoint = options_.endpoint.text();
  if (now >= deadline_) {
    std::ostringstream text;
    text << "error: this node could not join at " << endpoint << " within "
         << static_cast<double>(options_.join_timeout.count()) / 1000.0 << " s: " << reason << ".";
    return finish(1, text.str());
  }
  if (!hinted_ && now >= deadline_ - options_.join_timeout + kHintAfter) {
    hinted_ = true;
    terminal_.say("still trying to join at " + endpoint + ": " + reason + ".");
  }
  timer_.expires_after(kPause);
  timer_.async_wait([this](const error_code& error) {
    if (!error) meet();
  });
}

void Agent::greet(tcp::socket socket) {
  async_handshake(
      HandshakeSide::kClient,
      std::move(socket),
      {.token = token_.token, .service = HandshakeService::kAgents},
      [this](const HandshakeResult& result, tcp::socket shaken) {
        if (result_) return;
        if (result.done()) return join(std::move(shaken));
        if (!result.is_final()) return retry(result.reason);
        finish(1, "error: cannot join at " + options_.endpoint.text() + ": " + result.reason);
      });
}

void Agent::join(tcp::socket socket) {
  connection_ = std::make_shared<Connection>(std::move(socket), options_.beat);
  connection_->start({.on_message = [this](const Message& message) { on_message(message); },
                      .on_lost = [this](const std::string& reason) { on_lost(reason); }});
  connection_->send(Join{.job = options_.job_id,
                         .min_nodes = options_.min_nodes,
                         .max_nodes = options_.max_nodes,
                         .max_restarts = options_.max_restarts,
                         .ranks = options_.ranks,
                         .order = options_.node_rank.value_or(server_ != nullptr ? -1 : kAnyOrder),
                         .host = own_host(),
                         .rounds = rounds_,
                         .restarts = restarts_});
}

void Agent::on_message(const Message& message) {
  if (const auto* start = std::get_if<StartRound>(&message)) {
    start_ranks(*start);
  } else if (const auto* stop = std::get_if<StopRound>(&message)) {
    stop_ranks(*stop);
  } else if (const auto* signal = std::get_if<SignalRanks>(&message)) {
    on_signal(signal->number);
  } else if (const auto* end = std::get_if<EndJob>(&message)) {
    finish(end->code, end->text);
  } else if (const auto* refusal = std::get_if<Refusal>(&message)) {
    const auto connection = std::exchange(connection_, nullptr);
    connection->close();
    if (refusal->again) return retry(refusal->text);
    finish(1, "error: " + options_.endpoint.text() + " refuses this node: " + refusal->text + ".");
  }
}

void Agent::start_ranks(const StartRound& start) {
  round_ = start;
  rounds_ = start.round + 1;
  restarts_ = start.restarts;
  failed_ = stopping_ = false;
  lost_reason_.clear();
  RankGroupEvents events{.on_failure = [this](const RankEnd& end) { on_failure(end); },
                         .on_all_ended =
                             [this] {
                               asio::post(context_, [this, round = rounds_] {
                                 if (round == rounds_) on_all_ended();
                               });
                             }};
  ranks_ = std::make_unique<RankGroup>(context_, terminal_, options_, std::move(events));
  try {
    ranks_->start(list_ranks(start), start.round);
  } catch (const Error& error) {
    ranks_.reset();
    on_failure({.rank = start.first_rank, .code = 1, .text = error.what()});
  }
}

std::vector<ChildRank> Agent::list_ranks(const StartRound& start) const {
  std::vector<ChildRank> ranks;
  for (int i = 0; i < options_.ranks; ++i) {
    const auto rank = std::to_string(start.first_rank + i);
    const auto size = std::to_string(start.world_size);
    ranks.push_back(
        {.rank = start.first_rank + i,
         .variables = {{"RANK", rank},
                       {"LOCAL_RANK", std::to_string(i)},
                       {"ROLE_RANK", rank},
                       {"WORLD_SIZE", size},
                       {"LOCAL_WORLD_SIZE", std::to_string(options_.ranks)},
                       {"ROLE_WORLD_SIZE", size},
                       {"GROUP_RANK", std::to_string(start.node)},
                       {"GROUP_WORLD_SIZE", std::to_string(start.nodes)},
                       {"MASTER_ADDR", master_host_},
                       {"MASTER_PORT", std::to_string(start.port)},
                       {"TORCHELASTIC_RUN_ID", options_.job_id},
                       {"TORCHELASTIC_RESTART_COUNT", std::to_string(start.restarts)},
                       {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options_.max_restarts)},
                       {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                       {"FULMEN_STORE", "agent"},
                       {"FULMEN_STORE_PREFIX", start.prefix},
                       {"FULMEN_LAUNCHED", ""}},
         .command = options_.command});
    ranks.back().variables.insert(token_.variables.begin(), token_.variables.end());
  }
  return ranks;
}

void Agent::stop_ranks(const StopRound& stop) {
  stopping_ = true;
  if (server_ == nullptr) terminal_.say(stop.reason + "; the ranks of this node end.");
  if (any_ranks()) return ranks_->end(milliseconds(stop.grace_ms));
  if (connection_ != nullptr) connection_->send(RoundStopped{.round = stop.round});
}

void Agent::on_failure(const RankEnd& end) {
  if (!round_ || std::exchange(failed_, true) || connection_ == nullptr) return;
  connection_->send(RankFailure{.round = round_->round,
                                .rank = end.rank,
                                .code = std::max(end.code, 1),
                                .text = end.text,
                                .last_lines = end.last_lines});
}

void Agent::on_all_ended() {
  if (result_ || !round_) return;
  if (connection_ == nullptr) {
    if (signal_ != 0) return finish(128 + signal_, "");
    return meet_again();
  }
  if (stopping_ || signal_ != 0) {
    connection_->send(RoundStopped{.round = round_->round});
  } else if (!failed_) {
    connection_->send(RoundDone{.round = round_->round});
  }
}

void Agent::on_lost(const std::string& reason) {
  connection_.reset();
  if (result_) return;
  lost_reason_ = reason;
  const bool had_ranks = any_ranks();
  terminal_.say("the node that serves " + options_.endpoint.text() + " was lost: " + reason +
                (had_ranks ? "; the ranks of this node end." : "."));
  if (!had_ranks) return signal_ != 0 ? finish(128 + signal_, "") : meet_again();
  if (signal_ == 0) ranks_->end(std::min(kLostGrace, options_.shutdown_timeout));
}

void Agent::meet_again() {
  if (round_) {
    if (restarts_ >= options_.max_restarts) {
      return finish(1,
                    "error: the node that serves " + options_.endpoint.text() +
                        " was lost: " + lost_reason_ + "; no restart is left.");
    }
    ++restarts_;
    round_.reset();
    deadline_ = Clock::now() + options_.join_timeout;
  }
  retry(lost_reason_);
}

void Agent::on_signal(int number) {
  if (result_) return;
  if (signal_ == number && connection_ != nullptr && !any_ranks()) return;
  const bool again = signal_ != 0 && signal_ != SIGUSR1;
  if (signal_ != number && connection_ != nullptr) connection_->send(SignalRanks{.number = number});
  if (!any_ranks()) {
    signal_ = number;
    if (connection_ == nullptr) finish(128 + number, "");
    return;
  }
  if (again && signal_ == number) return;
  signal_ = number;
  ranks_->hand_on(number);
  if (number == SIGUSR1) return;
  signal_timer_.expires_after(options_.shutdown_timeout);
  signal_timer_.async_wait([this](const error_code& error) {
    if (!error && any_ranks()) ranks_->end(milliseconds(0));
  });
}

void Agent::finish(int code, const std::string& text) {
  if (result_) return;
  result_ = code;
  if (!text.empty()) terminal_.say(text);
  timer_.cancel();
  signal_timer_.cancel();
  resolver_.cancel();
  ranks_.reset();
  if (const auto connection = std::exchange(connection_, nullptr)) connection->close();
  if (server_ == nullptr) return context_.stop();
  server_->when_all_told([this] { context_.stop(); });
}

}  // namespace fulmen::detail
