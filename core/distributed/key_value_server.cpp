#include "core/distributed/key_value_server.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "core/distributed/handshake.h"
#include "core/distributed/store_listener.h"
#include "core/distributed/store_session.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr milliseconds kPause(50);  // Before looking again whether there is room.

/// Threads inherit the mask of the one that starts them.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_ = {};
};

void check_options(const KeyValueServerOptions& options) {
  if (options.most_connections > 0 && options.most_unproven > 0 && options.most_message_bytes > 0 &&
      options.most_bytes >= options.most_message_bytes && options.handshake_limit.count() > 0 &&
      options.message_limit.count() > 0)
    return;
  fail<ConfigError>("The store",
                    "its limits must be greater than 0, and most_bytes at least ",
                    "most_message_bytes, got ",
                    options.most_bytes,
                    " and ",
                    options.most_message_bytes,
                    ".");
}

}  // namespace

/// All but the constructor and stop() is on the thread.
struct KeyValueServer::Impl {
  struct Door {
    tcp::acceptor acceptor;
    asio::steady_timer pause;
  };

  explicit Impl(const KeyValueServerOptions& given) : state(given) {
    const auto& options = state.options;
    for (auto& acceptor :
         listen_for_store(*context, options.host, options.port, options.token.get())) {
      port = acceptor.local_endpoint().port();
      doors.push_back({.acceptor = std::move(acceptor), .pause = asio::steady_timer(*context)});
    }
    for (auto& door : doors) listen(door);
    const BlockedSignals blocked;
    thread = std::thread([this] { run(); });
  }

  void run() noexcept {
    while (true) {
      try {
        context->run();
        return;
      } catch (const std::exception&) {  // Of one connection, for want of memory.
      }
    }
  }

  std::size_t connections() const { return unproven + state.sessions; }
  bool has_room() const {
    return unproven < state.options.most_unproven && connections() < state.options.most_connections;
  }

  /// Takes connections one by one while there is room for them; those that wait cost nothing here.
  void listen(Door& door) {
    if (!has_room()) return listen_later(door);
    door.acceptor.async_wait(tcp::acceptor::wait_read, [this, &door](const error_code& error) {
      if (error == asio::error::operation_aborted) return;
      error_code problem = error;
      while (!problem && has_room()) {
        auto socket = take_connection(door.acceptor, problem);
        if (socket) greet(std::move(*socket));
      }
      const bool none_left =
          problem == asio::error::would_block || problem == asio::error::try_again;
      problem && !none_left ? listen_later(door) : listen(door);
    });
  }

  void listen_later(Door& door) {
    door.pause.expires_after(kPause);
    door.pause.async_wait([this, &door](const error_code& error) {
      if (!error) listen(door);
    });
  }

  void greet(tcp::socket socket) {
    ++unproven;
    async_handshake(HandshakeSide::kServer,
                    std::move(socket),
                    {.token = state.options.token,
                     .service = HandshakeService::kStore,
                     .time_limit = state.options.handshake_limit},
                    [this](const HandshakeResult& result, tcp::socket shaken) {
                      --unproven;
                      if (result.done())
                        std::make_shared<StoreSession>(state, std::move(shaken))->start();
                    });
  }

  /// What the thread leaves behind is destroyed with the context: sessions and handshakes.
  void stop() noexcept {
    if (context == nullptr) return;
    context->stop();
    if (thread.joinable()) thread.join();
    doors.clear();
    context.reset();
  }

  StoreState state;
  std::uint16_t port = 0;
  std::atomic<std::size_t> unproven{0};
  std::unique_ptr<asio::io_context> context = std::make_unique<asio::io_context>(1);
  std::list<Door> doors;
  std::thread thread;
};

KeyValueServer::KeyValueServer(KeyValueServerOptions options) {
  check_options(options);
  impl_ = std::make_unique<Impl>(options);
}
KeyValueServer::~KeyValueServer() {
  impl_->stop();
}

void KeyValueServer::stop() noexcept {
  impl_->stop();
}
std::uint16_t KeyValueServer::port() const {
  return impl_->port;
}

std::size_t KeyValueServer::drop_prefix(const std::string& prefix) {
  const std::lock_guard<std::mutex> lock(impl_->state.mutex);
  return impl_->state.table.drop_prefix(prefix);
}
std::size_t KeyValueServer::num_keys() const {
  const std::lock_guard<std::mutex> lock(impl_->state.mutex);
  return impl_->state.table.size();
}
std::size_t KeyValueServer::num_bytes() const {
  const std::lock_guard<std::mutex> lock(impl_->state.mutex);
  return impl_->state.table.bytes() + impl_->state.message_bytes;
}
std::size_t KeyValueServer::num_connections() const {
  return impl_->connections();
}

}  // namespace fulmen::detail
