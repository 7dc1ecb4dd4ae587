#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "fulmen/core/distributed/collectives.h"

namespace fulmen::detail {

/// With what a collective was called. It has no memory elsewhere, so that it can be noted in each
/// step: long shapes and labels are cut.
struct CollectiveRecord {
  static constexpr std::size_t kMostDims = 6;
  static constexpr std::size_t kMostLabel = 47;

  std::int64_t sequence = 0;  ///< In the group, from 1; 0 for point to point.
  std::int64_t bytes = 0;
  std::array<std::int64_t, kMostDims> shape = {};
  std::int32_t root = -1;  ///< Of a broadcast, or the peer, as a rank of the world; -1: none.
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::int8_t reduce_op = -1;  ///< A ReduceOp; -1: none.
  std::int8_t dtype = -1;      ///< An at::ScalarType; -1: no tensor.
  std::int8_t dims = 0;
  std::array<char, kMostLabel + 1> label = {};

  void set_tensor(const at::Tensor& tensor);
  void set_label(std::string_view text);

  bool is_point_to_point() const {
    return kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive;
  }
  /// For example all_reduce, send to rank 3, barrier "start".
  std::string name() const;
  /// What name() leaves out, for example: sum float32 (8, 4) "layer.weight". May be empty.
  std::string details() const;
  /// Both.
  std::string describe() const;
};
static_assert(std::is_trivially_copyable_v<CollectiveRecord>);
static_assert(sizeof(CollectiveRecord) % sizeof(std::uint64_t) == 0);

/// How a wait for a collective ended.
enum class CollectiveFailure : std::int8_t { kNone, kTimedOut, kBroken };

/// What this rank has called on one group. Written by the thread that calls collectives, read by
/// the watch at any time: nothing but plain atomics.
class GroupLog {
 public:
  struct State {
    std::int64_t started = 0;   ///< Number of the last collective that was called.
    std::int64_t finished = 0;  ///< Of the last one whose result was waited for.
    /// Of the one that is waited for, or was when it failed; kPointToPoint; 0: none.
    std::int64_t waiting = 0;
    CollectiveFailure failure = CollectiveFailure::kNone;  ///< The first one of the group.
    CollectiveRecord last = {};                            ///< Of the last call.
  };
  static constexpr std::int64_t kPointToPoint = -1;

  explicit GroupLog(std::string key, std::string name)
      : key_(std::move(key)), name_(std::move(name)) {}
  const std::string& key() const { return key_; }  ///< No other group of the world has it.
  const std::string& name() const { return name_; }

  /// Gives a collective its number.
  void start(CollectiveRecord& record);
  void wait(const CollectiveRecord& record) {
    set(waiting_, record.sequence == 0 ? kPointToPoint : record.sequence);
    count_event();
  }
  void finish(const CollectiveRecord& record) {
    set(waiting_, 0);
    if (record.sequence > get(finished_)) set(finished_, record.sequence);
    count_event();
  }
  void fail(CollectiveFailure failure) {
    if (this->failure() == CollectiveFailure::kNone) failure_.store(failure);
    count_event();
  }
  CollectiveFailure failure() const { return failure_.load(std::memory_order_relaxed); }
  /// Grows with everything that happens.
  std::int64_t events() const { return get(events_); }
  State read() const;

 private:
  using Number = std::atomic<std::int64_t>;
  static constexpr std::size_t kWords = sizeof(CollectiveRecord) / sizeof(std::uint64_t);
  // There is one writer, so what counts up needs no locked instruction.
  static void set(Number& number, std::int64_t value) {
    number.store(value, std::memory_order_relaxed);
  }
  static std::int64_t get(const Number& number) { return number.load(std::memory_order_relaxed); }
  void count_event() { set(events_, get(events_) + 1); }

  std::string key_;
  std::string name_;
  Number events_ = 0;
  Number started_ = 0;
  Number finished_ = 0;
  Number waiting_ = 0;
  std::atomic<CollectiveFailure> failure_ = CollectiveFailure::kNone;
  Number version_ = 0;  // Odd while the words are written.
  std::array<std::atomic<std::uint64_t>, kWords> words_ = {};
};

}  // namespace fulmen::detail
