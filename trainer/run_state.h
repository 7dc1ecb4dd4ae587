#pragma once

#include <array>

#include "fulmen/core/checkpoint/checkpoint.h"
#include "fulmen/core/data/batch_source.h"
#include "fulmen/trainer/trainer.h"

namespace fulmen::detail {

class Session;

/// What of trainer.json differs between ranks: others than rank 0 keep their own beside it.
inline constexpr std::array kRankParts = {
    "loop", "metrics", "train_data", "callbacks", "callback_extras", "module_extra", "data_module"};

/// Everything of a running or finished fit as a checkpoint. Calls on_save_checkpoint. Tensors are
/// shared, not copied.
CheckpointContents capture(Session& session, CheckpointScope scope);
/// Throws CheckpointError if a parameter differs between ranks: it would be written by one alone.
void refuse_parts(Session& session);
/// Collective: rank 0 writes the checkpoint, with the own state of every rank in it. An error on
/// one rank is an error on all.
void write_jointly(Session& session, const std::filesystem::path& directory, CheckpointScope scope);
/// Only what is not parameters or optimizer state, copied: position, metrics, callbacks, random
/// state.
CheckpointContents capture_position(Session& session);

/// Reads a checkpoint, puts back weights, optimizers, schedulers, callbacks and data module, and
/// leaves the rest in `session.restoring`. Everything is checked first, on all ranks: throws
/// CheckpointError (on several ranks DistributedError) that lists all that does not fit, and then
/// nothing is changed on any.
void restore(Session& session, const std::filesystem::path& from, Restore what);

// The rest, in the order of the fit loop.
void restore_source(Session& session, BatchSource& source);
void restore_metrics(Session& session);
void restore_random_state(Session& session);

}  // namespace fulmen::detail
