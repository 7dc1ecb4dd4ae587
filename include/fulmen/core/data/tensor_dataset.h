#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fulmen/core/data/batch.h"

namespace fulmen {

/// Samples that lie in tensors: sample i is row i of each. Yields fulmen::Batch. Copies share the
/// tensors. Samples that follow each other (no shuffling) come as views, without a copy: a batch
/// that was changed in place has changed the data, and the next batch is a DataError then. Put
/// changed data into a new TensorDataset.
class TensorDataset {
 public:
  /// Throws DataError if there is no tensor, or if they do not agree in dim 0.
  explicit TensorDataset(std::vector<at::Tensor> tensors);

  std::int64_t size() const { return size_; }
  Batch get_batch(std::span<const std::int64_t> indices) const;
  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  void check_unchanged() const;

  std::vector<at::Tensor> tensors_;
  std::vector<std::int64_t> versions_;
  std::int64_t size_ = 0;
};

/// tensor_dataset({x, y}): x (N, ...), y (N, ...).
TensorDataset tensor_dataset(std::vector<at::Tensor> tensors);

}  // namespace fulmen
