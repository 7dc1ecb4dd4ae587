#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "fulmen/core/data/batch_source.h"
#include "fulmen/core/data/sampling.h"

namespace fulmen {

/// How a DataLoader reads its dataset.
struct DataLoaderOptions {
  std::int64_t batch_size = 1;  ///< Samples per batch, at least 1.
  bool shuffle = false;         ///< A new order in each epoch, a function of (seed, epoch).
  bool drop_last = false;       ///< Leave out a last batch that is not full.
  int num_workers = 0;          ///< Threads that make batches; 0: the calling thread does.
  int prefetch_factor = 2;      ///< Batches made ahead per worker, at least 1.
  std::optional<std::uint64_t> seed = {};  ///< Unset: the trainer's seed; 0 without a trainer.
  std::shared_ptr<Sampler> sampler = {};   ///< An order of your own, in place of shuffle.
};

namespace detail {

class BatchMaker;

/// Throws ConfigError that names the option, its value and what is allowed.
void validate(const DataLoaderOptions& options);

std::shared_ptr<BatchSource> make_loader_source(std::shared_ptr<const BatchMaker> maker,
                                                const DataLoaderOptions& options);

}  // namespace detail
}  // namespace fulmen
