#pragma once

#include <array>
#include <cstdint>

namespace fulmen {

enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kSend,
  kReceive,
  kBarrier,
};
inline constexpr int kCollectiveKinds = 8;

/// How often a rank called each collective on groups of more than one rank, and with how many
/// bytes of its own (those of the tensor it gave; of the output for a gather).
class CommCounters {
 public:
  struct Count {
    std::int64_t calls = 0;
    std::int64_t bytes = 0;
  };
  void add(CollectiveKind kind, std::int64_t bytes) {
    auto& count = counts_[static_cast<std::size_t>(kind)];
    ++count.calls;
    count.bytes += bytes;
  }
  Count of(CollectiveKind kind) const { return counts_[static_cast<std::size_t>(kind)]; }
  Count total() const {
    Count sum;
    for (const auto& count : counts_) {
      sum.calls += count.calls;
      sum.bytes += count.bytes;
    }
    return sum;
  }
  void reset() { counts_ = {}; }

 private:
  std::array<Count, kCollectiveKinds> counts_ = {};
};

}  // namespace fulmen
