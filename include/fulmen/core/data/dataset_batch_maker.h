#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "fulmen/core/data/batch_request.h"
#include "fulmen/core/data/collate.h"
#include "fulmen/core/data/dataset.h"

namespace fulmen::detail {

/// The transform of a DataLoader that has none.
struct KeepBatch {
  template <class B>
  B operator()(B&& batch) const {
    return std::forward<B>(batch);
  }
};

template <class T, class I>
decltype(auto) apply_transform(const T& transform, I&& batch, BatchRequest& request) {
  if constexpr (std::invocable<const T&, I&&>) {
    return transform(std::forward<I>(batch));
  } else {
    static_assert(
        std::invocable<const T&, I&&, at::Generator&>,
        "The transform of a DataLoader is called, from several threads at once, as "
        "const T& with the collated batch or std::vector<Sample>, and perhaps an at::Generator&. "
        "This one cannot be called so.");
    return transform(std::forward<I>(batch), request.batch_generator());
  }
}

/// A generic lambda takes the collated batch.
template <class T>
concept Generic = std::is_class_v<T> && !requires {
  &T::operator();
};
template <class T, class I>
concept TakesSamples =
    !Generic<T> && (std::invocable<const T&, I&&> || std::invocable<const T&, I&&, at::Generator&>);

template <class D>
auto make_item(D& dataset, BatchRequest& request) {
  if constexpr (YieldsSamples<D>) {
    std::vector<DatasetItem<D>> samples;
    samples.reserve(request.indices().size());
    for (const auto index : request.indices()) {
      if (request.cancelled()) return samples;
      samples.push_back(get_sample(
          dataset, index, [&]() -> at::Generator& { return request.sample_generator(index); }));
    }
    return samples;
  } else {
    return get_batch(dataset, request.indices());
  }
}

/// The batch from what make_item returned. A transform may take the collated batch or the samples.
template <class D, class T, class I>
auto finish_batch(const T& transform, I& item, BatchRequest& request) {
  if constexpr (YieldsSamples<D> && !TakesSamples<T, I>) {
    return apply_transform(transform, collate(item), request);
  } else {
    return apply_transform(transform, std::move(item), request);
  }
}

template <class D, class T>
class DatasetBatchMaker final : public BatchMaker {
 public:
  using Item = decltype(make_item(std::declval<D&>(), std::declval<BatchRequest&>()));
  using batch_t = std::remove_cvref_t<decltype(finish_batch<D>(
      std::declval<const T&>(), std::declval<Item&>(), std::declval<BatchRequest&>()))>;

  DatasetBatchMaker(std::shared_ptr<D> dataset, T transform)
      : dataset_(std::move(dataset)), transform_(std::move(transform)) {}

  const std::type_info& batch_type() const override { return typeid(batch_t); }
  std::int64_t size() const override { return dataset_size(*dataset_); }
  AnyBatch make(BatchRequest& request) const override {
    auto item = make_item(*dataset_, request);
    if (request.cancelled()) return {};
    return AnyBatch(finish_batch<D>(transform_, item, request));
  }

 private:
  std::shared_ptr<D> dataset_;
  T transform_;
};

template <class T>
inline constexpr bool kIsDataLoader = false;

template <class D, class T>
struct LoaderBatch {
  static_assert(check_dataset<DatasetType<D>>());
  using type = typename DatasetBatchMaker<DatasetType<D>, T>::batch_t;
};

/// Nothing: DataLoader(loader) is a copy.
template <class D, class T>
requires kIsDataLoader<D>
struct LoaderBatch<D, T> {
};

}  // namespace fulmen::detail
