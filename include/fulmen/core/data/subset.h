#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fulmen/core/data/dataset.h"

namespace fulmen {

/// The samples `indices` of a dataset, given by value or std::shared_ptr, as a dataset. With
/// random_split:
///   const auto parts = random_split(dataset->size(), {0.8, 0.2}, seed);
///   Subset train(dataset, parts[0]), test(dataset, parts[1]);
/// Throws DataError if an index is not in [0, dataset.size()).
template <class D>
class Subset {
  static_assert(detail::check_dataset<D>());

 public:
  template <class Given>
  Subset(Given dataset, std::vector<std::int64_t> indices)
      : dataset_(detail::share_dataset(std::move(dataset))), indices_(std::move(indices)) {
    const auto size = detail::dataset_size(*dataset_);
    for (const auto index : indices_) {
      if (index >= 0 && index < size) continue;
      fail<DataError>("Subset", "indices must be from 0 to ", size - 1, ", got ", index, ".");
    }
  }

  std::int64_t size() const { return static_cast<std::int64_t>(indices_.size()); }
  const std::vector<std::int64_t>& indices() const { return indices_; }

  decltype(auto) get(std::int64_t index) const
      requires(detail::YieldsSamples<D> && !detail::GetsRandomSample<D>) {
    return dataset_->get(indices_[static_cast<std::size_t>(index)]);
  }
  decltype(auto) get(std::int64_t index, at::Generator& generator) const
      requires(detail::YieldsSamples<D>&& detail::GetsRandomSample<D>) {
    return dataset_->get(indices_[static_cast<std::size_t>(index)], generator);
  }
  auto get_batch(std::span<const std::int64_t> rows) const requires detail::YieldsBatches<D> {
    std::vector<std::int64_t> picked;
    picked.reserve(rows.size());
    for (const auto row : rows) picked.push_back(indices_[static_cast<std::size_t>(row)]);
    return detail::get_batch(*dataset_, picked);
  }

 private:
  std::shared_ptr<D> dataset_;
  std::vector<std::int64_t> indices_;
};

template <class Given>
Subset(Given, std::vector<std::int64_t>) -> Subset<detail::DatasetType<Given>>;

}  // namespace fulmen
