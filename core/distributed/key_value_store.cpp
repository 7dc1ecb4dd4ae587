#include "core/distributed/key_value_store.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "core/distributed/key_value_message.h"
#include "core/distributed/store_connection.h"
#include "core/distributed/store_listener.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

using std::chrono::milliseconds;
using Clock = StoreConnection::Clock;

constexpr milliseconds kLongest = std::chrono::minutes(10);
constexpr milliseconds kLeastToConnect = std::chrono::seconds(2);

std::string as_text(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

std::vector<std::uint8_t> as_bytes(std::string_view text) {
  return {text.begin(), text.end()};
}

std::string seconds(milliseconds time) {
  std::ostringstream text;
  text << static_cast<double>(time.count()) / 1000.0 << " s";
  return text.str();
}

/// For messages: the key, or how many there are.
std::string name_of(const std::vector<std::string>& keys) {
  if (keys.empty()) return "no key";
  if (keys.size() == 1) return "\"" + keys.front() + "\"";
  return "\"" + keys.front() + "\" and " + std::to_string(keys.size() - 1) + " more keys";
}

}  // namespace

/// The connections of a store that are not in use, and what is needed to make more.
class StorePool {
 public:
  explicit StorePool(KeyValueStoreOptions options) : options_(std::move(options)) {
    set_timeout(options_.timeout);
  }

  /// Tries again and again until somebody listens.
  void connect_in_time() { give_back(reach_in_time()); }
  void connect_now() { give_back(connect_within(timeout())); }

  const KeyValueStoreOptions& options() const { return options_; }
  std::string address() const { return host_and_port(options_.host, options_.port); }
  milliseconds timeout() const { return milliseconds(timeout_.load()); }
  void set_timeout(milliseconds timeout) {
    timeout_ = timeout.count() > 0 ? timeout.count() : kLongest.count();
  }

  /// The response's fields, in `response`. `what` is for messages: "set of \"key\"".
  StoreMessageReader call(const std::string& what,
                          StoreMessageWriter request,
                          milliseconds limit,
                          std::string& response) {
    if (request.size() > kMostStoreMessageBytes) {
      fail_call(what,
                "the message would have " + std::to_string(request.size()) + " bytes, more than " +
                    std::to_string(kMostStoreMessageBytes) + ".");
    }
    try {
      auto connection = take(limit);
      // A wait ends on the server, which then says so; this is for one that does not answer.
      const auto grace = std::clamp(limit / 4, milliseconds(500), milliseconds(5000));
      response = connection->exchange(std::move(request).take(), Clock::now() + limit + grace);
      give_back(std::move(connection));
    } catch (const Error& error) {
      fail_call(what, error.what());
    }
    StoreMessageReader reader(response);
    const auto code = static_cast<StoreResponse>(reader.code());
    if (code == StoreResponse::kDone) return reader;
    const std::string text(reader.text());
    if (code == StoreResponse::kRefused) fail_call(what, text);
    fail_call(what, "\"" + text + "\" was not set within " + seconds(limit) + ".");
  }

 private:
  using Connection = std::unique_ptr<StoreConnection>;

  [[noreturn]] void fail_call(const std::string& what, const std::string& why) const {
    fail<DistributedError>("The store at " + address(), what, " failed: ", why);
  }

  Connection connect_within(milliseconds limit) const {
    try {
      return connect(Clock::now() + std::max(limit, kLeastToConnect));
    } catch (const DistributedError& error) {
      fail_call("to connect", error.what());
    }
  }

  Connection connect(Clock::time_point deadline) const {
    return std::make_unique<StoreConnection>(
        options_.host, options_.port, options_.token, deadline);
  }

  Connection reach_in_time() const {
    const auto deadline = Clock::now() + timeout();
    const auto where = "The store at " + address();
    for (auto pause = milliseconds(5);; pause = std::min(pause * 2, milliseconds(200))) {
      try {
        return connect(deadline);
      } catch (const StoreRefusal& error) {
        fail<DistributedError>(where, "this process may not use it: ", error.what());
      } catch (const DistributedError& error) {
        if (Clock::now() + pause >= deadline) {
          fail<DistributedError>(
              where, "cannot be reached within ", seconds(timeout()), ": ", error.what());
        }
      }
      std::this_thread::sleep_for(pause);
    }
  }

  Connection take(milliseconds limit) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        auto connection = std::move(idle_.back());
        idle_.pop_back();
        return connection;
      }
    }
    return connect(Clock::now() + std::max(limit, kLeastToConnect));
  }

  void give_back(Connection connection) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(connection));
  }

  const KeyValueStoreOptions options_;
  std::atomic<milliseconds::rep> timeout_{0};
  std::mutex mutex_;
  std::vector<Connection> idle_;
};

KeyValueStore::KeyValueStore(KeyValueStoreOptions options)
    : Store(options.timeout), pool_(std::make_shared<StorePool>(std::move(options))) {
  pool_->connect_in_time();
}
KeyValueStore::KeyValueStore(std::shared_ptr<StorePool> pool)
    : Store(pool->timeout()), pool_(std::move(pool)) {}
KeyValueStore::~KeyValueStore() = default;

std::string KeyValueStore::address() const {
  return pool_->address();
}

