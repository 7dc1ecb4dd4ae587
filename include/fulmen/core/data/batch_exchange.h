#pragma once

#include <concepts>
#include <cstddef>
#include <typeinfo>
#include <utility>

#include "fulmen/core/data/batch_archive.h"
#include "fulmen/core/data/batch_visit.h"

namespace fulmen::detail {

template <class T>
struct ElementOf {
  using type = std::ranges::range_value_t<T>;
};
template <class T>
requires requires {
  typename T::mapped_type;
}
struct ElementOf<T> {
  using type = std::pair<typename T::key_type, typename T::mapped_type>;
};
template <class T>
using Element = typename ElementOf<T>::type;

template <class T>
concept Appends = requires(T& range, Element<T> part) {
  range.clear();
  range.push_back(std::move(part));
};
template <class T>
concept Inserts = requires(T& range, Element<T> part) {
  range.clear();
  range.insert(std::move(part));
};

template <class T>
constexpr bool can_travel();

template <class Tuple>
constexpr bool parts_can_travel() {
  return []<std::size_t... I>(std::index_sequence<I...>) {
    return (can_travel<std::remove_reference_t<std::tuple_element_t<I, Tuple>>>() && ...);
  }
  (std::make_index_sequence<std::tuple_size_v<Tuple>>());
}

/// Whether a T can be taken apart and put together without loss, as far as its type tells.
template <class T>
constexpr bool can_travel() {
  if constexpr (std::is_const_v<T> || !std::default_initializable<T> || !std::movable<T>) {
    return false;
  } else if constexpr (std::is_same_v<T, at::Tensor> || std::is_same_v<T, Batch> || Plain<T>) {
    return true;
  } else if constexpr (HasBatchParts<T>) {
    return parts_can_travel<decltype(batch_parts(std::declval<T&>()))>();
  } else if constexpr (HasForEachTensor<T>) {
    return true;
  } else if constexpr (kIsExample<T>) {
    if constexpr (kHasTarget<T>) {
      return can_travel<decltype(T::data)>() && can_travel<decltype(T::target)>();
    } else {
      return can_travel<decltype(T::data)>();
    }
  } else if constexpr (kIsOptional<T>) {
    return can_travel<typename T::value_type>();
  } else if constexpr (TupleLike<T>) {
    return parts_can_travel<T>();
  } else if constexpr (std::ranges::range<T>) {
    if constexpr (Appends<T> || Inserts<T>) return can_travel<Element<T>>();
  }
  return false;
}

template <class T>
void exchange_parts(T& value, BatchArchive& archive);

template <class T>
void exchange_range(T& range, BatchArchive& archive) {
  const auto size = archive.count(static_cast<std::size_t>(std::ranges::distance(range)));
  if (!archive.reads()) {
    for (auto&& part : range) {
      if constexpr (std::is_same_v<decltype(part), Element<T>&>) {
        exchange_parts(part, archive);
      } else {  // A key, or a bit of a vector<bool>.
        Element<T> copy(part);
        exchange_parts(copy, archive);
      }
    }
    return;
  }
  range.clear();
  for (std::size_t i = 0; i < size; ++i) {
    Element<T> part{};
    exchange_parts(part, archive);
    if constexpr (Appends<T>) {
      range.push_back(std::move(part));
    } else {
      range.insert(std::move(part));
    }
  }
}

/// Of a T that can travel.
template <class T>
void exchange_parts(T& value, BatchArchive& archive) {
  const auto all = [&](auto&... parts) { (exchange_parts(parts, archive), ...); };
  if constexpr (std::is_same_v<T, at::Tensor>) {
    archive.tensor(value);
  } else if constexpr (std::is_same_v<T, Batch>) {
    exchange_range(value.tensors, archive);
  } else if constexpr (std::is_same_v<T, std::string>) {
    value.resize(archive.count(value.size()));
    archive.bytes(value.data(), value.size());
  } else if constexpr (std::is_empty_v<T>) {
  } else if constexpr (Plain<T>) {
    archive.bytes(&value, sizeof(value));
  } else if constexpr (HasBatchParts<T>) {
    std::apply(all, batch_parts(value));
  } else if constexpr (HasForEachTensor<T>) {
    const auto for_each = [&](const TensorVisitor& visit) { for_each_tensor(value, visit); };
    exchange_tensors_of(typeid(T), &value, sizeof(T), for_each, archive);
  } else if constexpr (kIsExample<T>) {
    exchange_parts(value.data, archive);
    if constexpr (kHasTarget<T>) exchange_parts(value.target, archive);
  } else if constexpr (kIsOptional<T>) {
    const bool holds = archive.count(value.has_value() ? 1 : 0) != 0;
    if (archive.reads()) value = holds ? T(std::in_place) : T();
    if (value) exchange_parts(*value, archive);
  } else if constexpr (TupleLike<T>) {
    std::apply(all, value);
  } else {
    exchange_range(value, archive);
  }
}

}  // namespace fulmen::detail
