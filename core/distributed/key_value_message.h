#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fulmen::detail {

// What KeyValueStore and KeyValueServer say to each other after the handshake: requests and
// responses in turns, each a length of 4 bytes and as many bytes: a code and its fields. A text is
// its length in 4 bytes and its bytes, a number 8 bytes, texts a number and as many texts; the
// highest byte first. No torch.

enum class StoreRequest : std::uint8_t {
  kSet = 1,     ///< Texts: key, value, key, value, ...
  kGet,         ///< Milliseconds to wait, keys. Response: values.
  kWait,        ///< Milliseconds to wait, keys.
  kCheck,       ///< Keys. Response: whether all are there, 0 or 1.
  kAdd,         ///< Key, number. Response: the sum.
  kCompareSet,  ///< Key, expected, desired. Response: the value that is there now.
  kAppend,      ///< Key, value.
  kDelete,      ///< Key. Response: how many were there.
  kNumKeys,     ///< Response: number.
  kListKeys,    ///< Response: texts.
  kDropPrefix,  ///< Text. Response: how many keys began with it.
};

enum class StoreResponse : std::uint8_t {
  kDone = 1,
  kTimedOut,  ///< The first key that was not there.
  kRefused,   ///< Why.
};

inline constexpr std::size_t kLengthBytes = 4;
inline constexpr std::size_t kMostStoreMessageBytes = std::size_t{16} << 20;
inline constexpr std::size_t kMostStoreTexts = std::size_t{1} << 17;  ///< Of one list.

/// Throws DistributedError for a text of 4 GiB or more, and a longer list.
class StoreMessageWriter {
 public:
  template <class Code>
  explicit StoreMessageWriter(Code code) : bytes_(kLengthBytes, '\0') {
    bytes_.push_back(static_cast<char>(code));
  }
  StoreMessageWriter& number(std::int64_t value);
  StoreMessageWriter& text(std::string_view value);
  StoreMessageWriter& texts(const std::vector<std::string>& values);
  std::size_t size() const { return bytes_.size() - kLengthBytes; }
  /// With its length.
  std::string take() &&;

 private:
  std::string bytes_;
};

/// Every function throws DistributedError if the message does not hold what is asked for.
class StoreMessageReader {
 public:
  /// Without its length; the bytes must outlive this.
  explicit StoreMessageReader(std::string_view bytes) : rest_(bytes) {}
  std::uint8_t code();
  std::int64_t number();
  std::string_view text();
  std::vector<std::string> texts();
  void end() const;

 private:
  std::string_view take(std::size_t size);
  std::string_view rest_;
};

std::size_t decode_length(const std::uint8_t* bytes);

}  // namespace fulmen::detail
