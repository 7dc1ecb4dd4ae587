#pragma once

#include <fulmen/fulmen.h>

#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace fulmen {

enum class HookScheduler { kNone, kStep, kEpoch, kPlateauOnStep, kPlateauOnEpoch };
enum class HookCall { kFit, kValidate, kTest, kPredict };

/// One case of tests/parity/README.md; the defaults are what all cases share.
struct HookCase {
  std::string name;
  std::int64_t train_batches = 2;
  std::vector<std::int64_t> val_batches = {1};  ///< One loader each; also for test and predict.
  std::vector<HookCall> calls = {HookCall::kFit};
  TrainerOptions trainer = {.max_epochs = 1};
  ModelCheckpointOptions checkpoint = {};
  HookScheduler scheduler = HookScheduler::kNone;
  int manual_optimizers = 0;  ///< Greater than 0: manual optimization.
  bool lbfgs = false;
  bool data_module = false;
  std::optional<std::int64_t> raise_at = {};  ///< Batch whose training_step throws.
  std::optional<std::int64_t> none_at = {};   ///< Batch whose training_step returns nothing.
  std::optional<std::int64_t> skip_at = {};  ///< Batch whose on_train_batch_start leaves the epoch.
  std::optional<std::int64_t> stop_at =
      {};  ///< Batch at whose end the callback calls stop_training.
  /// A fit that is not recorded, with these options, writes `resume_from`, which the recorded call
  /// gets.
  std::optional<TrainerOptions> before = {};
  std::string resume_from = {};
};

inline void PrintTo(const HookCase& hook_case, std::ostream* stream) {
  *stream << hook_case.name;
}

struct HookRecord {
  std::vector<std::string>
      events;  ///< In the grammar of tests/parity/README.md, with its "# ----" lines.
  Progress progress;
};

/// Runs the case with everything recorded. Files go below `folder`.
HookRecord record_hooks(const HookCase& hook_case, const std::filesystem::path& folder);

}  // namespace fulmen
