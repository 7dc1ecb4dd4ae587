#include "fulmen/core/module/hook_point.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace fulmen {
namespace {

std::set<std::string> hooks_with(LoggingRule rule) {
  std::set<std::string> names;
  for (int i = 0; i < kHookPointCount; ++i) {
    const auto hook = static_cast<HookPoint>(i);
    if (logging_rule(hook) == rule) names.emplace(to_string(hook));
  }
  return names;
}

TEST(HookPoint, NamesAreUniqueAndFoundAgain) {
  std::set<std::string_view> names;
  for (int i = 0; i < kHookPointCount; ++i) {
    const auto hook = static_cast<HookPoint>(i);
    EXPECT_TRUE(names.insert(to_string(hook)).second) << to_string(hook);
    EXPECT_EQ(find_hook_point(to_string(hook)), hook);
  }
  EXPECT_FALSE(find_hook_point("on_nothing"));
  EXPECT_EQ(to_string(HookPoint::kOnTrainBatchEnd), "on_train_batch_end");
}

// lightning.md, section 3.
TEST(HookPoint, HooksOfATrainingBatchLogStepsByDefault) {
  EXPECT_EQ(hooks_with(LoggingRule::kStepDefault),
            (std::set<std::string>{"training_step",
                                   "on_train_batch_start",
                                   "on_train_batch_end",
                                   "on_before_backward",
                                   "backward",
                                   "on_after_backward",
                                   "on_before_optimizer_step",
                                   "optimizer_step",
                                   "configure_gradient_clipping",
                                   "on_before_zero_grad",
                                   "optimizer_zero_grad"}));
}

TEST(HookPoint, HooksOfAnEvaluationBatchLogEpochsByDefaultAndBelongToALoader) {
  const std::set<std::string> expected = {"validation_step",
                                          "on_validation_batch_start",
                                          "on_validation_batch_end",
                                          "test_step",
                                          "on_test_batch_start",
                                          "on_test_batch_end"};
  EXPECT_EQ(hooks_with(LoggingRule::kEpochDefault), expected);
  std::set<std::string> of_loaders;
  for (int i = 0; i < kHookPointCount; ++i) {
    const auto hook = static_cast<HookPoint>(i);
    if (is_evaluation_batch_hook(hook)) of_loaders.emplace(to_string(hook));
  }
  EXPECT_EQ(of_loaders, expected);
}

TEST(HookPoint, HooksOfAnEpochLogOnlyEpochs) {
  std::set<std::string> expected;
  for (const char* phase : {"train", "validation", "test"}) {
    for (const char* end : {"start", "epoch_start", "epoch_end"}) {
      expected.insert(std::string("on_") + phase + "_" + end);
    }
  }
  EXPECT_EQ(hooks_with(LoggingRule::kEpochOnly), expected);
}

}  // namespace
}  // namespace fulmen
