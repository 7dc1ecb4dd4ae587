#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fulmen::detail {

/// The keys and values of a KeyValueServer, with a limit on their memory: what would go over it
/// throws DistributedError and changes nothing. Not thread-safe.
class KeyValueTable {
 public:
  explicit KeyValueTable(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  /// Null if it is not there; valid until the table is changed.
  const std::string* find(const std::string& key) const;
  /// The first of these that is not there, or null.
  const std::string* first_missing(const std::vector<std::string>& keys) const;
  void set(const std::string& key, std::string value);
  /// Keys and values in turns; all or none.
  void set_all(const std::vector<std::string>& pairs);
  void append(const std::string& key, const std::string& value);
  /// The value is a number in text; 0 if it is not there. Throws if it is none, or too large.
  std::int64_t add(const std::string& key, std::int64_t amount);
  /// As c10d's TCPStore: sets if the value is the expected one, or nothing is there and nothing is
  /// expected. Returns what is there now, or `expected` if nothing is.
  std::string compare_set(const std::string& key,
                          const std::string& expected,
                          const std::string& desired);
  bool erase(const std::string& key);
  std::size_t drop_prefix(const std::string& prefix);
  std::vector<std::string> keys() const;
  std::size_t size() const { return values_.size(); }
  std::size_t bytes() const { return bytes_; }

 private:
  static std::size_t cost(std::string_view key, std::string_view value);
  void check_room(std::size_t more) const;

  std::map<std::string, std::string> values_;
  std::size_t most_bytes_;
  std::size_t bytes_ = 0;
};

}  // namespace fulmen::detail
