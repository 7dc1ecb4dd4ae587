#include "core/distributed/key_value_table.h"

#include <charconv>
#include <utility>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

constexpr std::string_view kWhere = "The store";
constexpr std::size_t kEntryBytes = 160;  // Of the map and the allocator, for each key.

}  // namespace

std::size_t KeyValueTable::cost(std::string_view key, std::string_view value) {
  return kEntryBytes + key.size() + value.size();
}

void KeyValueTable::check_room(std::size_t more) const {
  if (more <= most_bytes_ && bytes_ <= most_bytes_ - more) return;
  fail<DistributedError>(kWhere,
                         "it is full: ",
                         bytes_,
                         " of ",
                         most_bytes_,
                         " bytes are in use by ",
                         values_.size(),
                         " keys, and ",
                         more,
                         " more were to come.");
}

const std::string* KeyValueTable::find(const std::string& key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

const std::string* KeyValueTable::first_missing(const std::vector<std::string>& keys) const {
  for (const auto& key : keys) {
    if (!values_.contains(key)) return &key;
  }
  return nullptr;
}

void KeyValueTable::set(const std::string& key, std::string value) {
  const auto it = values_.find(key);
  const auto before = it == values_.end() ? 0 : cost(key, it->second);
  const auto after = cost(key, value);
  if (after > before) check_room(after - before);
  values_[key] = std::move(value);
  bytes_ += after - before;
}

void KeyValueTable::set_all(const std::vector<std::string>& pairs) {
  if (pairs.size() % 2 != 0) fail<DistributedError>(kWhere, "a key came without its value.");
  std::size_t more = 0;  // Too much where keys are there already, so the limit is met early.
  for (std::size_t i = 0; i < pairs.size(); i += 2) more += cost(pairs[i], pairs[i + 1]);
  if (pairs.size() > 2) check_room(more);
  for (std::size_t i = 0; i < pairs.size(); i += 2) set(pairs[i], pairs[i + 1]);
}

void KeyValueTable::append(const std::string& key, const std::string& value) {
  const auto* old = find(key);
  if (old == nullptr) return set(key, value);
  check_room(value.size());
  values_[key] += value;
  bytes_ += value.size();
}

std::int64_t KeyValueTable::add(const std::string& key, std::int64_t amount) {
  std::int64_t sum = 0;
  if (const auto* old = find(key); old != nullptr) {
    const auto* end = old->data() + old->size();
    const auto [rest, error] = std::from_chars(old->data(), end, sum);
    if (error != std::errc() || rest != end)
      fail<DistributedError>(kWhere, "add needs a number at \"", key, "\", which holds none.");
  }
  if (__builtin_add_overflow(sum, amount, &sum))
    fail<DistributedError>(kWhere, "the sum at \"", key, "\" has no room in 64 bits.");
  set(key, std::to_string(sum));
  return sum;
}

std::string KeyValueTable::compare_set(const std::string& key,
                                       const std::string& expected,
                                       const std::string& desired) {
  const auto* old = find(key);
  if (old == nullptr && !expected.empty()) return expected;
  if (old != nullptr && *old != expected) return *old;
  set(key, desired);
  return desired;
}

bool KeyValueTable::erase(const std::string& key) {
  const auto it = values_.find(key);
  if (it == values_.end()) return false;
  bytes_ -= cost(it->first, it->second);
  values_.erase(it);
  return true;
}

std::size_t KeyValueTable::drop_prefix(const std::string& prefix) {
  std::size_t dropped = 0;
  auto it = values_.lower_bound(prefix);
  while (it != values_.end() && it->first.starts_with(prefix)) {
    bytes_ -= cost(it->first, it->second);
    it = values_.erase(it);
    ++dropped;
  }
  return dropped;
}

std::vector<std::string> KeyValueTable::keys() const {
  std::vector<std::string> keys;
  keys.reserve(values_.size());
  for (const auto& [key, value] : values_) keys.push_back(key);
  return keys;
}

}  // namespace fulmen::detail
