#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "fulmen/core/data/batch_source.h"
#include "fulmen/core/data/range_source.h"
#include "fulmen/core/data/source_errors.h"

namespace fulmen::detail {

struct NotALoader {};

/// Fulmen's own: they know their batch type and make a source.
template <class L>
concept LoaderHandle = requires(const L& loader) {
  typename L::batch_type;
  { loader.source() } -> std::convertible_to<std::shared_ptr<BatchSource>>;
};

template <class L>
concept Owner = requires(const L& owner) {
  typename L::element_type;
  *owner;
  owner.get();
};
template <class L>
concept SourceOwner = Owner<L> && std::is_base_of_v<BatchSource, typename L::element_type>;
template <class L>
concept RangeOwner = Owner<L> && !SourceOwner<L> && Iterable<typename L::element_type>;

template <class L>
struct LoaderTraits {
  using batch_type = NotALoader;
};
template <LoaderHandle L>
struct LoaderTraits<L> {
  using batch_type = typename L::batch_type;
};
template <SourceOwner L>
struct LoaderTraits<L> {
  using batch_type = void;
};
template <RangeOwner L>
struct LoaderTraits<L> {
  using batch_type = RangeValue<typename L::element_type>;
};
template <class L>
requires(Iterable<L> && !LoaderHandle<L> && !Owner<L>) struct LoaderTraits<L> {
  using batch_type = RangeValue<L>;
};

template <class L>
inline constexpr bool kIsListOfLoaders = false;
template <Iterable L>
requires(!LoaderHandle<L>) inline constexpr bool kIsListOfLoaders<L> = LoaderHandle<RangeValue<L>>;

template <class B>
std::shared_ptr<BatchSource> checked_source(std::shared_ptr<BatchSource> source) {
  if (source == nullptr) fail_null_loader();
  if (source->batch_type() != typeid(B)) fail_batch_type(source->batch_type(), typeid(B));
  return source;
}

/// Keeps what is given by value; refers to what is an lvalue.
template <class L>
auto share_range(L&& loader) {
  using Plain = std::remove_reference_t<L>;
  if constexpr (RangeOwner<std::remove_const_t<Plain>>) {
    using R = typename Plain::element_type;
    if (loader == nullptr) fail_null_loader();
    if constexpr (std::is_constructible_v<std::shared_ptr<R>, L&&>) {
      return std::shared_ptr<R>(std::forward<L>(loader));
    } else {
      return std::shared_ptr<R>(std::shared_ptr<void>(), loader.get());
    }
  } else if constexpr (std::is_lvalue_reference_v<L>) {
    return std::shared_ptr<Plain>(std::shared_ptr<void>(), std::addressof(loader));
  } else {
    return std::make_shared<Plain>(std::forward<L>(loader));
  }
}

template <class B, class L>
std::shared_ptr<BatchSource> make_source(L&& loader) {
  using Plain = std::remove_cvref_t<L>;
  if constexpr (LoaderHandle<Plain>) {
    return loader.source();
  } else if constexpr (SourceOwner<Plain>) {
    return checked_source<B>(std::shared_ptr<BatchSource>(std::forward<L>(loader)));
  } else {
    auto range = share_range(std::forward<L>(loader));
    return std::make_shared<RangeSource<B, typename decltype(range)::element_type>>(
        std::move(range));
  }
}

}  // namespace fulmen::detail
