#pragma once

#include <ATen/core/Generator.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <typeinfo>
#include <vector>

#include "fulmen/core/data/batch.h"

namespace fulmen::detail {

/// One batch that a DataLoader wants, with the random numbers that belong to it. One per thread,
/// reused.
class BatchRequest {
 public:
  BatchRequest(std::uint64_t seed, std::int64_t epoch, const std::atomic<bool>& cancelled)
      : seed_(seed), epoch_(epoch), cancelled_(&cancelled) {}

  std::span<const std::int64_t> indices() const { return indices_; }
  /// True when nobody waits for the batch any more.
  bool cancelled() const { return cancelled_->load(std::memory_order_relaxed); }
  /// Seeded by (seed, epoch, index): the same numbers on any thread. Valid until the next call of
  /// either.
  at::Generator& sample_generator(std::int64_t index);
  /// Seeded by (seed, epoch, number of the batch).
  at::Generator& batch_generator();

  void set_batch(std::int64_t batch_idx) { batch_idx_ = batch_idx; }
  std::vector<std::int64_t>& mutable_indices() { return indices_; }

 private:
  at::Generator& seeded(std::uint64_t key);

  std::uint64_t seed_;
  std::int64_t epoch_;
  const std::atomic<bool>* cancelled_;
  std::int64_t batch_idx_ = 0;
  std::vector<std::int64_t> indices_;
  at::Generator generator_;
};

/// A dataset with its collation and transform. `make` is called from several threads at once.
class BatchMaker {
 public:
  virtual ~BatchMaker() = default;
  virtual const std::type_info& batch_type() const = 0;
  virtual std::int64_t size() const = 0;
  /// May return an empty AnyBatch if the request was cancelled.
  virtual AnyBatch make(BatchRequest& request) const = 0;
};

}  // namespace fulmen::detail
