#include "fulmen/core/data/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "core/data/random_key.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

// Below `bound`, each with the same chance. The standard's distributions differ between libraries;
// the engine does not.
std::uint64_t draw_below(std::mt19937_64& engine, std::uint64_t bound) {
  const auto mask = std::bit_ceil(bound) - 1;
  for (;;) {
    const auto value = engine() & mask;
    if (value < bound) return value;
  }
}

std::vector<std::vector<std::int64_t>> split(std::int64_t size,
                                             const std::vector<std::int64_t>& counts,
                                             std::uint64_t seed) {
  const auto order =
      random_permutation(size, detail::random_key(detail::RandomPurpose::kSplit, seed));
  std::vector<std::vector<std::int64_t>> parts;
  auto begin = order.begin();
  for (const auto count : counts) {
    parts.emplace_back(begin, begin + count);
    begin += count;
  }
  return parts;
}

void check_size(std::int64_t size) {
  if (size < 0)
    fail<ConfigError>("random_split", "size must be greater than or equal to 0, got ", size, ".");
}

}  // namespace

std::vector<std::int64_t> random_permutation(std::int64_t size, std::uint64_t seed) {
  if (size < 0)
    fail<ConfigError>(
        "random_permutation", "size must be greater than or equal to 0, got ", size, ".");
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::mt19937_64 engine(seed);
  for (auto left = order.size(); left > 1; --left)
    std::swap(order[left - 1], order[draw_below(engine, left)]);
  return order;
}

std::vector<std::vector<std::int64_t>> random_split(std::int64_t size,
                                                    const std::vector<double>& fractions,
                                                    std::uint64_t seed) {
  check_size(size);
  double sum = 0;
  for (const auto fraction : fractions) {
    if (!(fraction > 0 && fraction <= 1)) {
      fail<ConfigError>("random_split",
                        "fractions must be greater than 0 and at most 1, got ",
                        fraction,
                        ". For numbers of samples there is random_split_counts.");
    }
    sum += fraction;
  }
  if (!(std::abs(sum - 1) < 1e-9)) {
    fail<ConfigError>("random_split", "fractions must add up to 1, got ", sum, ".");
  }
  std::vector<std::int64_t> counts;
  std::int64_t used = 0;
  for (const auto fraction : fractions) {
    // 0.29 x 100 is 28.999...: a product that is whole within rounding is meant to be whole.
    const auto whole =
        static_cast<std::int64_t>(std::floor(fraction * static_cast<double>(size) + 1e-6));
    counts.push_back(std::min(whole, size - used));
    used += counts.back();
  }
  for (std::size_t part = 0; used < size; ++used) ++counts[part++ % counts.size()];
  for (std::size_t part = 0; part < counts.size(); ++part) {
    if (counts[part] == 0) {
      fail<ConfigError>("random_split",
                        "part ",
                        part,
                        " (fraction ",
                        fractions[part],
                        " of ",
                        size,
                        " samples) would be empty. Give it a larger fraction.");
    }
  }
  return split(size, counts, seed);
}

std::vector<std::vector<std::int64_t>> random_split_counts(std::int64_t size,
                                                           const std::vector<std::int64_t>& counts,
                                                           std::uint64_t seed) {
  check_size(size);
  std::int64_t sum = 0;
  for (const auto count : counts) {
    if (count < 0) {
      fail<ConfigError>(
          "random_split_counts", "counts must be greater than or equal to 0, got ", count, ".");
    }
    sum += count;
  }
  if (sum != size) {
    fail<ConfigError>(
        "random_split_counts", "counts must add up to the size, ", size, ", got ", sum, ".");
  }
  return split(size, counts, seed);
}

}  // namespace fulmen
