#include "fulmen/core/data/batch.h"

#include <ATen/ATen.h>
#include <c10/util/Type.h>

#include "fulmen/core/support/error.h"

namespace fulmen {

void Batch::check_size(std::size_t expected) const {
  if (tensors.size() == expected) return;
  fail<DataError>("Batch",
                  "unpack<",
                  expected,
                  "> was asked of a batch of ",
                  tensors.size(),
                  " tensors. Unpack as many as the dataset yields.");
}

const std::type_info& BatchView::type() const {
  return has_value() ? operations_->type : typeid(void);
}

void BatchView::for_each_tensor(const TensorVisitor& visit) const {
  if (has_value()) operations_->visit(batch_, visit);
}

std::int64_t BatchView::rows() const {
  if (!has_value()) return 0;
  if (operations_->rows != nullptr) return operations_->rows(batch_);
  std::optional<std::int64_t> rows;
  for_each_tensor([&](at::Tensor& tensor) {
    if (!tensor.defined() || tensor.dim() == 0) return;
    const auto size = tensor.size(0);
    if (rows && *rows != size) {
      fail<DataError>(c10::demangle(operations_->type.name()),
                      "the tensors of this batch have ",
                      *rows,
                      " and ",
                      size,
                      " rows in dim 0, so its number of samples is ambiguous. Say the batch size ",
                      "or weight where it is used (batch_size of log(), a weight beside the loss), "
                      "or make the ",
                      "batch a struct of your own and declare, in its namespace, ",
                      "std::int64_t batch_rows(const T&).");
    }
    rows = size;
  });
  return rows.value_or(1);
}

void BatchView::to(c10::Device device, Transfer transfer) const {
  for_each_tensor([&](at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device() == device) return;
    tensor = tensor.to(device, transfer == Transfer::kNonBlocking);
  });
}

}  // namespace fulmen
