#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "fulmen/core/data/data_loader_options.h"
#include "fulmen/core/data/dataset_batch_maker.h"
#include "fulmen/core/data/loader_epoch.h"

namespace fulmen {

/// Batches of type B from a dataset (see dataset.h): shuffled, made by worker threads, collated
/// (see collate.h), always in the same order for the same (seed, epoch), whatever num_workers is.
/// The dataset is given by value or by std::shared_ptr:  DataLoader(dataset, {.batch_size = 64,
/// .shuffle = true}) An optional transform makes the batch that the module gets, from the collated
/// batch or from std::vector<Sample>, on the worker's thread; with a second parameter
/// at::Generator& it gets random numbers keyed by (seed, epoch, number of the batch). B is what it
/// returns. Copies share the dataset. Each use (training, validation, a loop of your own) has a
/// position of its own.
template <class B>
class DataLoader {
 public:
  using batch_type = B;

  /// Throws ConfigError for option values that are not allowed.
  template <class D>
  requires(!detail::kIsDataLoader<D>) explicit DataLoader(D dataset, DataLoaderOptions options = {})
      : DataLoader(std::move(dataset), std::move(options), detail::KeepBatch()) {}
  template <class D, class T>
  DataLoader(D dataset, DataLoaderOptions options, T transform) : options_(std::move(options)) {
    detail::validate(options_);
    using Maker = detail::DatasetBatchMaker<detail::DatasetType<D>, T>;
    static_assert(std::is_same_v<typename Maker::batch_t, B>,
                  "This dataset yields another batch type than DataLoader<B> says.");
    maker_ =
        std::make_shared<Maker>(detail::share_dataset(std::move(dataset)), std::move(transform));
  }

  const DataLoaderOptions& options() const { return options_; }
  /// Batches in the next epoch; empty if a sampler does not tell.
  std::optional<std::int64_t> size() const { return source()->size(); }
  /// A new source over the same dataset, at its beginning.
  std::shared_ptr<BatchSource> source() const {
    return detail::make_loader_source(maker_, options_);
  }
  /// For a loop of your own: for (B& batch : loader.epoch(0)) ...
  LoaderEpoch<B> epoch(std::int64_t epoch) const { return LoaderEpoch<B>(source(), epoch); }

 private:
  DataLoaderOptions options_;
  std::shared_ptr<const detail::BatchMaker> maker_;
};

template <class B>
inline constexpr bool detail::kIsDataLoader<DataLoader<B>> = true;

template <class D>
DataLoader(D, DataLoaderOptions = {})
    -> DataLoader<typename detail::LoaderBatch<D, detail::KeepBatch>::type>;
template <class D, class T>
DataLoader(D, DataLoaderOptions, T) -> DataLoader<typename detail::LoaderBatch<D, T>::type>;

}  // namespace fulmen
