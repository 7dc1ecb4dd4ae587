#include "fulmen/core/data/batch.h"

#include <ATen/ATen.h>
#include <c10/util/Type.h>

#include <algorithm>

#include "fulmen/core/support/error.h"

namespace fulmen {
namespace detail {

void fail_to_travel(const std::type_info& type) {
  fail<ConfigError>(
      c10::demangle(type.name()),
      "predictions of this type cannot travel to rank 0 whole: it may hold more than the tensors ",
      "that Fulmen sees, or it has no default constructor. Return tensors, containers, strings "
      "and ",
      "numbers, or declare, in the type's namespace, auto batch_parts(T& batch) { return ",
      "std::tie(batch.first, batch.second); } with all of its members. Or set ",
      ".use_distributed_sampler = false and split the data yourself: then each rank keeps its own ",
      "predictions.");
}

// Its tensors have to lie side by side over the whole object: then there is nothing else in it.
void exchange_tensors_of(const std::type_info& type,
                         const void* object,
                         std::size_t size,
                         c10::function_ref<void(const TensorVisitor&)> for_each,
                         BatchArchive& archive) {
  std::vector<at::Tensor*> tensors;
  for_each([&](at::Tensor& tensor) { tensors.push_back(&tensor); });
  std::sort(tensors.begin(), tensors.end());
  const auto* first = static_cast<const at::Tensor*>(object);
  bool whole = tensors.size() * sizeof(at::Tensor) == size;
  for (std::size_t i = 0; i < tensors.size() && whole; ++i) whole = tensors[i] == first + i;
  if (!whole) fail_to_travel(type);
  for (auto* tensor : tensors) archive.tensor(*tensor);
}

}  // namespace detail

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

void BatchView::exchange(BatchArchive& archive) const {
  if (!has_value()) return;
  if (operations_->exchange == nullptr) detail::fail_to_travel(type());
  operations_->exchange(batch_, archive);
}

AnyBatch AnyBatch::another() const {
  if (!has_value()) return {};
  const auto* operations = view_.operations_;
  if (operations->make == nullptr) detail::fail_to_travel(operations->type);
  AnyBatch made;
  made.view_ = BatchView(operations->make(), operations);
  return made;
}

void BatchView::to(c10::Device device, Transfer transfer) const {
  for_each_tensor([&](at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device() == device) return;
    tensor = tensor.to(device, transfer == Transfer::kNonBlocking);
  });
}

}  // namespace fulmen
