#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/distributed/job_token.h"

namespace fulmen::detail {

struct KeyValueServerOptions {
  /// A name or an address of this host; all addresses of a name are listened at. Empty: all
  /// interfaces, of IPv4 and IPv6.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  ///< 0: a free one.
  /// Null: none is asked for, on loopback only.
  std::shared_ptr<const JobToken> token = nullptr;
  std::size_t most_connections = 8192;
  /// Connections that have not shown the token; while there are as many, others wait.
  std::size_t most_unproven = 512;
  std::size_t most_message_bytes = std::size_t{16} << 20;  ///< Of a request and of its response.
  /// Keys, values, and the messages of all connections.
  std::size_t most_bytes = std::size_t{256} << 20;
  std::chrono::milliseconds handshake_limit = std::chrono::seconds(5);
  /// For a message that has begun, in either direction.
  std::chrono::milliseconds message_limit = std::chrono::seconds(30);
};

/// The store of a job: keys and values for clients that know its token (KeyValueStore), on a thread
/// of its own that blocks all signals. No torch. Its sockets are not inherited by child processes.
class KeyValueServer {
 public:
  /// Listens when this returns. Throws ConfigError for another address than loopback without a
  /// token, and DistributedError that names the address if nothing can listen there.
  explicit KeyValueServer(KeyValueServerOptions options);
  ~KeyValueServer();
  KeyValueServer(const KeyValueServer&) = delete;
  KeyValueServer& operator=(const KeyValueServer&) = delete;

  std::uint16_t port() const;
  /// Forgets the keys that begin so, and returns how many there were. From any thread.
  std::size_t drop_prefix(const std::string& prefix);
  // From any thread.
  std::size_t num_keys() const;
  std::size_t num_connections() const;  ///< With those that have not shown the token.
  std::size_t num_bytes() const;        ///< What most_bytes limits.
  /// Closes all connections; waits of clients fail. Within a second; the destructor does it too.
  void stop() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fulmen::detail
