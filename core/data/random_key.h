#pragma once

#include <cstdint>

namespace fulmen::detail {

// What a stream of random numbers is for: streams of one seed must not meet.
enum class RandomPurpose : std::uint64_t {
  kShuffle = 1,
  kSplit = 2,
  kSample = 3,
  kBatch = 4,
  kRank = 5
};

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection in which every input bit
// reaches every output bit.
inline std::uint64_t scramble(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31U);
}

template <class... Parts>
std::uint64_t random_key(RandomPurpose purpose, Parts... parts) {
  auto key = scramble(static_cast<std::uint64_t>(purpose));
  ((key = scramble(key ^ static_cast<std::uint64_t>(parts))), ...);
  return key;
}

}  // namespace fulmen::detail
