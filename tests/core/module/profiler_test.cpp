#include "fulmen/core/module/profiler.h"

#include <gtest/gtest.h>

namespace fulmen {
namespace {

TEST(SimpleProfiler, GivesTheTimeUntilTheNextHookToTheHookBefore) {
  std::chrono::steady_clock::time_point time;
  auto profiler = SimpleProfiler::make({.clock = [&] { return time; }});
  profiler->enter(HookPoint::kTrainingStep);
  time += std::chrono::seconds(3);
  profiler->enter(HookPoint::kBackward);
  time += std::chrono::seconds(5);
  profiler->enter(HookPoint::kTrainingStep);
  time += std::chrono::seconds(1);
  profiler->enter(HookPoint::kOutside);
  EXPECT_DOUBLE_EQ(profiler->time(HookPoint::kTrainingStep).count(), 4);
  EXPECT_EQ(profiler->calls(HookPoint::kTrainingStep), 2);
  EXPECT_DOUBLE_EQ(profiler->time(HookPoint::kBackward).count(), 5);
  EXPECT_DOUBLE_EQ(profiler->time(HookPoint::kOutside).count(), 0);
}

TEST(SimpleProfiler, ListsTheLongestHookFirst) {
  std::chrono::steady_clock::time_point time;
  auto profiler = SimpleProfiler::make({.clock = [&] { return time; }});
  profiler->enter(HookPoint::kTrainingStep);
  time += std::chrono::seconds(1);
  profiler->enter(HookPoint::kBackward);
  time += std::chrono::seconds(3);
  profiler->enter(HookPoint::kOutside);
  const auto text = profiler->describe();
  EXPECT_LT(text.find("backward"), text.find("training_step"));
  EXPECT_NE(text.find("75.0%"), std::string::npos) << text;
}

}  // namespace
}  // namespace fulmen
