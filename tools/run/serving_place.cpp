#include "tools/run/serving_place.h"

#include <boost/asio/ip/v6_only.hpp>
#include <utility>

#include "fulmen/core/distributed/environment.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

tcp::acceptor listen_at(asio::io_context& context, const tcp::endpoint& where, error_code& error) {
  tcp::acceptor acceptor(context);
  acceptor.open(where.protocol(), error);
  if (error) return acceptor;
  // A job can be started again at once at the endpoint of one that has ended.
  acceptor.set_option(tcp::acceptor::reuse_address(true));
  if (where.address().is_v6())
    acceptor.set_option(asio::ip::v6_only(!where.address().is_unspecified()), error);
  acceptor.bind(where, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  return acceptor;
}

[[noreturn]] void fail_to_serve(const RunOptions& options, const error_code& error) {
  const bool taken = error == asio::error::address_in_use;
  fail<DistributedError>(
      "--rdzv-endpoint",
      "this node cannot serve ",
      options.endpoint.text(),
      ": ",
      error.message(),
      taken ? ". Another program has this port: give another one, on all nodes." : ".");
}

ServingPlace serve_one_node(asio::io_context& context, const RunOptions& options) {
  error_code error;
  for (const auto* host : {"127.0.0.1", "::1"}) {
    auto acceptor = listen_at(context, {asio::ip::make_address(host), 0}, error);
    if (error) continue;
    ServingPlace place{.own_host = host, .store_host = host};
    place.acceptors.push_back(std::move(acceptor));
    return place;
  }
  fail_to_serve(options, error);
}

ServingPlace serve_anywhere(asio::io_context& context, const RunOptions& options) {
  error_code error;
  for (const auto& version : {tcp::v6(), tcp::v4()}) {
    auto acceptor = listen_at(context, {version, options.endpoint.port}, error);
    if (!error) {
      ServingPlace place{.own_host = "127.0.0.1"};
      place.acceptors.push_back(std::move(acceptor));
      return place;
    }
    if (error == asio::error::address_in_use) break;
  }
  if (options.node_rank || error != asio::error::address_in_use) fail_to_serve(options, error);
  return {};
}

}  // namespace

ServingPlace try_to_serve(asio::io_context& context, const RunOptions& options) {
  if (options.max_nodes == 1) return serve_one_node(context, options);
  if (options.node_rank.value_or(0) != 0) return {};
  const auto& endpoint = options.endpoint;
  error_code error;
  tcp::resolver resolver(context);
  const auto found = resolver.resolve(endpoint.host, std::to_string(endpoint.port), error);
  if (error && options.node_rank) fail_to_serve(options, error);
  if (error) return {};  // Whoever tries to connect says so.
  ServingPlace place{.own_host = endpoint.host, .store_host = endpoint.host};
  bool all_loopback = true;
  for (const auto& entry : found) {
    auto acceptor = listen_at(context, entry.endpoint(), error);
    if (error == asio::error::address_in_use) {
      if (options.node_rank) fail_to_serve(options, error);
      return {};  // Another agent of this host, as a rule.
    }
    if (error) continue;  // Not an address of this host.
    all_loopback = all_loopback && entry.endpoint().address().is_loopback();
    place.acceptors.push_back(std::move(acceptor));
  }
  if (place.acceptors.empty() && !options.node_rank) return {};
  // The name of a host is often one of its loopback addresses for itself alone.
  const bool unreachable = all_loopback && !is_loopback(endpoint.host);
  if (!unreachable && place.acceptors.empty()) fail_to_serve(options, error);
  if (!unreachable) return place;
  place.acceptors.clear();
  return serve_anywhere(context, options);
}

}  // namespace fulmen::detail
