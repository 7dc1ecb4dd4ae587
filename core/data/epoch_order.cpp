#include "core/data/epoch_order.h"

#include <algorithm>
#include <numeric>

#include "core/data/random_key.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

std::vector<std::int64_t> ask_sampler(Sampler& sampler, const SampleOrder& order) {
  auto indices = sampler.indices(order);
  if (indices.empty()) {
    fail<DataError>("DataLoader", "the sampler gave no indices for epoch ", order.epoch, ".");
  }
  const auto wrong = std::find_if(indices.begin(), indices.end(), [&](std::int64_t index) {
    return index < 0 || index >= order.dataset_size;
  });
  if (wrong != indices.end()) {
    fail<DataError>("DataLoader",
                    "the sampler gave index ",
                    *wrong,
                    " for epoch ",
                    order.epoch,
                    ", but indices must be from 0 to ",
                    order.dataset_size - 1,
                    ".");
  }
  return indices;
}

}  // namespace

std::int64_t EpochOrder::count_batches(const DataLoaderOptions& options,
                                       std::int64_t samples,
                                       const DataShare& share,
                                       const EpochOrigin& origin) {
  const auto joint = options.batch_size * share.count;
  const auto left = std::max<std::int64_t>(samples - origin.samples, 0);
  const auto tail = options.drop_last ? 0 : share_of_tail(0, left % joint, share).size;
  return origin.batches + left / joint + (tail > 0 ? 1 : 0);
}

EpochOrder::EpochOrder(const DataLoaderOptions& options,
                       const SampleOrder& order,
                       const DataShare& share,
                       const EpochOrigin& origin)
    : share_(share),
      origin_(origin),
      batch_size_(options.batch_size),
      samples_(order.dataset_size) {
  if (order.dataset_size <= 0) {
    fail<DataError>("DataLoader",
                    "the dataset is empty: its size() is ",
                    order.dataset_size,
                    ". Check the path or the filter it was made with.");
  }
  if (options.sampler != nullptr) {
    indices_ = ask_sampler(*options.sampler, order);
    samples_ = static_cast<std::int64_t>(indices_.size());
    std::uint64_t hash = 0;
    for (const auto index : indices_) hash = scramble(hash ^ static_cast<std::uint64_t>(index));
    fingerprint_ = static_cast<std::int64_t>(hash);
  } else if (options.shuffle) {
    indices_ =
        random_permutation(samples_, random_key(RandomPurpose::kShuffle, order.seed, order.epoch));
  }
  origin_.samples = std::min(origin_.samples, samples_);
  batches_ = count_batches(options, samples_, share_, origin_);
  if (batches_ == 0 && share_.count == 1) {
    fail<DataError>("DataLoader",
                    "no batch is left: an epoch has ",
                    samples_,
                    " samples, batch_size is ",
                    batch_size_,
                    " and drop_last is set. Lower batch_size or unset drop_last.");
  }
}

// A share of the samples that do not fill a batch on every rank: the first ranks have one more.
EpochOrder::Range EpochOrder::share_of_tail(std::int64_t begin,
                                            std::int64_t samples,
                                            const DataShare& share) {
  const auto each = samples / share.count;
  const auto more = samples % share.count;
  return {.begin = begin + share.index * each + std::min<std::int64_t>(share.index, more),
          .size = each + (share.index < more ? 1 : 0)};
}

EpochOrder::Range EpochOrder::joint_range_of(std::int64_t batch_idx) const {
  const auto joint = batch_size_ * share_.count;
  const auto begin = origin_.samples + (batch_idx - origin_.batches) * joint;
  return {.begin = begin, .size = std::min(joint, samples_ - begin)};
}

EpochOrder::Range EpochOrder::range_of(std::int64_t batch_idx) const {
  const auto joint = joint_range_of(batch_idx);
  if (joint.size < batch_size_ * share_.count)
    return share_of_tail(joint.begin, joint.size, share_);
  return {.begin = joint.begin + share_.index * batch_size_, .size = batch_size_};
}

double EpochOrder::weight_of(std::int64_t batch_idx) const {
  return static_cast<double>(range_of(batch_idx).size * share_.count) /
         static_cast<double>(joint_range_of(batch_idx).size);
}

void EpochOrder::indices_of(std::int64_t batch_idx, std::vector<std::int64_t>& indices) const {
  const auto range = range_of(batch_idx);
  indices.resize(static_cast<std::size_t>(range.size));
  if (indices_.empty()) {
    std::iota(indices.begin(), indices.end(), range.begin);
  } else {
    std::copy_n(indices_.begin() + range.begin, indices.size(), indices.begin());
  }
}

}  // namespace fulmen::detail
