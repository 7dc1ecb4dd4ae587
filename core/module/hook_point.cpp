#include "fulmen/core/module/hook_point.h"

#include <array>

namespace fulmen {
namespace {

struct HookTraits {
  std::string_view name;
  LoggingRule rule;
};

constexpr LoggingRule kNo = LoggingRule::kForbidden;
constexpr LoggingRule kStep = LoggingRule::kStepDefault;
constexpr LoggingRule kEpoch = LoggingRule::kEpochDefault;
constexpr LoggingRule kOnly = LoggingRule::kEpochOnly;

// In the order of the enumerators.
constexpr auto kHooks = std::to_array<HookTraits>({
    {"no hook", kNo},
    {"prepare_data", kNo},
    {"setup", kNo},
    {"teardown", kNo},
    {"configure_callbacks", kNo},
    {"configure_sharded_model", kNo},
    {"on_configure_sharded_model", kNo},
    {"configure_optimizers", kNo},
    {"train_dataloader", kNo},
    {"val_dataloader", kNo},
    {"test_dataloader", kNo},
    {"predict_dataloader", kNo},
    {"on_before_batch_transfer", kNo},
    {"transfer_batch_to_device", kNo},
    {"on_after_batch_transfer", kNo},
    {"on_fit_start", kNo},
    {"on_fit_end", kNo},
    {"on_sanity_check_start", kNo},
    {"on_sanity_check_end", kNo},
    {"on_train_start", kOnly},
    {"on_train_end", kNo},
    {"on_train_epoch_start", kOnly},
    {"on_train_epoch_end", kOnly},
    {"on_train_batch_start", kStep},
    {"training_step", kStep},
    {"on_before_zero_grad", kStep},
    {"optimizer_zero_grad", kStep},
    {"on_before_backward", kStep},
    {"backward", kStep},
    {"on_after_backward", kStep},
    {"on_before_optimizer_step", kStep},
    {"configure_gradient_clipping", kStep},
    {"optimizer_step", kStep},
    {"lr_scheduler_step", kNo},
    {"on_train_batch_end", kStep},
    {"on_validation_model_eval", kNo},
    {"on_validation_model_train", kNo},
    {"on_validation_model_zero_grad", kNo},
    {"on_validation_start", kOnly},
    {"on_validation_end", kNo},
    {"on_validation_epoch_start", kOnly},
    {"on_validation_epoch_end", kOnly},
    {"on_validation_batch_start", kEpoch},
    {"validation_step", kEpoch},
    {"on_validation_batch_end", kEpoch},
    {"on_test_model_eval", kNo},
    {"on_test_model_train", kNo},
    {"on_test_start", kOnly},
    {"on_test_end", kNo},
    {"on_test_epoch_start", kOnly},
    {"on_test_epoch_end", kOnly},
    {"on_test_batch_start", kEpoch},
    {"test_step", kEpoch},
    {"on_test_batch_end", kEpoch},
    {"on_predict_model_eval", kNo},
    {"on_predict_start", kNo},
    {"on_predict_end", kNo},
    {"on_predict_epoch_start", kNo},
    {"on_predict_epoch_end", kNo},
    {"on_predict_batch_start", kNo},
    {"predict_step", kNo},
    {"on_predict_batch_end", kNo},
    {"on_save_checkpoint", kNo},
    {"on_load_checkpoint", kNo},
    {"on_exception", kNo},
    {"on_interrupt", kNo},
});
static_assert(kHooks.size() == kHookPointCount);
static_assert(kHooks[static_cast<int>(HookPoint::kTrainingStep)].name == "training_step");
static_assert(kHooks[static_cast<int>(HookPoint::kOnValidationEpochEnd)].name ==
              "on_validation_epoch_end");
static_assert(kHooks[static_cast<int>(HookPoint::kOnInterrupt)].name == "on_interrupt");

}  // namespace

std::string_view to_string(HookPoint hook) {
  return kHooks[static_cast<std::size_t>(hook)].name;
}

std::optional<HookPoint> find_hook_point(std::string_view name) {
  for (std::size_t i = 0; i < kHooks.size(); ++i) {
    if (kHooks[i].name == name) return static_cast<HookPoint>(i);
  }
  return std::nullopt;
}

LoggingRule logging_rule(HookPoint hook) {
  return kHooks[static_cast<std::size_t>(hook)].rule;
}

}  // namespace fulmen
