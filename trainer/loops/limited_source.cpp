#include "limited_source.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {

LimitedSource::LimitedSource(BatchSource& source,
                             BatchLimit limit,
                             std::string what,
                             std::string option,
                             Lookahead lookahead)
    : source_(source),
      limit_(limit),
      what_(std::move(what)),
      option_(std::move(option)),
      lookahead_(lookahead) {}

std::optional<std::int64_t> LimitedSource::size() const {
  const auto all = source_.size();
  if (limit_.kind() == BatchLimit::Kind::kAll) return all;
  if (limit_.kind() == BatchLimit::Kind::kBatches) {
    const auto limit = static_cast<std::int64_t>(limit_.value());
    return all ? std::min(*all, limit) : limit;
  }
  if (!all) {
    fail<ConfigError>("Trainer",
                      option_,
                      " = fraction(",
                      limit_.value(),
                      ") needs a loader of known size, but ",
                      what_,
                      " has none. Use fulmen::batches(n).");
  }
  const auto part =
      static_cast<std::int64_t>(std::floor(static_cast<double>(*all) * limit_.value()));
  if (part == 0 && *all > 0 && limit_.value() > 0) {
    fail<ConfigError>("Trainer",
                      option_,
                      " = fraction(",
                      limit_.value(),
                      ") leaves no batch: ",
                      what_,
                      " has ",
                      *all,
                      " batches, and ",
                      *all,
                      " x ",
                      limit_.value(),
                      " < 1. Use a greater fraction or fulmen::batches(n).");
  }
  return part;
}

void LimitedSource::start(const EpochStart& start, std::optional<std::int64_t> own_end) {
  ahead_.reset();
  idle_ = false;
  own_end_ = own_end;
  given_ = start.batches_to_skip;
  auto own = start;
  // A rank that was idle when the checkpoint was written reads its last batch again, for hooks.
  if (joint_size_) own.batches_to_skip = std::min(given_, last_own_batch());
  source_.start_epoch(own);
  size_ = size();
  exact_ = source_.size().has_value();
  if (own.batches_to_skip == given_) return;
  source_.next(ahead_);
}

std::int64_t LimitedSource::last_own_batch() const {
  auto end = size().value_or(std::numeric_limits<std::int64_t>::max());
  if (own_end_) end = std::min(end, *own_end_);
  return std::max<std::int64_t>(end - 1, 0);
}

bool LimitedSource::next(AnyBatch& batch) {
  const bool own_left = !own_end_ && !(size_ && given_ >= *size_);
  if (joint_size_ && given_ < *joint_size_ && !own_left) {
    if (ahead_.has_value()) batch = std::exchange(ahead_, AnyBatch());
    idle_ = true;
    ++given_;
    return true;
  }
  batch.reset();
  if (size_ && given_ >= *size_) return false;
  if (ahead_.has_value()) {
    batch = std::move(ahead_);
    ahead_.reset();
  } else if (!source_.next(batch)) {
    if (exact_) {
      fail<DataError>(what_,
                      "ended after ",
                      given_,
                      " batches, but said it has ",
                      *source_.size(),
                      ". size() and the batches that it yields must agree.");
    }
    if (joint_size_) {
      fail<DataError>(what_,
                      "ended after ",
                      given_,
                      " batches on this rank, but ranks have agreed on ",
                      *joint_size_,
                      ". A stream must have as many batches as its limit on every rank.");
    }
    return false;
  }
  ++given_;
  weight_ = source_.weight();
  // Only a source of unknown size is read ahead: reading may draw random numbers, and a resumed run
  // has to draw the same.
  if (lookahead_ == Lookahead::kYes && !exact_ && !(size_ && given_ >= *size_))
    source_.next(ahead_);
  return true;
}

void LimitedSource::require_batches() const {
  if (limit_.is_off() || source_.size() != 0) return;
  fail<DataError>(what_,
                  "has no batches: its dataset is empty, or smaller than a batch with drop_last.");
}

bool LimitedSource::at_last() const {
  if (joint_size_) return given_ >= *joint_size_;
  if (size_ && given_ >= *size_) return true;
  return !exact_ && !ahead_.has_value();
}

void LimitedSource::stop() noexcept {
  ahead_.reset();
  source_.stop_epoch();
}

}  // namespace fulmen::detail
