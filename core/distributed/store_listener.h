#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/distributed/job_token.h"

namespace fulmen::detail {

/// Sockets that listen at all addresses of a host name, on one port; port 0: a free one, the same
/// for all. Empty host: all interfaces. Not inherited by child processes. Throws ConfigError
/// for an address that is not of loopback without a token, DistributedError if no address can be
/// listened at.
std::vector<boost::asio::ip::tcp::acceptor> listen_for_store(boost::asio::io_context& context,
                                                             const std::string& host,
                                                             std::uint16_t port,
                                                             const JobToken* token);

/// A connection that has come, not inherited either, without delays and with probes for a peer that
/// is gone. Empty: none was left, or there is no room for it; then `error` says why.
std::optional<boost::asio::ip::tcp::socket> take_connection(
    boost::asio::ip::tcp::acceptor& acceptor, boost::system::error_code& error);

/// A socket that is not inherited, not connected; closed if there is none to be had.
boost::asio::ip::tcp::socket open_socket(boost::asio::io_context& context,
                                         const boost::asio::ip::tcp& version);
/// What connections of the store have set, on both sides.
void set_connection_options(boost::asio::ip::tcp::socket& socket);

/// "10.0.0.1:29500", "[::1]:29500".
std::string host_and_port(const std::string& host, std::uint16_t port);

}  // namespace fulmen::detail
