#pragma once

#include <string>

#include "fulmen/core/checkpoint/checkpoint.h"

namespace fulmen::detail {

class Session;

/// Whether a checkpoint is of another number of data ranks than this run has. Throws
/// CheckpointError if the meshes differ in more than that.
bool has_other_data_ranks(Session& session,
                          const CheckpointContents& contents,
                          const std::string& from);

/// Throws CheckpointError if an optimizer step was half done in such a checkpoint: each rank had
/// its own gradients then.
void refuse_open_gradients(Session& session,
                           const CheckpointContents& contents,
                           const std::string& from);
/// Of rank 0's part of such a checkpoint, makes what this rank goes on with: the open sums of
/// metrics (of all old ranks, on the first), and a random stream of its own that is new.
void take_over(Session& session, CheckpointContents& contents, const std::string& from);

}  // namespace fulmen::detail
