#include "core/distributed/key_value_message.h"

#include <limits>
#include <utility>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

constexpr std::size_t kNumberBytes = 8;

std::uint64_t decode(std::string_view bytes) {
  std::uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<std::uint8_t>(byte);
  return value;
}

void encode(std::uint64_t value, std::size_t size, char* bytes) {
  for (std::size_t i = size; i-- > 0; value >>= 8) bytes[i] = static_cast<char>(value & 0xff);
}

void append(std::string& bytes, std::uint64_t value, std::size_t size) {
  bytes.resize(bytes.size() + size);
  encode(value, size, bytes.data() + bytes.size() - size);
}

[[noreturn]] void fail_message(const char* problem) {
  fail<DistributedError>("The store", "a message cannot be read: ", problem);
}

}  // namespace

StoreMessageWriter& StoreMessageWriter::number(std::int64_t value) {
  append(bytes_, static_cast<std::uint64_t>(value), kNumberBytes);
  return *this;
}

StoreMessageWriter& StoreMessageWriter::text(std::string_view value) {
  if (value.size() > std::numeric_limits<std::uint32_t>::max())
    fail<DistributedError>("The store", "a text of ", value.size(), " bytes is too long.");
  append(bytes_, value.size(), kLengthBytes);
  bytes_ += value;
  return *this;
}

StoreMessageWriter& StoreMessageWriter::texts(const std::vector<std::string>& values) {
  if (values.size() > kMostStoreTexts) {
    fail<DistributedError>("The store",
                           "a list of ",
                           values.size(),
                           " texts is too long; at most ",
                           kMostStoreTexts,
                           " go into a message.");
  }
  number(static_cast<std::int64_t>(values.size()));
  for (const auto& value : values) text(value);
  return *this;
}

std::string StoreMessageWriter::take() && {
  if (size() > std::numeric_limits<std::uint32_t>::max())
    fail<DistributedError>("The store", "a message of ", size(), " bytes is too long.");
  encode(size(), kLengthBytes, bytes_.data());
  return std::move(bytes_);
}

std::string_view StoreMessageReader::take(std::size_t size) {
  if (rest_.size() < size) fail_message("it ends too early.");
  const auto taken = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return taken;
}

std::uint8_t StoreMessageReader::code() {
  return static_cast<std::uint8_t>(take(1).front());
}

std::int64_t StoreMessageReader::number() {
  return static_cast<std::int64_t>(decode(take(kNumberBytes)));
}

std::string_view StoreMessageReader::text() {
  return take(decode(take(kLengthBytes)));
}

std::vector<std::string> StoreMessageReader::texts() {
  const auto count = static_cast<std::uint64_t>(number());
  if (count > kMostStoreTexts || count > rest_.size() / kLengthBytes)
    fail_message("it says more texts than it can hold.");
  std::vector<std::string> values;
  values.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) values.emplace_back(text());
  return values;
}

void StoreMessageReader::end() const {
  if (!rest_.empty()) fail_message("there is more in it than there should be.");
}

std::size_t decode_length(const std::uint8_t* bytes) {
  return decode({reinterpret_cast<const char*>(bytes), kLengthBytes});
}

}  // namespace fulmen::detail
