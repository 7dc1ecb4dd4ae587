#include "core/distributed/store_listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/ip/v6_only.hpp>
#include <cerrno>
#include <utility>

#include "core/distributed/handshake.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

error_code last_error() {
  return {errno, boost::system::system_category()};
}

tcp::acceptor listen_at(asio::io_context& context, const tcp::endpoint& where, error_code& error) {
  tcp::acceptor acceptor(context);
  const int fd = ::socket(where.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) {
    error = last_error();
    return acceptor;
  }
  acceptor.assign(where.protocol(), fd);
  error = {};
  // A job can be started again at once on the port of one that has ended.
  acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (where.address().is_v6())
    acceptor.set_option(asio::ip::v6_only(!where.address().is_unspecified()), error);
  if (!error) acceptor.bind(where, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (!error) acceptor.non_blocking(true, error);
  return acceptor;
}

[[noreturn]] void fail_to_listen(const std::string& where, const error_code& error) {
  const bool taken = error == asio::error::address_in_use;
  fail<DistributedError>("The store",
                         "nothing can listen at ",
                         where,
                         ": ",
                         error.message(),
                         taken ? ". Set another MASTER_PORT." : ".");
}

std::vector<tcp::acceptor> listen_everywhere(asio::io_context& context, std::uint16_t port) {
  error_code error;
  for (const auto& version : {tcp::v6(), tcp::v4()}) {  // The first takes both, where it exists.
    auto acceptor = listen_at(context, {version, port}, error);
    if (!error) {
      std::vector<tcp::acceptor> acceptors;
      acceptors.push_back(std::move(acceptor));
      return acceptors;
    }
    if (error == asio::error::address_in_use) break;
  }
  fail_to_listen("port " + std::to_string(port) + " of all interfaces", error);
}

/// At all addresses that can be listened at, on one port.
std::vector<tcp::acceptor> listen_at_all(asio::io_context& context,
                                         const tcp::resolver::results_type& addresses,
                                         std::uint16_t port,
                                         error_code& error) {
  std::vector<tcp::acceptor> acceptors;
  error_code failure;
  for (const auto& entry : addresses) {
    auto acceptor = listen_at(context, {entry.endpoint().address(), port}, failure);
    if (failure) {
      error = failure;
      continue;
    }
    port = acceptor.local_endpoint(failure).port();
    acceptors.push_back(std::move(acceptor));
  }
  return acceptors;
}

}  // namespace

std::vector<tcp::acceptor> listen_for_store(asio::io_context& context,
                                            const std::string& host,
                                            std::uint16_t port,
                                            const JobToken* token) {
  const auto where = host_and_port(host.empty() ? "*" : host, port);
  if (host.empty()) {
    check_may_listen(where, asio::ip::address_v6::any(), token);
    return listen_everywhere(context, port);
  }
  error_code error;
  tcp::resolver resolver(context);
  const auto addresses = resolver.resolve(host, std::to_string(port), error);
  if (error) fail_to_listen(where, error);
  for (const auto& entry : addresses) check_may_listen(where, entry.endpoint().address(), token);
  auto acceptors = listen_at_all(context, addresses, port, error);
  if (acceptors.empty()) fail_to_listen(where, error);
  return acceptors;
}

std::optional<tcp::socket> take_connection(tcp::acceptor& acceptor, error_code& error) {
  const int fd = ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) {
    error = last_error();
    return std::nullopt;
  }
  tcp::socket socket(acceptor.get_executor());
  const auto version = acceptor.local_endpoint(error).protocol();
  if (!error) socket.assign(version, fd, error);
  if (error) {
    ::close(fd);
    return std::nullopt;
  }
  set_connection_options(socket);
  return socket;
}

tcp::socket open_socket(asio::io_context& context, const tcp& version) {
  tcp::socket socket(context);
  const int fd = ::socket(version.family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  error_code error;
  if (fd >= 0) socket.assign(version, fd, error);
  if (fd >= 0 && error) ::close(fd);
  return socket;
}

void set_connection_options(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  using Seconds = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>;
  using Interval = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPINTVL>;
  using Probes = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPCNT>;
  socket.set_option(Seconds(20), ignored);
  socket.set_option(Interval(5), ignored);
  socket.set_option(Probes(4), ignored);
}

std::string host_and_port(const std::string& host, std::uint16_t port) {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

}  // namespace fulmen::detail
