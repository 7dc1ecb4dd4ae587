#pragma once

#include <string>

#include "fulmen/core/distributed/environment.h"

namespace fulmen::detail {

/// The batch job of SLURM in which this process runs, as scontrol names it; empty: none.
/// Interactive jobs cannot be requeued.
std::string slurm_batch_job(const VariableLookup& variable);
/// Puts the job back into the queue with `scontrol requeue`. Throws Error that says why it did not
/// work; waits up to 30 s.
void requeue_slurm_job(const std::string& job);

}  // namespace fulmen::detail
