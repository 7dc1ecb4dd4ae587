#pragma once

#include <ATen/core/Generator.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "fulmen/core/support/error.h"

namespace fulmen {

// A dataset is any type with
//   size()                                           an integer: how many samples there are now
// and one of these (the first that there is counts):
//   get_batch(std::span<const std::int64_t> indices) a whole batch
//   get(index, generator)                            a sample; random numbers come from the
//   at::Generator, which is
//                                                    seeded by (seed, epoch, index) and valid
//                                                    during the call
//   get(index)                                       a sample
// With worker threads, `get` is called from several threads at once, and must not use the
// process-wide generator. The datasets of torch::data work too (stateless ones, mapped or not).

namespace detail {

template <class D>
concept GetsBatch = requires(D& dataset, std::span<const std::int64_t> indices) {
  dataset.get_batch(indices);
};
template <class D>
concept GetsRandomSample = requires(D& dataset, std::int64_t index, at::Generator& generator) {
  dataset.get(index, generator);
};
template <class D>
concept GetsSample = requires(D& dataset, std::int64_t index) {
  dataset.get(index);
};
template <class D>
concept GetsTorchBatch = requires(D& dataset, const std::vector<std::size_t>& indices) {
  dataset.get_batch(indices);
};

template <class D>
concept YieldsSamples = !GetsBatch<D> && (GetsRandomSample<D> || GetsSample<D>);
template <class D>
concept YieldsBatches = GetsBatch<D> ||(!YieldsSamples<D> && GetsTorchBatch<D>);

template <class T>
inline constexpr bool kIsCount = std::integral<T> && !std::same_as<T, bool>;
template <class T>
inline constexpr bool kIsCount<std::optional<T>> = kIsCount<T>;

template <class D>
concept HasSize = requires(D& dataset) {
  dataset.size();
};

/// What is wrong with D as a dataset, as compile-time errors.
template <class D>
constexpr bool check_dataset() {
  static_assert(
      HasSize<D>,
      "A dataset needs size(): the number of its samples. For a stream of unknown length use "
      "fulmen::stream_loader.");
  if constexpr (HasSize<D>) {
    static_assert(kIsCount<std::remove_cvref_t<decltype(std::declval<D&>().size())>>,
                  "size() of a dataset must return an integer.");
  }
  static_assert(YieldsSamples<D> || YieldsBatches<D>,
                "A dataset needs get(std::int64_t index), get(std::int64_t index, at::Generator& "
                "generator) or "
                "get_batch(std::span<const std::int64_t> indices).");
  return true;
}

template <class T>
std::int64_t to_count(const T& size) {
  if constexpr (std::integral<T>) {
    return static_cast<std::int64_t>(size);
  } else {
    if (!size) {
      fail<DataError>(
          "DataLoader",
          "size() of the dataset has no value. Use fulmen::stream_loader for a stream.");
    }
    return static_cast<std::int64_t>(*size);
  }
}

template <class D>
std::int64_t dataset_size(D& dataset) {
  return to_count(dataset.size());
}

template <class D>
decltype(auto) get_sample(D& dataset, std::int64_t index, auto&& make_generator) {
  if constexpr (GetsRandomSample<D>) {
    return dataset.get(index, make_generator());
  } else {
    return dataset.get(index);
  }
}

template <class D>
decltype(auto) get_batch(D& dataset, std::span<const std::int64_t> indices) {
  if constexpr (GetsBatch<D>) {
    return dataset.get_batch(indices);
  } else {
    return dataset.get_batch(std::vector<std::size_t>(indices.begin(), indices.end()));
  }
}

/// What one call of the dataset returns.
template <class D>
auto dataset_item(D& dataset, at::Generator& generator) {
  if constexpr (YieldsSamples<D>) {
    return get_sample(dataset, 0, [&]() -> at::Generator& { return generator; });
  } else if constexpr (YieldsBatches<D>) {
    return get_batch(dataset, {});
  }
}
template <class D>
using DatasetItem =
    std::remove_cvref_t<decltype(dataset_item(std::declval<D&>(), std::declval<at::Generator&>()))>;

template <class D>
std::shared_ptr<D> share_dataset(D dataset) {
  return std::make_shared<D>(std::move(dataset));
}
template <class D>
std::shared_ptr<D> share_dataset(std::shared_ptr<D> dataset) {
  if (dataset == nullptr) fail<ConfigError>("DataLoader", "the dataset is a null pointer.");
  return dataset;
}
template <class D>
using DatasetType = typename decltype(share_dataset(std::declval<D>()))::element_type;

}  // namespace detail
}  // namespace fulmen
