#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "fulmen/core/distributed/strategy.h"
#include "fulmen/core/module/trainer_context.h"

namespace fulmen::detail {

/// Where a run is within a batch: decides what its state is worth for a checkpoint.
enum class BatchPhase {
  kBoundary,      ///< Between batches: the state is whole.
  kBeforeUpdate,  ///< Nothing that lasts has changed: the state of the last boundary can be put
                  ///< back.
  kUpdating,      ///< Parameters may have changed in part: no state to save.
};

/// The training loop's position. All of it is in checkpoints, but for what is marked.
struct LoopState {
  Progress progress;
  bool epoch_started = false;       ///< on_train_epoch_start has run, on_train_epoch_end has not.
  bool epoch_done = false;          ///< No more batches in this epoch.
  bool epoch_cut = false;           ///< The rest of the epoch was skipped.
  std::int64_t own_end = -1;        ///< Where this rank left the epoch (kSkipEpoch), if it did.
  bool validation_pending = false;  ///< A validation is due, and has not been completed.
  std::int64_t micro_batches = 0;   ///< In the open window.
  std::int64_t losses = 0;          ///< Of those, how many had a loss.
  bool skip_update = false;         ///< The open window has nothing to apply.
  WindowWeight weight;              ///< Of the open window.
  std::int64_t accumulate_grad_batches = 1;       ///< Of the open window, or the next.
  std::int64_t next_accumulate_grad_batches = 1;  ///< Not in checkpoints: the program says.
  double seconds_since_validation = 0;
  std::vector<std::int64_t> optimizer_steps;

  // Not in checkpoints.
  BatchPhase phase = BatchPhase::kBoundary;
  std::string stop_reason;         ///< Not empty: stop_training() was called.
  bool epoch_closing = false;      ///< Only monitors and checkpoints are left of this epoch: a
                                   ///< checkpoint stores the next.
  bool validation_wanted = false;  ///< On several ranks: by some rank's clock one is due.
  bool updated = false;            ///< An optimizer was stepped in this batch.

  bool window_open() const { return micro_batches > 0; }
  /// From the next window on.
  void set_accumulate_grad_batches(std::int64_t micro_batches_of_a_window) {
    next_accumulate_grad_batches = micro_batches_of_a_window;
    if (!window_open()) accumulate_grad_batches = micro_batches_of_a_window;
  }
  void close_window() {
    accumulate_grad_batches = next_accumulate_grad_batches;
    micro_batches = 0;
    losses = 0;
    weight = {};
  }
};

}  // namespace fulmen::detail
