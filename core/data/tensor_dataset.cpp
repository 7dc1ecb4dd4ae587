#include "fulmen/core/data/tensor_dataset.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

constexpr auto kName = "TensorDataset";

// Inference tensors count no changes.
std::int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

bool follow_each_other(std::span<const std::int64_t> indices) {
  return std::adjacent_find(indices.begin(), indices.end(), [](std::int64_t a, std::int64_t b) {
           return b != a + 1;
         }) == indices.end();
}

}  // namespace

TensorDataset::TensorDataset(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
  if (tensors_.empty()) fail<DataError>(kName, "at least one tensor is needed, got none.");
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto& tensor = tensors_[i];
    if (!tensor.defined()) fail<DataError>(kName, "tensor ", i, " is undefined.");
    if (tensor.dim() == 0) {
      fail<DataError>(
          kName, "tensor ", i, " is a scalar, but dim 0 must be the sample. Unsqueeze it.");
    }
    if (i == 0) size_ = tensor.size(0);
    if (tensor.size(0) != size_) {
      fail<DataError>(kName,
                      "the tensors must have the same size in dim 0, but tensor 0 has ",
                      size_,
                      " and tensor ",
                      i,
                      " has ",
                      tensor.size(0),
                      ".");
    }
    versions_.push_back(version_of(tensor));
  }
}

void TensorDataset::check_unchanged() const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (version_of(tensors_[i]) == versions_[i]) continue;
    fail<DataError>(kName,
                    "tensor ",
                    i,
                    " was changed in place since the dataset was made, probably through a batch, "
                    "which is a view of it. Clone the batch before changing it; if the data is "
                    "meant to change, make "
                    "a new TensorDataset.");
  }
}

Batch TensorDataset::get_batch(std::span<const std::int64_t> indices) const {
  Batch batch;
  batch.tensors.reserve(tensors_.size());
  if (indices.empty()) return batch;
  if (follow_each_other(indices)) {
    check_unchanged();
    const auto rows = static_cast<std::int64_t>(indices.size());
    for (const auto& tensor : tensors_)
      batch.tensors.push_back(tensor.narrow(0, indices.front(), rows));
    return batch;
  }
  const auto rows =
      at::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size()), at::kLong);
  for (const auto& tensor : tensors_)
    batch.tensors.push_back(tensor.index_select(0, rows.to(tensor.device())));
  return batch;
}

TensorDataset tensor_dataset(std::vector<at::Tensor> tensors) {
  return TensorDataset(std::move(tensors));
}

}  // namespace fulmen
