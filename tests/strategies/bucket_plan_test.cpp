#include "strategies/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fulmen::detail {
namespace {

using testing::ElementsAre;

std::vector<std::vector<std::size_t>> items_of(const std::vector<BucketPlan>& plan) {
  std::vector<std::vector<std::size_t>> result;
  for (const auto& bucket : plan) result.push_back(bucket.items);
  return result;
}

std::vector<BucketItem> of_bytes(const std::vector<std::int64_t>& bytes) {
  std::vector<BucketItem> items;
  for (const auto size : bytes) items.push_back({.bytes = size});
  return items;
}

using Buckets = std::vector<std::vector<std::size_t>>;

TEST(BucketPlan, ClosesABucketWhenItHasReachedItsCap) {
  auto items = of_bytes({10, 10, 10, 10, 10});
  items.push_back({.bytes = 1000});  // An eighth of all is beyond the caps.
  EXPECT_EQ(items_of(plan_buckets(items, {4, 3, 2, 1, 0, 5}, {.first = 10, .other = 20})),
            (Buckets{{4}, {3, 2}, {1, 0}, {5}}));
  // One byte less than the cap is not enough.
  EXPECT_EQ(items_of(plan_buckets(items, {4, 3, 2, 1, 0, 5}, {.first = 11, .other = 21})),
            (Buckets{{4, 3}, {2, 1, 0}, {5}}));
}

TEST(BucketPlan, ClosesAtAnEighthOfAllBytesBelowTheCap) {
  const auto items = of_bytes(std::vector<std::int64_t>(16, 10));
  std::vector<std::size_t> order(16);
  for (std::size_t i = 0; i < 16; ++i) order[i] = i;
  const auto plan = plan_buckets(items, order, {.first = 10, .other = 1000});
  ASSERT_EQ(plan.size(), 9u);
  EXPECT_EQ(plan[0].items.size(), 1u);
  for (std::size_t i = 1; i < 8; ++i) EXPECT_EQ(plan[i].items.size(), 2u);
  // But nothing is closed below the first cap: small models have one bucket.
  EXPECT_EQ(plan_buckets(items, order, {.first = 1000, .other = 2000}).size(), 1u);
}

TEST(BucketPlan, TakesAnItemLargerThanTheCapWhole) {
  EXPECT_EQ(items_of(plan_buckets(of_bytes({100, 1}), {0, 1}, {.first = 10, .other = 10})),
            (Buckets{{0}, {1}}));
}

TEST(BucketPlan, KeepsGroupsDtypesAndDevicesApart) {
  const std::vector<BucketItem> items = {
      {.group = 0, .bytes = 4},
      {.group = 1, .bytes = 4},
      {.group = 0, .dtype = at::kBFloat16, .bytes = 2},
      {.group = 0, .device = c10::Device(c10::kCUDA, 1), .bytes = 4},
      {.group = 0, .bytes = 4},
  };
  const auto plan = plan_buckets(items, {0, 1, 2, 3, 4}, {.first = 100, .other = 100});
  // The last one of each group, 1 and then 0, at the end.
  EXPECT_EQ(items_of(plan), (Buckets{{0, 4}, {2}, {1}, {3}}));
}

TEST(BucketPlan, PutsTheLastBucketOfEachGroupAtTheEnd) {
  std::vector<BucketItem> items = of_bytes({8, 8, 8, 8, 8, 8});
  items[1].group = items[2].group = 1;
  const auto plan = plan_buckets(items, {0, 1, 2, 3, 4, 5}, {.first = 8, .other = 8});
  EXPECT_EQ(items_of(plan), (Buckets{{0}, {1}, {3}, {4}, {2}, {5}}));
  std::vector<bool> last;
  std::vector<std::size_t> groups;
  for (const auto& bucket : plan) {
    last.push_back(bucket.last_of_group);
    groups.push_back(bucket.group);
  }
  EXPECT_THAT(last, ElementsAre(false, false, false, false, true, true));
  EXPECT_THAT(groups, ElementsAre(0, 1, 0, 0, 1, 0));
}

TEST(BucketPlan, HasEachItemOfTheOrderOnceAndNoOther) {
  const auto items = of_bytes({3, 1, 4, 1, 5, 9, 2, 6});
  const auto plan = plan_buckets(items, {7, 2, 5, 0, 3}, {.first = 4, .other = 7});
  std::vector<std::size_t> all;
  for (const auto& bucket : plan) all.insert(all.end(), bucket.items.begin(), bucket.items.end());
  EXPECT_THAT(all, testing::UnorderedElementsAre(7, 2, 5, 0, 3));
  EXPECT_TRUE(plan_buckets(items, {}, {.first = 4, .other = 7}).empty());
}

}  // namespace
}  // namespace fulmen::detail
