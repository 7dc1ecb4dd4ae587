#pragma once

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "fulmen/core/data/batch.h"
#include "fulmen/core/data/collate_numbers.h"
#include "fulmen/core/data/collate_parts.h"

namespace fulmen::detail {

// How samples become a batch. Tensors are stacked along a new dim 0 (all of one shape and dtype).
// Numbers become a tensor (B): integers int64 (std::uint8_t stays uint8), float float32, double
// float64, bool bool; a vector or array of n numbers becomes (B, n). Batch, tuple, pair, array,
// vector, map, optional and torch::data::Example are collated part by part, strings become a
// vector. A struct with for_each_tensor stays that struct: its tensors are stacked, everything else
// is the first sample's. Samples that do not fit together are a DataError.

/// Undefined if no tensor is defined.
at::Tensor stack_samples(const std::vector<at::Tensor>& tensors);

/// Everything that for_each_tensor reaches is stacked; the rest stays the first sample's.
template <class S>
S collate_tensors(std::vector<S>& samples) {
  std::vector<std::vector<at::Tensor>> columns;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    std::size_t column = 0;
    visit_batch(samples[i], [&](at::Tensor& tensor) {
      if (i == 0) columns.emplace_back();
      if (column < columns.size()) columns[column].push_back(tensor);
      ++column;
    });
    if (column != columns.size()) fail_collate("samples of different numbers of tensors", i);
  }
  std::size_t column = 0;
  visit_batch(samples.front(),
              [&](at::Tensor& tensor) { tensor = stack_samples(columns[column++]); });
  return std::move(samples.front());
}

/// Takes the samples apart.
template <class S>
auto collate(std::vector<S>& samples) {
  if constexpr (std::is_same_v<S, at::Tensor>) {
    return stack_samples(samples);
  } else if constexpr (std::is_same_v<S, Batch> || HasForEachTensor<S>) {
    return collate_tensors(samples);
  } else if constexpr (kIsExample<S>) {
    return collate_examples(samples);
  } else if constexpr (Number<S>) {
    return collate_numbers(samples);
  } else if constexpr (std::is_same_v<S, std::string>) {
    return std::move(samples);
  } else if constexpr (std::is_empty_v<S>) {
    return S(samples.front());
  } else if constexpr (kIsOptional<S>) {
    return collate_optionals(samples);
  } else if constexpr (MapLike<S>) {
    return collate_maps(samples);
  } else if constexpr (kIsVector<S> || kIsArray<S>) {
    if constexpr (Number<typename S::value_type>) {
      return collate_number_rows(samples);
    } else if constexpr (kIsVector<S>) {
      return collate_vectors(samples);
    } else {
      return collate_tuples(samples, std::make_index_sequence<std::tuple_size_v<S>>());
    }
  } else if constexpr (TupleLike<S>) {
    return collate_tuples(samples, std::make_index_sequence<std::tuple_size_v<S>>());
  } else {
    static_assert(kKnownBatch<S>,
                  "Fulmen does not know how to make a batch of samples of this type. Give the "
                  "DataLoader a transform "
                  "that takes std::vector<Sample>, or declare, in the type's namespace: "
                  "void for_each_tensor(T& sample, const fulmen::TensorVisitor& visit).");
  }
}

}  // namespace fulmen::detail
