#pragma once

#include <optional>
#include <string>

#include "fulmen/core/data/batch_source.h"
#include "fulmen/trainer/options.h"

namespace fulmen::detail {

enum class Lookahead { kNo, kYes };

/// One loader as a loop reads it: cut to its limit and, with lookahead, knowing which batch is the
/// last.
class LimitedSource {
 public:
  /// `what` names the loader and `option` its limit in messages.
  LimitedSource(BatchSource& source,
                BatchLimit limit,
                std::string what,
                std::string option,
                Lookahead lookahead);

  /// `own_end`: where cut() was called before a checkpoint of this epoch was written. Throws
  /// ConfigError if the limit is a fraction of an unknown size or of too few batches.
  void start(const EpochStart& start, std::optional<std::int64_t> own_end = {});
  bool next(AnyBatch& batch);
  /// Whether the batch that next() gave is the epoch's last. Needs lookahead.
  bool at_last() const;
  /// On several ranks: the epoch has so many batches. Where this rank has none left before, next()
  /// is true, leaves the batch as it is, and idle() is true.
  void set_joint_size(std::int64_t batches) { joint_size_ = batches; }
  bool idle() const { return idle_; }
  /// This rank leaves out the batch that next() gave and the rest of the epoch.
  void cut() {
    own_end_ = given_;
    idle_ = true;
  }
  std::optional<std::int64_t> own_end() const { return own_end_; }
  /// Of the batch that next() gave: what its rows are to those of the other ranks, 1 on average.
  double weight() const { return weight_; }
  /// What must be the same on all ranks that share this epoch, in words.
  std::string order() const { return source_.order(); }
  void stop() noexcept;
  /// Throws DataError if there is nothing to read although the limit is not 0.
  void require_batches() const;
  /// Batches in an epoch, as far as known.
  std::optional<std::int64_t> size() const;

 private:
  std::int64_t last_own_batch() const;

  BatchSource& source_;
  BatchLimit limit_;
  std::string what_;
  std::string option_;
  Lookahead lookahead_;
  std::optional<std::int64_t> size_;
  bool exact_ = false;  ///< The size is what the source says, not only a limit.
  std::optional<std::int64_t> joint_size_;
  std::optional<std::int64_t> own_end_;  ///< Where this rank's batches end before its size says so.
  bool idle_ = false;
  std::int64_t given_ = 0;
  double weight_ = 1;
  AnyBatch ahead_;
};

/// Leaves the epoch of a source at the end of a scope, also by an exception.
struct StopAtExit {
  LimitedSource& source;
  ~StopAtExit() { source.stop(); }
};

}  // namespace fulmen::detail
