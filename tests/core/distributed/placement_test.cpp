#include "fulmen/core/distributed/placement.h"

#include <gtest/gtest.h>

namespace fulmen {
namespace {

TEST(Placement, HasANameForMessages) {
  EXPECT_EQ(to_string(replicated()), "replicated");
  EXPECT_EQ(to_string(shared()), "shared");
  EXPECT_EQ(to_string(sharded(0)), "sharded(0)");
  EXPECT_EQ(to_string(sharded(2)), "sharded(2)");
  EXPECT_EQ(to_string(local()), "local");
}

TEST(Placement, IsEqualOnlyIfKindAndDimAre) {
  EXPECT_EQ(sharded(1), sharded(1));
  EXPECT_NE(sharded(1), sharded(0));
  EXPECT_NE(shared(), replicated());
  EXPECT_NE(local(), sharded(0));
  EXPECT_EQ(Placement{}, replicated());
}

}  // namespace
}  // namespace fulmen
