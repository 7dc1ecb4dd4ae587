#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/distributed/job_token.h"

namespace fulmen::detail {

// Before anything else is said on a connection of a job, both sides prove that they know its token:
//
//   client -> server  hello: magic, version, whether there is a token, service, 32 random bytes
//   server -> client  hello
//   client -> server  HMAC(token; "client", service, both random numbers)   only with a token
//   server -> client  1, HMAC(token; "server", service, both random numbers), or 0 and nothing
//
// The client proves first, so a stranger gets nothing to try tokens on. The names of the sides are
// in the proofs, so no side's own words sent back to it are a proof, and the service is, so those
// of one service are none for another. What follows is neither encrypted nor authenticated: who can
// change packets on the way can take a connection over. No torch.

enum class HandshakeSide : std::uint8_t { kClient, kServer };

/// What the connection is for; both sides must mean the same.
enum class HandshakeService : std::uint8_t { kStore = 1, kAgents = 2 };

struct HandshakeOptions {
  /// Null: both sides must have none, and nothing is proved. Servers without one listen on loopback
  /// only: see check_may_listen().
  std::shared_ptr<const JobToken> token = nullptr;
  HandshakeService service = HandshakeService::kStore;
  std::chrono::milliseconds time_limit = std::chrono::seconds(5);  ///< For all of it.
};

enum class HandshakeOutcome {
  kDone,
  kClosed,  ///< The connection ended, or was never good.
  kTimedOut,
  kStranger,      ///< The other side speaks something else, or is for another service.
  kVersion,       ///< The other side is of another version of Fulmen.
  kTokenMissing,  ///< One side has a token and the other has none.
  kTokenWrong,    ///< The tokens differ.
};

struct HandshakeResult {
  HandshakeOutcome outcome = HandshakeOutcome::kClosed;
  std::string reason = {};  ///< A sentence or two with the remedy; empty if done.
  bool done() const { return outcome == HandshakeOutcome::kDone; }
  /// Whether trying again is in vain, for a client: the server is there and will not have it.
  bool is_final() const { return outcome >= HandshakeOutcome::kStranger; }
};

/// Shakes hands on a connected socket, then calls `then` once, on the socket's executor, never from
/// within this call. Nothing is read beyond the handshake. On failure the socket comes back closed.
/// Throws nothing.
using HandshakeHandler =
    std::function<void(HandshakeResult result, boost::asio::ip::tcp::socket socket)>;
void async_handshake(HandshakeSide side,
                     boost::asio::ip::tcp::socket socket,
                     HandshakeOptions options,
                     HandshakeHandler then);

/// Throws ConfigError that names the address unless there is a token or the address is of loopback:
/// whoever reaches the port could use what is served there.
void check_may_listen(const std::string& where,
                      const boost::asio::ip::address& address,
                      const JobToken* token);

}  // namespace fulmen::detail
