#include "fulmen/core/data/collate.h"

#include <ATen/ATen.h>

#include <cstring>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

constexpr auto kRemedy =
    " Make them equal in the dataset (pad, crop), or give the DataLoader a transform that takes "
    "std::vector<Sample> and makes the batch.";

}  // namespace

void fail_collate(std::string_view what, std::size_t sample) {
  fail<DataError>("DataLoader",
                  "a batch cannot be made of ",
                  what,
                  ": sample ",
                  sample,
                  " of the batch differs from sample 0.",
                  kRemedy);
}

at::Tensor stack_samples(const std::vector<at::Tensor>& tensors) {
  const auto& first = tensors.front();
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    const auto& other = tensors[i];
    if (other.defined() != first.defined()) fail_collate("tensors, some of them undefined", i);
    if (!first.defined()) continue;
    if (other.sizes() != first.sizes()) {
      fail<DataError>("DataLoader",
                      "the tensors of a batch must have one shape, but sample 0 of the batch has ",
                      first.sizes(),
                      " and sample ",
                      i,
                      " has ",
                      other.sizes(),
                      ".",
                      kRemedy);
    }
    if (other.scalar_type() != first.scalar_type()) {
      fail<DataError>("DataLoader",
                      "the tensors of a batch must have one dtype, but sample 0 of the batch has ",
                      first.scalar_type(),
                      " and sample ",
                      i,
                      " has ",
                      other.scalar_type(),
                      ".",
                      kRemedy);
    }
  }
  return first.defined() ? at::stack(tensors) : at::Tensor();
}

at::Tensor copy_numbers(const void* data,
                        c10::ScalarType type,
                        std::int64_t rows,
                        std::int64_t columns) {
  auto sizes = std::vector<std::int64_t>{rows};
  if (columns >= 0) sizes.push_back(columns);
  auto result = at::empty(sizes, type);
  if (result.nbytes() > 0) std::memcpy(result.mutable_data_ptr(), data, result.nbytes());
  return result;
}

}  // namespace fulmen::detail
