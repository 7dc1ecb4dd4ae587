#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "core/distributed/handshake.h"
#include "core/distributed/key_value_message.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {

/// A connection of a client to a KeyValueServer. One thread at a time. After an exception it is of
/// no use. No torch.
class StoreConnection {
 public:
  using Clock = std::chrono::steady_clock;

  /// Tries all addresses of the host, once each. Throws DistributedError that says why it is not
  /// there: a StoreRefusal if trying again is in vain.
  StoreConnection(const std::string& host,
                  std::uint16_t port,
                  std::shared_ptr<const JobToken> token,
                  Clock::time_point deadline);
  ~StoreConnection();
  StoreConnection(const StoreConnection&) = delete;
  StoreConnection& operator=(const StoreConnection&) = delete;

  /// Sends a request and returns the response, without its length. Throws DistributedError.
  std::string exchange(const std::string& request, Clock::time_point deadline);

 private:
  bool try_address(const boost::asio::ip::tcp::endpoint& address, Clock::time_point deadline);
  void shake_hands(std::shared_ptr<const JobToken> token, Clock::time_point deadline);
  /// Until the operation has ended; false: at the deadline it was ended. Its error is in error_.
  bool finish(Clock::time_point deadline);
  void check(bool in_time) const;

  boost::asio::io_context context_{1};
  boost::asio::ip::tcp::socket socket_{context_};
  boost::system::error_code error_;
  std::array<std::uint8_t, kLengthBytes> length_ = {};
  std::string body_;
};

/// Of a server that is there and will not have this client.
class StoreRefusal : public DistributedError {
 public:
  using DistributedError::DistributedError;
};

}  // namespace fulmen::detail
