#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "core/distributed/job_token.h"

namespace fulmen::detail {

struct KeyValueStoreOptions {
  std::string host;
  std::uint16_t port = 0;
  std::shared_ptr<const JobToken> token = nullptr;  ///< Null: the server must have none either.
  /// For the first connection, which is tried again until somebody listens, and of waits.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

class StorePool;

/// c10d's store with a KeyValueServer behind it. From any thread: each call that is under way has a
/// connection of its own, so a wait holds nobody up. Every call has a time limit, and throws
/// DistributedError that names the address, and the key if there is one. c10d's
/// kNoTimeout counts as 10 minutes. Queues are not offered.
class KeyValueStore : public c10d::Store {
 public:
  /// Throws DistributedError if the server is not reached in time, or at once if it has another
  /// token.
  explicit KeyValueStore(KeyValueStoreOptions options);
  /// With connections that are there; for clone().
  explicit KeyValueStore(std::shared_ptr<StorePool> pool);
  ~KeyValueStore() override;

  std::string address() const;

  using Store::barrier;
  using Store::compareSet;
  using Store::set;
  /// Another object for the same server, with its own connections and timeout. Tries to connect
  /// once.
  c10::intrusive_ptr<Store> clone() override;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override;
  std::vector<std::uint8_t> compareSet(const std::string& key,
                                       const std::vector<std::uint8_t>& expected,
                                       const std::vector<std::uint8_t>& desired) override;
  /// Waits for the key.
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<std::uint8_t>& value) override;
  /// Waits for all keys.
  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<std::uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }
  std::vector<std::string> listKeys() override;
  const std::chrono::milliseconds& getTimeout() const noexcept override;
  void setTimeout(const std::chrono::milliseconds& timeout) override;

  /// Forgets the keys that begin so, and returns how many there were.
  std::int64_t drop_prefix(const std::string& prefix);

 private:
  std::shared_ptr<StorePool> pool_;
};

}  // namespace fulmen::detail
