#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fulmen::detail {

/// What decides into which bucket a gradient goes.
struct BucketItem {
  std::size_t group = 0;  ///< Number of its reduction group.
  at::ScalarType dtype = at::kFloat;
  c10::Device device = c10::Device(c10::kCPU);
  std::int64_t bytes = 0;
};

/// One bucket: items of one group, dtype and device.
struct BucketPlan {
  std::size_t group = 0;
  std::vector<std::size_t> items;
  bool last_of_group = false;  ///< Carries the slot, so it is reduced at the end of the window.
};

/// In bytes.
struct BucketCaps {
  std::int64_t first = 0;
  std::int64_t other = 0;
};

/// Deals the items out in `order`. A bucket is closed when it has reached its cap: caps.first for
/// the first of all; for others caps.other, or an eighth of what its group has of its dtype on its
/// device if that is less, but not less than caps.first. Buckets are reduced in the order in which
/// they are returned: that in which they are closed, then the last one of each group. Depends on
/// nothing but its arguments, since all ranks must get the same.
std::vector<BucketPlan> plan_buckets(const std::vector<BucketItem>& items,
                                     const std::vector<std::size_t>& order,
                                     const BucketCaps& caps);

}  // namespace fulmen::detail