c10::intrusive_ptr<c10d::Store> KeyValueStore::clone() {
  auto options = pool_->options();
  options.timeout = pool_->timeout();
  auto pool = std::make_shared<StorePool>(std::move(options));
  pool->connect_now();
  return c10::make_intrusive<KeyValueStore>(std::move(pool));
}

const milliseconds& KeyValueStore::getTimeout() const noexcept {
  return timeout_;
}

void KeyValueStore::setTimeout(const milliseconds& timeout) {
  timeout_ = timeout;
  pool_->set_timeout(timeout);
}

void KeyValueStore::set(const std::string& key, const std::vector<std::uint8_t>& value) {
  multiSet({key}, {value});
}

void KeyValueStore::multiSet(const std::vector<std::string>& keys,
                             const std::vector<std::vector<std::uint8_t>>& values) {
  if (keys.size() != values.size()) {
    fail<DistributedError>("The store at " + address(),
                           "each key needs a value, got ",
                           keys.size(),
                           " keys and ",
                           values.size(),
                           " values.");
  }
  std::vector<std::string> pairs;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    pairs.push_back(keys[i]);
    pairs.push_back(as_text(values[i]));
  }
  std::string response;
  StoreMessageWriter request(StoreRequest::kSet);
  request.texts(pairs);
  pool_->call("set of " + name_of(keys), std::move(request), pool_->timeout(), response);
}

std::vector<std::uint8_t> KeyValueStore::compareSet(const std::string& key,
                                                    const std::vector<std::uint8_t>& expected,
                                                    const std::vector<std::uint8_t>& desired) {
  std::string response;
  StoreMessageWriter request(StoreRequest::kCompareSet);
  request.text(key).text(as_text(expected)).text(as_text(desired));
  const auto what = "compareSet of " + name_of({key});
  return as_bytes(pool_->call(what, std::move(request), pool_->timeout(), response).text());
}

std::vector<std::uint8_t> KeyValueStore::get(const std::string& key) {
  return multiGet({key}).front();
}

std::vector<std::vector<std::uint8_t>> KeyValueStore::multiGet(
    const std::vector<std::string>& keys) {
  std::string response;
  const auto limit = pool_->timeout();
  StoreMessageWriter request(StoreRequest::kGet);
  request.number(limit.count()).texts(keys);
  auto reader = pool_->call("get of " + name_of(keys), std::move(request), limit, response);
  std::vector<std::vector<std::uint8_t>> values;
  for (const auto& value : reader.texts()) values.push_back(as_bytes(value));
  if (values.size() != keys.size())
    fail<DistributedError>("The store at " + address(), "it returned not all of the values.");
  return values;
}

std::int64_t KeyValueStore::add(const std::string& key, std::int64_t amount) {
  std::string response;
  StoreMessageWriter request(StoreRequest::kAdd);
  request.text(key).number(amount);
  const auto what = "add to " + name_of({key});
  return pool_->call(what, std::move(request), pool_->timeout(), response).number();
}

bool KeyValueStore::deleteKey(const std::string& key) {
  std::string response;
  StoreMessageWriter request(StoreRequest::kDelete);
  request.text(key);
  const auto what = "deleteKey of " + name_of({key});
  return pool_->call(what, std::move(request), pool_->timeout(), response).number() != 0;
}

bool KeyValueStore::check(const std::vector<std::string>& keys) {
  std::string response;
  StoreMessageWriter request(StoreRequest::kCheck);
  request.texts(keys);
  const auto what = "check of " + name_of(keys);
  return pool_->call(what, std::move(request), pool_->timeout(), response).number() != 0;
}

std::int64_t KeyValueStore::getNumKeys() {
  std::string response;
  StoreMessageWriter request(StoreRequest::kNumKeys);
  return pool_->call("getNumKeys", std::move(request), pool_->timeout(), response).number();
}

void KeyValueStore::wait(const std::vector<std::string>& keys) {
  wait(keys, pool_->timeout());
}

void KeyValueStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  std::string response;
  const auto limit = timeout.count() > 0 ? timeout : kLongest;
  StoreMessageWriter request(StoreRequest::kWait);
  request.number(limit.count()).texts(keys);
  pool_->call("wait for " + name_of(keys), std::move(request), limit, response);
}

void KeyValueStore::append(const std::string& key, const std::vector<std::uint8_t>& value) {
  std::string response;
  StoreMessageWriter request(StoreRequest::kAppend);
  request.text(key).text(as_text(value));
  pool_->call("append to " + name_of({key}), std::move(request), pool_->timeout(), response);
}

std::vector<std::string> KeyValueStore::listKeys() {
  std::string response;
  StoreMessageWriter request(StoreRequest::kListKeys);
  return pool_->call("listKeys", std::move(request), pool_->timeout(), response).texts();
}

std::int64_t KeyValueStore::drop_prefix(const std::string& prefix) {
  std::string response;
  StoreMessageWriter request(StoreRequest::kDropPrefix);
  request.text(prefix);
  const auto what = "drop_prefix of " + name_of({prefix});
  return pool_->call(what, std::move(request), pool_->timeout(), response).number();
}

}  // namespace fulmen::detail
