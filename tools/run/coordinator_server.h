#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/distributed/handshake.h"
#include "core/distributed/key_value_server.h"
#include "tools/run/connection.h"
#include "tools/run/coordinator.h"
#include "tools/run/run_options.h"
#include "tools/run/serving_place.h"
#include "tools/run/terminal.h"

namespace fulmen::detail {

/// The coordinator's sockets: takes connections, asks for the token, and carries messages. Serves
/// the store of the rounds, too.
class CoordinatorServer {
 public:
  CoordinatorServer(boost::asio::io_context& context,
                    Terminal& terminal,
                    const RunOptions& options,
                    std::shared_ptr<const JobToken> token,
                    ServingPlace place);
  ~CoordinatorServer();
  CoordinatorServer(const CoordinatorServer&) = delete;
  CoordinatorServer& operator=(const CoordinatorServer&) = delete;

  boost::asio::ip::tcp::endpoint address() const;
  /// Calls back when all agents know that the job has ended, or after 3 s. At once if it has not
  /// ended.
  void when_all_told(std::function<void()> then);

 private:
  void accept(std::size_t index);
  void accept_later(std::size_t index);
  void greet(boost::asio::ip::tcp::socket socket);
  void say_refused(const std::string& address, const std::string& reason);
  void add(boost::asio::ip::tcp::socket socket);
  void tick();
  void flush();
  RoundStore open_store();

  Terminal& terminal_;
  const RunOptions& options_;
  std::shared_ptr<const JobToken> token_;
  ServingPlace place_;
  std::unique_ptr<KeyValueServer> store_;  ///< Of the round.
  int unproven_ = 0;                       ///< Connections that shake hands.
  int refused_ = 0;
  std::map<NodeId, std::shared_ptr<Connection>> connections_;
  NodeId next_id_ = 1;
  boost::asio::steady_timer timer_;
  Coordinator coordinator_;
  std::function<void()> then_;
  Coordinator::Time told_deadline_;
};

}  // namespace fulmen::detail
