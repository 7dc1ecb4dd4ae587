#include "core/distributed/own_address.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/udp.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "fulmen/core/distributed/environment.h"

namespace fulmen::detail {

namespace asio = boost::asio;

std::string own_address_towards(const std::string& host, std::uint16_t port) {
  asio::io_context context;
  asio::ip::udp::resolver resolver(context);
  asio::ip::udp::socket socket(context);
  asio::connect(socket, resolver.resolve(host, std::to_string(port)));
  return socket.local_endpoint().address().to_string();
}

std::string reachable_address(const std::string& host,
                              std::uint16_t port,
                              int rank,
                              int world_size,
                              const std::string& prefix,
                              c10d::Store& store) {
  const auto key = [&](int of) { return prefix + "/address/" + std::to_string(of); };
  const auto own = own_address_towards(host, port);
  store.set(key(rank), own);
  if (!is_loopback(own)) return own;
  for (int other = 0; other < world_size; ++other) {
    const auto address = other == rank ? own : store.get_to_str(key(other));
    if (!is_loopback(address)) return own_address_towards(address, port);
  }
  return own;  // All ranks are on this host.
}

}  // namespace fulmen::detail
