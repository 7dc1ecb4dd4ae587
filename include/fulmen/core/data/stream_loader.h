#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "fulmen/core/data/loader_epoch.h"
#include "fulmen/core/data/source_errors.h"

namespace fulmen {

/// What a stream knows of itself.
struct StreamOptions {
  std::optional<std::int64_t> size = {};  ///< Batches per epoch; empty: unknown, or endless.
  /// The function that makes the stream takes EpochStart and begins after `batches_to_skip`
  /// batches, so that a run can be resumed inside an epoch.
  bool can_skip = false;
};

namespace detail {

template <class F>
auto open_stream(F& make, const EpochStart& start) {
  if constexpr (std::invocable<F&, const EpochStart&>) {
    return make(start);
  } else if constexpr (std::invocable<F&, std::int64_t>) {
    return make(start.epoch);
  } else {
    static_assert(std::invocable<F&>,
                  "The function that makes a stream takes fulmen::EpochStart, the epoch as "
                  "std::int64_t, or nothing.");
    return make();
  }
}

template <class F>
using StreamOf = decltype(open_stream(std::declval<F&>(), std::declval<const EpochStart&>()));
template <class F>
using StreamItem = std::invoke_result_t<StreamOf<F>&>;

template <class T>
inline constexpr bool kIsOptionalBatch = false;
template <class B>
inline constexpr bool kIsOptionalBatch<std::optional<B>> = true;

template <class B>
class StreamSource final : public BatchSource {
 public:
  using Stream = std::function<std::optional<B>()>;
  using Make = std::function<Stream(const EpochStart&)>;

  StreamSource(std::shared_ptr<const Make> make, const StreamOptions& options)
      : make_(std::move(make)), options_(options) {}

  const std::type_info& batch_type() const override { return typeid(B); }
  std::optional<std::int64_t> size() const override { return options_.size; }
  bool can_skip() const override { return options_.can_skip; }
  void start_epoch(const EpochStart& start) override {
    if (stream_) fail_epoch_open(epoch_);
    if (start.batches_to_skip > 0 && !can_skip()) fail_stream_skip();
    stream_ = (*make_)(start);
    epoch_ = start.epoch;
  }
  bool next(AnyBatch& batch) override {
    batch.reset();
    if (!stream_) return false;
    auto item = stream_();
    if (!item) {
      stop_epoch();
      return false;
    }
    batch = AnyBatch(std::move(*item));
    return true;
  }
  void stop_epoch() noexcept override { stream_ = nullptr; }

 private:
  std::shared_ptr<const Make> make_;
  StreamOptions options_;
  Stream stream_;
  std::int64_t epoch_ = 0;
};

}  // namespace detail

/// Batches of type B from a stream whose length need not be known; made by stream_loader.
template <class B>
class StreamLoader {
 public:
  using batch_type = B;
  using Make = typename detail::StreamSource<B>::Make;

  StreamLoader(Make make, const StreamOptions& options)
      : make_(std::make_shared<const Make>(std::move(make))), options_(options) {
    if (options.size.value_or(0) < 0) detail::fail_stream_size(*options.size);
  }

  /// A new source: each use has a stream of its own.
  std::shared_ptr<BatchSource> source() const {
    return std::make_shared<detail::StreamSource<B>>(make_, options_);
  }
  /// For a loop of your own: for (B& batch : loader.epoch(0)) ...
  LoaderEpoch<B> epoch(std::int64_t epoch) const { return LoaderEpoch<B>(source(), epoch); }

 private:
  std::shared_ptr<const Make> make_;
  StreamOptions options_;
};

/// `make` is called at the start of each epoch, with EpochStart, the epoch, or nothing, and returns
/// the stream: a function that returns std::optional<B>, the next batch or nothing at the end.
/// Streams of one epoch must be equal for a run to be repeatable.
///   stream_loader([](std::int64_t epoch) { return [reader = Reader(epoch)]() mutable { return
///   reader.next(); }; })
template <class F>
auto stream_loader(F make, const StreamOptions& options = {}) {
  using Item = std::remove_cvref_t<detail::StreamItem<F>>;
  static_assert(detail::kIsOptionalBatch<Item>,
                "A stream is a function without arguments that returns std::optional<B>: the next "
                "batch, or nothing at "
                "the end.");
  if (options.can_skip && !std::invocable<F&, const EpochStart&>)
    detail::fail_stream_takes_no_start();
  return StreamLoader<typename Item::value_type>(
      [make = std::move(make)](const EpochStart& start) mutable {
        return detail::open_stream(make, start);
      },
      options);
}

}  // namespace fulmen
