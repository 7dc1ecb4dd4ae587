#include "core/distributed/meeting.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/distributed/gloo_group.h"
#include "core/distributed/key_value_store.h"
#include "core/distributed/own_address.h"
#include "fulmen/core/support/error.h"
#include "fulmen/core/support/log.h"

namespace fulmen::detail {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr const char* kLoopback = "127.0.0.1";

/// A socket that only this host reaches; port 0: a free one. The store listens on all interfaces
/// unless it is given one.
int bind_to_loopback(std::uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int yes = 1;
  // A job can be started again at once on the port of one that has ended.
  if (fd >= 0) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(fd, SOMAXCONN) != 0) {
    const int number = errno;
    if (fd >= 0) ::close(fd);
    fail<DistributedError>("The job",
                           "rank 0 cannot listen on ",
                           kLoopback,
                           ":",
                           port,
                           ": ",
                           std::generic_category().message(number),
                           number == EADDRINUSE ? ". Set another MASTER_PORT." : ".");
  }
  return fd;
}

std::uint16_t port_of(int fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

/// Why nobody can be reached there within the limit; empty if somebody can.
std::string try_to_reach(const std::string& host, std::uint16_t port, milliseconds limit) {
  asio::io_context context;
  asio::ip::tcp::resolver resolver(context);
  asio::ip::tcp::socket socket(context);
  boost::system::error_code failure;
  const auto addresses = resolver.resolve(host, std::to_string(port), failure);
  if (failure) return failure.message();
  failure = asio::error::timed_out;
  asio::async_connect(
      socket, addresses, [&](boost::system::error_code error, const auto&) { failure = error; });
  context.run_for(limit);
  return failure ? failure.message() : "";
}

/// c10d's own attempts print stack traces and take several times the limit.
void wait_until_reachable(const std::string& host, std::uint16_t port, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  auto pause = milliseconds(5);
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
    const auto reason = try_to_reach(host, port, std::max(left, milliseconds(100)));
    if (reason.empty()) return;
    if (Clock::now() + pause >= deadline) throw std::runtime_error(reason);
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(200));
  }
}

c10d::TCPStoreOptions store_options(std::uint16_t port, bool serves, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = serves;
  options.waitWorkers = false;  // World::join() waits, and can say who did not come.
  options.timeout = std::max(timeout, milliseconds(1000));  // It counts whole seconds to connect.
  return options;
}

std::string brief(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

std::string variable(const std::string& name) {
  return process_environment()(name).value_or("");
}

/// Whether fulmen-run serves the store.
bool is_served_by_run() {
  const auto value = variable("FULMEN_STORE");
  if (value.empty() || value == "agent") return !value.empty();
  fail<ConfigError>("The job", "FULMEN_STORE must be \"agent\" or unset, got \"", value, "\".");
}

/// Ranks on several hosts whose store anybody can use: as of old under launchers that know no other
/// way, and an error where Fulmen's user set all variables and can set one more.
void check_open_store(const JobPlace& place) {
  const auto where = place.master_addr + ":" + std::to_string(place.master_port);
  if (place.method == LaunchMethod::kVariables) {
    fail<ConfigError>(
        "The job",
        "its ranks meet at ",
        where,
        ", which is not loopback, and there is no token, so everybody who reaches it ",
        "could join. ",
        kTokenRemedy,
        " If all ranks are on this host, set MASTER_ADDR=127.0.0.1 instead.");
  }
  if (place.topology.rank != 0) return;
  Log().warning("Job: its ranks are on several hosts and there is no token, so everybody who ",
                "reaches ",
                where,
                " can join or disturb it. ",
                kTokenRemedy);
}

}  // namespace

Meeting::Meeting(const JobPlace& place, milliseconds timeout)
    : host_(place.master_addr),
      port_(place.master_port),
      run_serves_(is_served_by_run()),
      token_(JobToken::find(process_environment())) {
  const auto& topology = place.topology;
  const bool agent_serves = place.agent_serves_store || run_serves_;
  const bool serves = topology.rank == 0 && !agent_serves;
  const bool same_host = place.hosts_known && topology.local_world_size == topology.world_size;
  all_ranks_local_ = same_host || is_loopback(host_);
  if (all_ranks_local_ && !agent_serves) host_ = kLoopback;
  if (place.master_addr.empty()) {  // Open MPI on one host: nobody named a port.
    port_file_ = std::make_unique<PortFile>(place.job_id);
    if (!serves) port_ = port_file_->wait(timeout);
  }
  try {
    open(place, serves, timeout);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail<DistributedError>("The job",
                           "rank ",
                           topology.rank,
                           serves ? " cannot serve the rendezvous at " : " cannot reach rank 0 at ",
                           address(),
                           " within ",
                           static_cast<double>(timeout.count()) / 1000.0,
                           " s: ",
                           brief(error));
  }
  if (port_file_ != nullptr && serves) port_file_->publish(port_);
}

