#pragma once

#include "fulmen/core/checkpoint/checkpoint.h"
#include "fulmen/core/data/batch_source.h"
#include "fulmen/trainer/trainer.h"

namespace fulmen::detail {

class Session;

/// Everything of a running or finished fit as a checkpoint. Calls on_save_checkpoint. Tensors are
/// shared, not copied.
CheckpointContents capture(Session& session, CheckpointScope scope);
/// Only what is not parameters or optimizer state, copied: position, metrics, callbacks, random
/// state.
CheckpointContents capture_position(Session& session);

/// Puts back weights, optimizers, schedulers, callbacks and data module, and leaves the rest in
/// `session.restoring`. Everything is checked first: throws CheckpointError that lists all that
/// does not fit, and then nothing is changed.
void restore(Session& session, CheckpointContents contents, Restore what, const std::string& from);

// The rest, in the order of the fit loop.
void restore_source(Session& session, BatchSource& source);
void restore_metrics(Session& session);
void restore_random_state(Session& session);

}  // namespace fulmen::detail
