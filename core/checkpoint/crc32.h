#pragma once

#include <boost/crc.hpp>
#include <cstddef>
#include <cstdint>

namespace fulmen::detail {

/// CRC-32 as zip and PNG have it.
class Crc32 {
 public:
  void add(const void* data, std::size_t size) { crc_.process_bytes(data, size); }
  std::uint32_t value() const { return static_cast<std::uint32_t>(crc_.checksum()); }

 private:
  boost::crc_32_type crc_;
};

inline std::uint32_t crc32_of(const void* data, std::size_t size) {
  Crc32 crc;
  crc.add(data, size);
  return crc.value();
}

}  // namespace fulmen::detail
