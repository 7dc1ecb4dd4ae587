#pragma once

#include <cstdint>
#include <vector>

#include "fulmen/core/data/batch_source.h"
#include "fulmen/core/data/data_loader_options.h"

namespace fulmen::detail {

// How far an epoch had come when it was divided otherwise: by other ranks or batch sizes. It goes
// on behind the samples that were taken.
struct EpochOrigin {
  std::int64_t batches = 0;
  std::int64_t samples = 0;
  bool operator==(const EpochOrigin&) const = default;
};

// The samples of one epoch, or a rank's share of them, cut into batches. All ranks have one order;
// of each batch_size * ranks samples rank i has the i-th batch_size, so that together they train
// on what one process with the joint batch size would. What is left in the end is dealt out evenly.
class EpochOrder {
 public:
  // Throws DataError if no batch would be left, or if the sampler's indices are out of range.
  EpochOrder(const DataLoaderOptions& options,
             const SampleOrder& order,
             const DataShare& share,
             const EpochOrigin& origin = {});

  std::int64_t batches() const { return batches_; }
  void indices_of(std::int64_t batch_idx, std::vector<std::int64_t>& indices) const;
  // The samples of this rank's batch, times the ranks, over those of all ranks.
  double weight_of(std::int64_t batch_idx) const;
  // Tells two orders of a sampler apart; 0 without a sampler.
  std::int64_t fingerprint() const { return fingerprint_; }

  // In an epoch of so many samples.
  static std::int64_t count_batches(const DataLoaderOptions& options,
                                    std::int64_t samples,
                                    const DataShare& share,
                                    const EpochOrigin& origin = {});

 private:
  struct Range {
    std::int64_t begin = 0;
    std::int64_t size = 0;
  };
  static Range share_of_tail(std::int64_t begin, std::int64_t samples, const DataShare& share);
  // All ranks' samples of a batch, and this rank's.
  Range joint_range_of(std::int64_t batch_idx) const;
  Range range_of(std::int64_t batch_idx) const;

  DataShare share_;
  EpochOrigin origin_;
  std::int64_t batch_size_;
  std::int64_t samples_;
  std::int64_t batches_;
  std::int64_t fingerprint_ = 0;
  std::vector<std::int64_t> indices_;  // Empty: 0..samples-1.
};

}  // namespace fulmen::detail