std::string Meeting::listen_address(const JobPlace& place) const {
  if (all_ranks_local_) return kLoopback;
  if (!variable(kInterfaceVariable).empty()) return "";
  const auto& topology = place.topology;
  try {
    return reachable_address(
        host_, port_, topology.rank, topology.world_size, "fulmen/" + place.job_id, *store_);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail<DistributedError>("The job",
                           "rank ",
                           topology.rank,
                           " does not know at which address of this host the others reach it: ",
                           brief(error),
                           ". Set ",
                           kInterfaceVariable,
                           " to the name of a network interface.");
  }
}

void Meeting::open(const JobPlace& place, bool serves, milliseconds timeout) {
  if (run_serves_ || token_ != nullptr) return open_closed_store(place, serves, timeout);
  if (!all_ranks_local_) check_open_store(place);
  if (serves && all_ranks_local_) return serve_on_loopback(timeout);
  open_store(serves, timeout);
}

void Meeting::open_closed_store(const JobPlace& place, bool serves, milliseconds timeout) {
  if (serves) {
    serve_closed_store(port_, timeout);
  } else if (place.agent_serves_store && !run_serves_) {
    meet_through_agent(place, timeout);
  } else {
    reach_closed_store(host_, timeout);
  }
  // Of this start of the ranks, so that those of an earlier one are not met.
  if (const auto prefix = variable("FULMEN_STORE_PREFIX"); run_serves_ && !prefix.empty())
    store_ = c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store_));
}

/// An agent that knows no tokens serves a store of c10d. Nothing but the place of the closed store
/// is looked up there: who gives a wrong one cannot show the token.
void Meeting::meet_through_agent(const JobPlace& place, milliseconds timeout) {
  open_store(false, timeout);
  const auto open = std::move(store_);
  const auto key = "fulmen/" + place.job_id + "/closed store";
  if (place.topology.rank == 0) {
    // A name that means loopback here is known to the others by another address.
    const auto own = all_ranks_local_ ? kLoopback : own_address_towards(host_, port_);
    serve_closed_store(0, timeout);
    open->set(key, std::to_string(port_) + " " + (is_loopback(own) ? host_ : own));
    return;
  }
  const auto found = open->get_to_str(key);
  port_ = static_cast<std::uint16_t>(std::strtoul(found.c_str(), nullptr, 10));
  const auto space = found.find(' ');
  reach_closed_store(space == std::string::npos ? host_ : found.substr(space + 1), timeout);
}

void Meeting::serve_closed_store(std::uint16_t port, milliseconds timeout) {
  server_ = std::make_unique<KeyValueServer>(KeyValueServerOptions{
      .host = all_ranks_local_ ? kLoopback : "", .port = port, .token = token_});
  port_ = server_->port();
  reach_closed_store(kLoopback, timeout);
}

void Meeting::reach_closed_store(const std::string& host, milliseconds timeout) {
  store_ = c10::make_intrusive<KeyValueStore>(
      KeyValueStoreOptions{.host = host, .port = port_, .token = token_, .timeout = timeout});
}

void Meeting::serve_on_loopback(milliseconds timeout) {
  auto options = store_options(port_, true, timeout);
  options.masterListenFd = bind_to_loopback(port_);
  options.port = port_ = port_of(*options.masterListenFd);
  wait_until_reachable(kLoopback, port_, timeout);
  store_ = c10::make_intrusive<c10d::TCPStore>(kLoopback, options);
}

void Meeting::open_store(bool serves, milliseconds timeout) {
  if (!serves) wait_until_reachable(host_, port_, timeout);
  store_ = c10::make_intrusive<c10d::TCPStore>(host_, store_options(port_, serves, timeout));
}

}  // namespace fulmen::detail
