#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <type_traits>
#include <utility>

#include "fulmen/core/data/batch_source.h"
#include "fulmen/core/data/source_errors.h"

namespace torch::data {
template <typename Dataset, typename Batch, typename BatchRequest>
class DataLoaderBase;
}

namespace fulmen::detail {

/// A standard range, or a type that is one in all but name: the loaders of torch::data.
template <class R>
concept Iterable = std::ranges::range<R> || requires(R& range, decltype(range.begin()) position) {
  position != range.end();
  *position;
  ++position;
};

template <Iterable R>
auto range_begin(R& range) {
  if constexpr (std::ranges::range<R>) {
    return std::ranges::begin(range);
  } else {
    return range.begin();
  }
}
template <Iterable R>
auto range_end(R& range) {
  if constexpr (std::ranges::range<R>) {
    return std::ranges::end(range);
  } else {
    return range.end();
  }
}
template <Iterable R>
using RangeValue = std::remove_cvref_t<decltype(*range_begin(std::declval<R&>()))>;

/// Opens the queue of a torch::data loader, which refuses a new epoch while batches of the last one
/// are on their way.
template <class Dataset, class TorchBatch, class Request>
struct TorchLoaderQueue : torch::data::DataLoaderBase<Dataset, TorchBatch, Request> {
  static auto member() { return &TorchLoaderQueue::shuttle_; }
};
template <class Dataset, class TorchBatch, class Request>
void drain_torch_loader(torch::data::DataLoaderBase<Dataset, TorchBatch, Request>& loader) {
  (loader.*TorchLoaderQueue<Dataset, TorchBatch, Request>::member()).drain();
}

/// The batches of a range. Yields copies, whose tensors may be replaced.
template <class B, Iterable R>
class RangeSource final : public BatchSource {
 public:
  explicit RangeSource(std::shared_ptr<R> range) : range_(std::move(range)) {}
  RangeSource(const RangeSource&) = delete;
  RangeSource& operator=(const RangeSource&) = delete;
  ~RangeSource() override { RangeSource::stop_epoch(); }

  const std::type_info& batch_type() const override { return typeid(B); }
  std::optional<std::int64_t> size() const override {
    if constexpr (std::ranges::sized_range<R>) {
      return static_cast<std::int64_t>(std::ranges::size(*range_));
    } else {
      return {};
    }
  }
  bool can_skip() const override {
    return std::ranges::random_access_range<R> && std::ranges::sized_range<R>;
  }

  void start_epoch(const EpochStart& start) override {
    if (position_) fail_epoch_open(epoch_);
    if (start.batches_to_skip > 0) {
      if (!can_skip()) fail_range_skip();
      if (start.batches_to_skip > *size()) fail_range_skip(start.batches_to_skip, *size());
    }
    position_.emplace(range_begin(*range_));
    if constexpr (std::ranges::random_access_range<R>) {
      *position_ += static_cast<std::ranges::range_difference_t<R>>(start.batches_to_skip);
    }
    epoch_ = start.epoch;
    at_first_ = true;
  }

  bool next(AnyBatch& batch) override {
    batch.reset();
    if (!position_) return false;
    // Only now: the next batch of a loader is made by ++, and may never be wanted.
    if (!at_first_) ++*position_;
    const bool was_first = std::exchange(at_first_, false);
    if (!(*position_ != range_end(*range_))) {
      const bool restarts = std::ranges::forward_range<R> || !had_batches_ || !was_first;
      stop_epoch();
      if (!restarts) fail_single_pass(epoch_);
      return false;
    }
    had_batches_ = true;
    batch = AnyBatch(B(**position_));
    return true;
  }

  void stop_epoch() noexcept override {
    if (!position_) return;
    position_.reset();
    if constexpr (requires { detail::drain_torch_loader(*range_); })
      detail::drain_torch_loader(*range_);
  }

 private:
  std::shared_ptr<R> range_;
  std::optional<decltype(range_begin(std::declval<R&>()))> position_;
  std::int64_t epoch_ = 0;
  bool at_first_ = false;
  bool had_batches_ = false;
};

}  // namespace fulmen::detail
