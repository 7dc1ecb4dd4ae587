#include "strategies/bucket_plan.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace fulmen::detail {
namespace {

using Items = std::vector<BucketItem>;
using Key = std::tuple<std::size_t, at::ScalarType, std::string>;

/// With fewer the last one, which nothing overlaps, would be a large part of all.
constexpr std::int64_t kBuckets = 8;

Key key_of(const BucketItem& item) {
  return {item.group, item.dtype, item.device.str()};
}

/// Buckets in the order in which they are closed; those that stay open follow by age.
std::vector<BucketPlan> deal_out(const Items& items,
                                 const std::vector<std::size_t>& order,
                                 const BucketCaps& caps) {
  struct Open {
    BucketPlan bucket;
    std::int64_t bytes = 0;
    std::int64_t cap = 0;
  };
  std::map<Key, Open> open;
  for (const auto i : order) open[key_of(items[i])].cap += items[i].bytes;
  for (auto& [key, bucket] : open)
    bucket.cap = std::min(caps.other, std::max(caps.first, bucket.cap / kBuckets));
  std::vector<Key> by_age;
  std::vector<BucketPlan> closed;
  for (const auto i : order) {
    const auto key = key_of(items[i]);
    auto& current = open[key];
    if (current.bucket.items.empty()) {
      current.bucket.group = items[i].group;
      by_age.push_back(key);
    }
    current.bucket.items.push_back(i);
    current.bytes += items[i].bytes;
    if (current.bytes < (closed.empty() ? caps.first : current.cap)) continue;
    closed.push_back(std::exchange(current.bucket, {}));
    current.bytes = 0;
    std::erase(by_age, key);
  }
  for (const auto& key : by_age) closed.push_back(std::move(open[key].bucket));
  return closed;
}

}  // namespace

std::vector<BucketPlan> plan_buckets(const Items& items,
                                     const std::vector<std::size_t>& order,
                                     const BucketCaps& caps) {
  auto buckets = deal_out(items, order, caps);
  std::map<std::size_t, BucketPlan*> last;
  for (auto& bucket : buckets) last[bucket.group] = &bucket;
  for (auto& [group, bucket] : last) bucket->last_of_group = true;
  std::stable_partition(
      buckets.begin(), buckets.end(), [](const auto& bucket) { return !bucket.last_of_group; });
  return buckets;
}

}  // namespace fulmen::detail
