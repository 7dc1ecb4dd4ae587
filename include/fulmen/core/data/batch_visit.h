#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ranges>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace torch::data {
template <typename Data, typename Target>
struct Example;
}

namespace fulmen {

/// Called with each tensor of a batch; it may replace the tensor.
using TensorVisitor = c10::function_ref<void(at::Tensor&)>;

/// The default batch: tensors in order, dim 0 of each is the sample.
struct Batch {
  std::vector<at::Tensor> tensors = {};

  /// auto [x, y] = batch.unpack<2>();  Throws DataError if the batch does not hold N tensors.
  template <std::size_t N>
  std::array<at::Tensor, N> unpack() const {
    check_size(N);
    std::array<at::Tensor, N> result;
    for (std::size_t i = 0; i < N; ++i) result[i] = tensors[i];
    return result;
  }

 private:
  void check_size(std::size_t expected) const;
};

// A batch may be of any type. Known are tensors, Batch, vectors, maps, optionals, tuples, pairs and
// arrays of known types, numbers, strings and torch::data::Example. For a struct of your own
// declare, in its namespace:
//   void for_each_tensor(MyBatch& batch, const fulmen::TensorVisitor& visit) { visit(batch.x);
//   visit(batch.y); }
// or, if it holds other things as well and has to travel (predictions go to rank 0):
//   auto batch_parts(MyBatch& batch) { return std::tie(batch.x, batch.names, batch.score); }
// and, if its tensors do not agree in dim 0 (its rows are ambiguous then):
//   std::int64_t batch_rows(const MyBatch& batch);

namespace detail {

template <class T>
inline constexpr bool kIsExample = false;
template <class D, class T>
inline constexpr bool kIsExample<torch::data::Example<D, T>> = true;
template <class T>
inline constexpr bool kHasTarget = false;
template <class D, class T>
inline constexpr bool kHasTarget<torch::data::Example<D, T>> = !std::is_void_v<T>;

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

template <class T>
concept TupleLike = requires {
  std::tuple_size<T>::value;
};

template <class T>
concept HasForEachTensor = requires(T& batch, const TensorVisitor& visit) {
  for_each_tensor(batch, visit);
};

template <class T>
concept HasBatchParts = requires(T& batch) {
  batch_parts(batch);
};

template <class T>
concept HasBatchRows = requires(const T& batch) {
  { batch_rows(batch) } -> std::convertible_to<std::int64_t>;
};

template <class T>
concept Plain = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_empty_v<T> ||
    std::is_same_v<std::remove_const_t<T>, std::string>;

template <class T>
inline constexpr bool kKnownBatch = false;

/// Visits every tensor of `value`, in the order of declaration.
template <class T>
void visit_batch(T& value, const TensorVisitor& visit) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    visit(value);
  } else if constexpr (std::is_same_v<T, Batch>) {
    for (auto& tensor : value.tensors) visit(tensor);
  } else if constexpr (HasForEachTensor<T>) {
    for_each_tensor(value, visit);
  } else if constexpr (HasBatchParts<T>) {
    std::apply([&](auto&... parts) { (visit_batch(parts, visit), ...); }, batch_parts(value));
  } else if constexpr (kIsExample<T>) {
    visit_batch(value.data, visit);
    if constexpr (kHasTarget<T>) visit_batch(value.target, visit);
  } else if constexpr (Plain<T>) {
  } else if constexpr (kIsOptional<T>) {
    if (value) visit_batch(*value, visit);
  } else if constexpr (TupleLike<T>) {
    std::apply([&](auto&... parts) { (visit_batch(parts, visit), ...); }, value);
  } else if constexpr (std::ranges::range<T>) {
    if constexpr (!Plain<std::ranges::range_value_t<T>>) {
      for (auto&& part : value) visit_batch(part, visit);
    }
  } else {
    static_assert(
        kKnownBatch<T>,
        "Fulmen does not know where the tensors of this batch type are. Declare, in the type's "
        "namespace: void for_each_tensor(T& batch, const fulmen::TensorVisitor& visit).");
  }
}

}  // namespace detail
}  // namespace fulmen
