#include "core/distributed/store_connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "core/distributed/store_listener.h"

namespace fulmen::detail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

milliseconds left_until(StoreConnection::Clock::time_point deadline) {
  const auto left = deadline - StoreConnection::Clock::now();
  return std::max(std::chrono::duration_cast<milliseconds>(left), milliseconds(1));
}

}  // namespace

StoreConnection::StoreConnection(const std::string& host,
                                 std::uint16_t port,
                                 std::shared_ptr<const JobToken> token,
                                 Clock::time_point deadline) {
  tcp::resolver resolver(context_);
  const auto addresses = resolver.resolve(host, std::to_string(port), error_);
  check(true);
  auto left = addresses.size();
  for (const auto& entry : addresses) {
    // One that does not answer leaves time for the others.
    const auto part = left_until(deadline) / static_cast<std::int64_t>(left--);
    if (try_address(entry.endpoint(), Clock::now() + part)) break;
  }
  check(true);
  shake_hands(std::move(token), deadline);
}

StoreConnection::~StoreConnection() = default;

bool StoreConnection::try_address(const tcp::endpoint& address, Clock::time_point deadline) {
  socket_ = open_socket(context_, address.protocol());
  if (!socket_.is_open()) {
    error_ = asio::error::no_descriptors;
    return false;
  }
  socket_.async_connect(address, [this](const error_code& error) { error_ = error; });
  if (!finish(deadline)) error_ = asio::error::timed_out;
  // Where nobody listens, a socket can be given the very port that it connects to, and meet itself.
  error_code ignored;
  if (!error_ && socket_.local_endpoint(ignored) == socket_.remote_endpoint(ignored))
    error_ = asio::error::connection_refused;
  if (error_) {
    socket_.close(ignored);
    return false;
  }
  set_connection_options(socket_);
  return true;
}

void StoreConnection::shake_hands(std::shared_ptr<const JobToken> token,
                                  Clock::time_point deadline) {
  HandshakeResult result;
  async_handshake(HandshakeSide::kClient,
                  std::move(socket_),
                  {.token = std::move(token),
                   .service = HandshakeService::kStore,
                   .time_limit = left_until(deadline)},
                  [&](HandshakeResult given, tcp::socket socket) {
                    result = std::move(given);
                    socket_ = std::move(socket);
                  });
  context_.restart();
  context_.run();  // The handshake has the time limit.
  if (result.is_final()) throw StoreRefusal(result.reason);
  if (!result.done()) throw DistributedError(result.reason);
}

bool StoreConnection::finish(Clock::time_point deadline) {
  context_.restart();
  context_.run_until(deadline);
  if (context_.stopped()) return true;
  error_code ignored;
  socket_.close(ignored);
  context_.run();
  return false;
}

void StoreConnection::check(bool in_time) const {
  if (!in_time) throw DistributedError("no answer.");
  if (error_) throw DistributedError(error_.message() + ".");
}

std::string StoreConnection::exchange(const std::string& request, Clock::time_point deadline) {
  const auto then = [this](auto next) {
    return [this, next](const error_code& error, std::size_t) {
      error_ = error;
      if (!error) next();
    };
  };
  const auto read_body = [this, then] {
    const auto size = decode_length(length_.data());
    if (size == 0 || size > kMostStoreMessageBytes) {
      error_ = asio::error::message_size;
      return;
    }
    body_.resize(size);
    asio::async_read(socket_, asio::buffer(body_), then([] {}));
  };
  const auto read_length = [this, then, read_body] {
    asio::async_read(socket_, asio::buffer(length_), then(read_body));
  };
  asio::async_write(socket_, asio::buffer(request), then(read_length));
  const bool in_time = finish(deadline);
  check(in_time);
  return std::move(body_);
}

}  // namespace fulmen::detail
