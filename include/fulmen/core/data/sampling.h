#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fulmen {

/// What an order of samples may depend on.
struct SampleOrder {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t dataset_size = 0;
};

/// Decides which samples an epoch has, and in which order. Give one to DataLoaderOptions::sampler.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Indices in [0, dataset_size); some may be left out or come several times. Must depend on
  /// `order` alone: a run that is resumed inside the epoch asks again, and a different answer is an
  /// error.
  virtual std::vector<std::int64_t> indices(const SampleOrder& order) = 0;
  /// How many indices an epoch has, if that is the same for each; empty if unknown before the epoch
  /// starts.
  virtual std::optional<std::int64_t> size(std::int64_t /*dataset_size*/) const { return {}; }
};

/// 0..size-1 in random order: the same on every platform for the same seed.
std::vector<std::int64_t> random_permutation(std::int64_t size, std::uint64_t seed);

/// Splits 0..size-1 at random into parts, for example random_split(1797, {0.8, 0.2}, 42). Fractions
/// are greater than 0 and add up to 1; sizes are rounded down, and what is left goes to the first
/// parts, one each. Throws ConfigError for other fractions, or if a part would be empty.
std::vector<std::vector<std::int64_t>> random_split(std::int64_t size,
                                                    const std::vector<double>& fractions,
                                                    std::uint64_t seed);

/// The same with numbers of samples, which add up to size.
std::vector<std::vector<std::int64_t>> random_split_counts(std::int64_t size,
                                                           const std::vector<std::int64_t>& counts,
                                                           std::uint64_t seed);

}  // namespace fulmen
