#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <string>
#include <vector>

#include "tools/run/run_options.h"

namespace fulmen::detail {

/// Where this node serves the endpoint.
struct ServingPlace {
  std::vector<boost::asio::ip::tcp::acceptor> acceptors = {};  ///< Empty: another node serves it.
  /// Where ranks of this node reach what is served here.
  std::string own_host = {};
  std::string store_host = {};  ///< For the store to listen at; empty: all interfaces.
};

/// Listens at the endpoint if it is this node's to serve: one node, --node-rank 0, or no
/// --node-rank and the endpoint's host is this one and its port is free. Throws DistributedError if
/// this node must serve it and cannot.
ServingPlace try_to_serve(boost::asio::io_context& context, const RunOptions& options);

}  // namespace fulmen::detail
