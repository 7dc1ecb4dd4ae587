#include "tools/run/coordinator_server.h"

#include <chrono>
#include <random>
#include <sstream>
#include <utility>

namespace fulmen::detail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr milliseconds kTick(100);
constexpr milliseconds kUntilTold(3000);
constexpr int kMostUnproven = 256;
constexpr int kMostSaid = 10;

std::string random_prefix() {
  std::random_device source;
  std::ostringstream text;
  text << std::hex;
  for (int i = 0; i < 4; ++i) text << source();
  return text.str();
}

}  // namespace

CoordinatorServer::CoordinatorServer(asio::io_context& context,
                                     Terminal& terminal,
                                     const RunOptions& options,
                                     std::shared_ptr<const JobToken> token,
                                     ServingPlace place)
    : terminal_(terminal),
      options_(options),
      token_(std::move(token)),
      place_(std::move(place)),
      timer_(context),
      coordinator_({.job = options.job_id,
                    .min_nodes = options.min_nodes,
                    .max_nodes = options.max_nodes,
                    .max_restarts = options.max_restarts,
                    .join_timeout = options.join_timeout,
                    .last_call = options.last_call,
                    .shutdown_timeout = options.shutdown_timeout,
                    .open_store = [this] { return open_store(); },
                    .say = [this](const std::string& text) { terminal_.say(text); }},
                   Coordinator::Clock::now()) {
  for (std::size_t i = 0; i < place_.acceptors.size(); ++i) accept(i);
  tick();
}

CoordinatorServer::~CoordinatorServer() {
  for (const auto& [id, connection] : connections_) connection->close();
}

tcp::endpoint CoordinatorServer::address() const {
  error_code ignored;
  auto address = place_.acceptors.front().local_endpoint(ignored);
  if (!address.address().is_unspecified()) return address;
  if (address.address().is_v6()) return {asio::ip::address_v6::loopback(), address.port()};
  return {asio::ip::address_v4::loopback(), address.port()};
}

void CoordinatorServer::accept(std::size_t index) {
  place_.acceptors[index].async_accept([this, index](const error_code& error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) return accept_later(index);
    if (unproven_ < kMostUnproven) greet(std::move(socket));
    accept(index);
  });
}

/// Without files for more connections, trying again at once would take a core.
void CoordinatorServer::accept_later(std::size_t index) {
  const auto timer = std::make_shared<asio::steady_timer>(timer_.get_executor(), kTick);
  timer->async_wait([this, index, timer](const error_code& error) {
    if (!error) accept(index);
  });
}

void CoordinatorServer::greet(tcp::socket socket) {
  error_code ignored;
  const auto address = socket.remote_endpoint(ignored).address().to_string();
  ++unproven_;
  async_handshake(HandshakeSide::kServer,
                  std::move(socket),
                  {.token = token_, .service = HandshakeService::kAgents},
                  [this, address](const HandshakeResult& result, tcp::socket shaken) {
                    --unproven_;
                    if (result.done()) return add(std::move(shaken));
                    if (result.is_final()) say_refused(address, result.reason);
                  });
}

void CoordinatorServer::say_refused(const std::string& address, const std::string& reason) {
  if (++refused_ > kMostSaid) return;
  terminal_.say("a connection from " + address + " was refused: " + reason +
                (refused_ == kMostSaid ? " More of these are not reported." : ""));
}

void CoordinatorServer::add(tcp::socket socket) {
  const auto id = next_id_++;
  const auto connection = std::make_shared<Connection>(std::move(socket), options_.beat);
  connections_[id] = connection;
  connection->start({.on_message =
                         [this, id](const Message& message) {
                           coordinator_.on_message(id, message, Coordinator::Clock::now());
                           flush();
                         },
                     .on_lost =
                         [this, id](const std::string& reason) {
                           connections_.erase(id);
                           coordinator_.on_lost(id, reason, Coordinator::Clock::now());
                           flush();
                         }});
}

void CoordinatorServer::tick() {
  coordinator_.on_tick(Coordinator::Clock::now());
  flush();
  timer_.expires_after(kTick);
  timer_.async_wait([this](const error_code& error) {
    if (!error) tick();
  });
}

void CoordinatorServer::flush() {
  for (const auto& [to, message] : coordinator_.take_outgoing()) {
    const auto found = connections_.find(to);
    if (found == connections_.end()) continue;
    const auto connection = found->second;
    connection->send(message);
    if (std::holds_alternative<Refusal>(message)) {
      connections_.erase(to);
      connection->close_after_writing();
    }
  }
  // Agents close their connections when they are told that the job has ended.
  const bool told =
      !coordinator_.result() || connections_.empty() || Coordinator::Clock::now() >= told_deadline_;
  if (then_ && told) std::exchange(then_, {})();
}

void CoordinatorServer::when_all_told(std::function<void()> then) {
  then_ = std::move(then);
  told_deadline_ = Coordinator::Clock::now() + kUntilTold;
}

RoundStore CoordinatorServer::open_store() {
  // A new one each time, so that ranks of an earlier round that are still somewhere find nobody.
  store_.reset();
  store_ = std::make_unique<KeyValueServer>(
      KeyValueServerOptions{.host = place_.store_host, .token = token_});
  return {.prefix = random_prefix(), .port = store_->port()};
}

}  // namespace fulmen::detail
