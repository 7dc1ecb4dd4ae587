#pragma once

#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "fulmen/core/data/loader_epoch.h"
#include "fulmen/core/data/loader_traits.h"
#include "fulmen/core/support/error.h"

namespace fulmen {

/// What type of batch a loader of type L yields; void if that is known at run time only.
template <class L>
using loader_batch_t = typename detail::LoaderTraits<std::remove_cvref_t<L>>::batch_type;

/// A handle on whatever yields batches of type B; copies share it. Empty: no loader. Converts from
/// - a fulmen::DataLoader or stream_loader;
/// - a range of B, for example std::vector<B>: an lvalue is referred to and must outlive the run,
/// an rvalue is kept;
/// - a loader of torch::data, also by std::unique_ptr or std::shared_ptr;
/// - a std::shared_ptr to a BatchSource of your own (ConfigError if it yields another type).
/// Anything else, and other batch types, are compile-time errors.
template <class B>
class Loader {
 public:
  using batch_type = B;

  Loader() = default;
  template <class L>
  requires(!std::is_same_v<std::remove_cvref_t<L>, Loader>) Loader(
      L&& loader) {  // NOLINT(google-explicit-constructor,bugprone-forwarding-reference-overload)
    using Yielded = loader_batch_t<L>;
    constexpr bool kIsLoader = !std::is_same_v<Yielded, detail::NotALoader>;
    constexpr bool kFits = !kIsLoader || std::is_void_v<Yielded> || std::is_same_v<Yielded, B>;
    static_assert(kIsLoader,
                  "This is not a loader: a fulmen::DataLoader, a range of batches, a loader of "
                  "torch::data or a "
                  "std::shared_ptr<BatchSource> is wanted.");
    static_assert(
        kFits,
        "This loader yields another batch type than the module's step takes: make the module a "
        "LightningModule<that type>, or give the DataLoader a transform that returns the module's "
        "type.");
    if constexpr (kIsLoader && kFits) source_ = detail::make_source<B>(std::forward<L>(loader));
  }

  explicit operator bool() const { return source_ != nullptr; }
  /// Null if there is no loader.
  const std::shared_ptr<BatchSource>& source() const { return source_; }
  /// For a loop of your own: for (B& batch : loader.epoch(0)) ...
  LoaderEpoch<B> epoch(std::int64_t epoch) const {
    if (source_ == nullptr) detail::fail_null_loader();
    return LoaderEpoch<B>(source_, epoch);
  }

 private:
  std::shared_ptr<BatchSource> source_;
};

/// No loader, one, or several: converts from nothing, from what Loader<B> converts from, and from a
/// list or vector of loaders. Throws ConfigError if a loader in a list is empty.
template <class B>
class Loaders {
 public:
  using batch_type = B;

  Loaders() = default;
  Loaders(std::initializer_list<Loader<B>> loaders)  // NOLINT(google-explicit-constructor)
      : Loaders(std::vector<Loader<B>>(loaders)) {}
  Loaders(std::vector<Loader<B>> loaders)
      : loaders_(std::move(loaders)) {  // NOLINT(google-explicit-constructor)
    for (std::size_t i = 0; i < loaders_.size(); ++i) {
      if (!loaders_[i])
        fail<ConfigError>("Loaders", "loader ", i, " of ", loaders_.size(), " is empty.");
    }
  }
  template <class L>
  requires(!std::is_same_v<std::remove_cvref_t<L>, Loaders>) Loaders(
      L&& loader) {  // NOLINT(google-explicit-constructor,bugprone-forwarding-reference-overload)
    if constexpr (detail::kIsListOfLoaders<std::remove_cvref_t<L>>) {
      for (auto&& each : loader) loaders_.emplace_back(each);
    } else {
      Loader<B> single(std::forward<L>(loader));
      if (single) loaders_.push_back(std::move(single));
    }
  }

  /// What the trainer reads.
  std::vector<std::shared_ptr<BatchSource>> sources() const {
    std::vector<std::shared_ptr<BatchSource>> result;
    for (const auto& loader : loaders_) result.push_back(loader.source());
    return result;
  }
  bool empty() const { return loaders_.empty(); }
  std::size_t size() const { return loaders_.size(); }
  const Loader<B>& operator[](std::size_t i) const { return loaders_[i]; }
  auto begin() const { return loaders_.begin(); }
  auto end() const { return loaders_.end(); }

 private:
  std::vector<Loader<B>> loaders_;
};

}  // namespace fulmen
