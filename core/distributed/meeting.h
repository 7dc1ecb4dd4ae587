#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/distributed/job_token.h"
#include "core/distributed/key_value_server.h"
#include "core/distributed/port_file.h"
#include "fulmen/core/distributed/environment.h"

namespace c10d {
class Store;
}

namespace fulmen::detail {

/// The store where the ranks of a job meet: served by rank 0, or by the agent that started the job.
/// It listens on loopback only if all ranks are on this host. With a token (JobToken::find), and
/// under fulmen-run (FULMEN_STORE=agent), it is a KeyValueServer, else c10d's TCPStore, which
/// anybody who reaches it can use.
class Meeting {
 public:
  /// Port 0 of rank 0 under self-launch: a free one. Throws DistributedError that names the address
  /// and the time limit, and ConfigError for ranks on several hosts that somebody started without a
  /// launcher and without a token.
  Meeting(const JobPlace& place, std::chrono::milliseconds timeout);

  const c10::intrusive_ptr<c10d::Store>& store() const { return store_; }
  bool all_ranks_local() const { return all_ranks_local_; }
  /// Where sockets of the groups listen on this host. Collective (reachable_address).
  std::string listen_address(const JobPlace& place) const;
  std::uint16_t port() const { return port_; }
  std::string address() const { return host_ + ":" + std::to_string(port_); }
  /// What tells the other ranks the port, if it had to be published; removed with the result.
  std::unique_ptr<PortFile> take_port_file() { return std::move(port_file_); }

 private:
  void open(const JobPlace& place, bool serves, std::chrono::milliseconds timeout);
  void open_closed_store(const JobPlace& place, bool serves, std::chrono::milliseconds timeout);
  void meet_through_agent(const JobPlace& place, std::chrono::milliseconds timeout);
  void serve_closed_store(std::uint16_t port, std::chrono::milliseconds timeout);
  void reach_closed_store(const std::string& host, std::chrono::milliseconds timeout);
  void serve_on_loopback(std::chrono::milliseconds timeout);
  void open_store(bool serves, std::chrono::milliseconds timeout);

  std::string host_;
  std::uint16_t port_ = 0;
  bool all_ranks_local_ = false;
  bool run_serves_ = false;  ///< fulmen-run.
  std::shared_ptr<const JobToken> token_;
  std::unique_ptr<KeyValueServer> server_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::unique_ptr<PortFile> port_file_;
};

}  // namespace fulmen::detail
