#include "core/distributed/store_probe.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace fulmen::detail {

namespace asio = boost::asio;

namespace {

c10::intrusive_ptr<c10d::Store> without_prefix(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  return prefixed == nullptr ? store : prefixed->getUnderlyingNonPrefixStore();
}

}  // namespace

bool is_in_process(const c10::intrusive_ptr<c10d::Store>& store) {
  return dynamic_cast<const c10d::HashStore*>(without_prefix(store).get()) != nullptr;
}

std::string find_store_failure(const c10::intrusive_ptr<c10d::Store>& store,
                               std::chrono::milliseconds limit) {
  const auto inner = without_prefix(store);
  const auto* served = dynamic_cast<const c10d::TCPStore*>(inner.get());
  if (served == nullptr) return {};
  asio::io_context context;
  asio::ip::tcp::resolver resolver(context);
  asio::ip::tcp::socket socket(context);
  boost::system::error_code failure;
  const auto port = std::to_string(served->getPort());
  const auto addresses = resolver.resolve(served->getHost(), port, failure);
  if (failure) return failure.message();
  failure = asio::error::timed_out;
  asio::async_connect(
      socket, addresses, [&](boost::system::error_code error, const auto&) { failure = error; });
  context.run_for(limit);
  return failure ? failure.message() : "";
}

}  // namespace fulmen::detail
