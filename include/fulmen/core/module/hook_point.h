#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace fulmen {

/// What runs now: every hook of modules, callbacks and data modules.
enum class HookPoint : std::uint8_t {
  kOutside,  ///< No hook: the trainer's own code, or no run.

  kPrepareData,
  kSetup,
  kTeardown,
  kConfigureCallbacks,
  kConfigureShardedModel,
  kOnConfigureShardedModel,
  kConfigureOptimizers,
  kTrainDataloader,
  kValDataloader,
  kTestDataloader,
  kPredictDataloader,
  kOnBeforeBatchTransfer,
  kTransferBatchToDevice,
  kOnAfterBatchTransfer,

  kOnFitStart,
  kOnFitEnd,
  kOnSanityCheckStart,
  kOnSanityCheckEnd,
  kOnTrainStart,
  kOnTrainEnd,
  kOnTrainEpochStart,
  kOnTrainEpochEnd,

  kOnTrainBatchStart,
  kTrainingStep,
  kOnBeforeZeroGrad,
  kOptimizerZeroGrad,
  kOnBeforeBackward,
  kBackward,
  kOnAfterBackward,
  kOnBeforeOptimizerStep,
  kConfigureGradientClipping,
  kOptimizerStep,
  kLrSchedulerStep,
  kOnTrainBatchEnd,

  kOnValidationModelEval,
  kOnValidationModelTrain,
  kOnValidationModelZeroGrad,
  kOnValidationStart,
  kOnValidationEnd,
  kOnValidationEpochStart,
  kOnValidationEpochEnd,
  kOnValidationBatchStart,
  kValidationStep,
  kOnValidationBatchEnd,

  kOnTestModelEval,
  kOnTestModelTrain,
  kOnTestStart,
  kOnTestEnd,
  kOnTestEpochStart,
  kOnTestEpochEnd,
  kOnTestBatchStart,
  kTestStep,
  kOnTestBatchEnd,

  kOnPredictModelEval,
  kOnPredictStart,
  kOnPredictEnd,
  kOnPredictEpochStart,
  kOnPredictEpochEnd,
  kOnPredictBatchStart,
  kPredictStep,
  kOnPredictBatchEnd,

  kOnSaveCheckpoint,
  kOnLoadCheckpoint,
  kOnException,
  kOnInterrupt,  ///< The last one: kHookPointCount counts up to here.
};

inline constexpr int kHookPointCount = static_cast<int>(HookPoint::kOnInterrupt) + 1;

/// What log() does in a hook. The defaults are Lightning's.
enum class LoggingRule : std::uint8_t {
  kForbidden,
  kStepDefault,   ///< on_step, not on_epoch, unless asked otherwise.
  kEpochDefault,  ///< on_epoch, not on_step, unless asked otherwise.
  kEpochOnly,     ///< on_epoch; asking for on_step is an error.
};

/// The hook's name: "on_train_batch_end". kOutside: "no hook".
std::string_view to_string(HookPoint hook);
/// The reverse; empty for an unknown name.
std::optional<HookPoint> find_hook_point(std::string_view name);

LoggingRule logging_rule(HookPoint hook);

/// Hooks of an evaluation batch: metrics logged there belong to the loader that the batch is from.
constexpr bool is_evaluation_batch_hook(HookPoint hook) {
  return (hook >= HookPoint::kOnValidationBatchStart && hook <= HookPoint::kOnValidationBatchEnd) ||
         (hook >= HookPoint::kOnTestBatchStart && hook <= HookPoint::kOnTestBatchEnd);
}

}  // namespace fulmen
