#pragma once

#include <cstdint>
#include <optional>

namespace fulmen {

enum class MetricReduction { kMean, kSum, kMin, kMax };

/// How a value is recorded by log(). Names and defaults are Lightning's; see docs/logging.md.
struct LogOptions {
  bool prog_bar = false;                            ///< Show it in the progress bar.
  bool logger = true;                               ///< Send it to the loggers.
  std::optional<bool> on_step = {};                 ///< Unset: yes in training steps, no elsewhere.
  std::optional<bool> on_epoch = {};                ///< Unset: no in training steps, yes elsewhere.
  MetricReduction reduce = MetricReduction::kMean;  ///< Over the steps of an epoch.
  std::optional<std::int64_t> batch_size = {};      ///< Weight in a mean. Unset: rows of the batch.
  bool add_dataloader_idx = true;  ///< Suffix "/dataloader_idx_i" with several eval loaders.
};

}  // namespace fulmen
