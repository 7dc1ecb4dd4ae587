#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <typeinfo>

#include "fulmen/core/data/batch.h"
#include "fulmen/core/support/state_dict.h"

namespace fulmen {

/// Where an epoch starts.
struct EpochStart {
  std::int64_t epoch = 0;            ///< Counts from 0; shuffling is a function of (seed, epoch).
  std::int64_t batches_to_skip = 0;  ///< Greater than 0 only when a run is resumed inside an epoch.
};

/// Which part of the data a data rank reads.
struct DataShare {
  int index = 0;
  int count = 1;
  bool operator==(const DataShare&) const = default;
};

/// Yields the batches of an epoch: what the loops read. Made by Loader<B>; implement it for a
/// source of your own. Call order: start_epoch, next until it is false, stop_epoch (also early);
/// then again. Not thread-safe.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  virtual const std::type_info& batch_type() const = 0;
  /// Batches in the epoch that runs or that start_epoch would start; empty if unknown.
  virtual std::optional<std::int64_t> size() const = 0;
  /// Throws DataError if batches are to be skipped and the source cannot.
  virtual void start_epoch(const EpochStart& start) = 0;
  /// False at the end of the epoch; `batch` is empty then.
  virtual bool next(AnyBatch& batch) = 0;
  /// Leaves the epoch, at its end or before it. Does nothing if none is open.
  virtual void stop_epoch() noexcept {}

  /// Whether a run can be resumed inside an epoch of this source.
  virtual bool can_skip() const { return false; }
  /// The seed to use if the user gave none. Called before the first epoch.
  virtual void set_default_seed(std::uint64_t /*seed*/) {}
  /// From the next epoch on, reads a share of the samples: shares of one epoch are disjoint and
  /// make up the whole. False: it cannot be shared out. Called before the first epoch, also with
  /// {0, 1}.
  virtual bool set_share(const DataShare& share) { return share.count == 1; }
  /// In words, of the open epoch: what has to be the same on all ranks so that shares are disjoint
  /// and make up the whole; ranks compare it. Empty: nothing.
  virtual std::string order() const { return {}; }
  /// Of the batch that next() gave last: its samples, times the shares, over the samples of the
  /// same batch of all shares. So the mean over ranks, weighted by it, is that over all samples,
  /// also where they do not divide evenly.
  virtual double weight() const { return 1; }
  /// What a resumed run needs besides (epoch, batch): the seed, the size of the open epoch.
  virtual StateDict state_dict() const { return {}; }
  /// Called before the first start_epoch.
  virtual void load_state_dict(const StateDict& /*state*/) {}
};

}  // namespace fulmen
