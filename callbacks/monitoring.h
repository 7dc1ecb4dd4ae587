#pragma once

#include <optional>

#include "fulmen/callbacks/monitor_mode.h"
#include "fulmen/core/module/trainer_context.h"

namespace fulmen::detail {

/// Whether callbacks that decide something are awake: in a fit that is neither a sanity check nor a
/// dry run.
bool decides(const TrainerContext& context);
/// Lightning's rule: at the end of the training epoch if each epoch ends with its only validation
/// or if there is none; else at the end of validation. `choice` is the user's.
bool acts_at_train_epoch_end(const RunPlan& plan, std::optional<bool> choice);
/// Strictly better; NaN is worse than every number in both modes.
bool is_better(MonitorMode mode, double candidate, double than);
/// "min" or "max".
const char* mode_name(MonitorMode mode);
/// "'a', 'b'" of the metrics that exist, or "none", for messages.
std::string known_metrics(const TrainerContext& context);
/// Whether this rank writes files and logs.
bool is_writer(TrainerContext& context);
/// Rank 0's text on all ranks. Collective.
std::string from_rank_zero(TrainerContext& context, const std::string& text);
double from_rank_zero(TrainerContext& context, double value);
/// The largest value of all ranks. Collective if there are several.
std::int64_t agree_on_max(TrainerContext& context, std::int64_t value);

}  // namespace fulmen::detail
