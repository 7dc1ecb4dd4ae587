#pragma once

#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "fulmen/core/data/batch.h"
#include "fulmen/core/data/collate_numbers.h"

namespace fulmen::detail {

template <class T>
inline constexpr bool kIsVector = false;
template <class T>
inline constexpr bool kIsVector<std::vector<T>> = true;
template <class T>
inline constexpr bool kIsArray = false;
template <class T, std::size_t N>
inline constexpr bool kIsArray<std::array<T, N>> = true;
template <class T>
inline constexpr bool kIsPair = false;
template <class A, class B>
inline constexpr bool kIsPair<std::pair<A, B>> = true;
template <class T>
concept MapLike = requires {
  typename T::mapped_type;
};

template <class S>
auto collate(std::vector<S>& samples);

/// What `part` finds in each sample, collated.
template <class S, class Part>
auto collate_part(std::vector<S>& samples, Part part) {
  std::vector<std::remove_cvref_t<decltype(part(samples.front()))>> parts;
  parts.reserve(samples.size());
  for (auto& sample : samples) parts.push_back(std::move(part(sample)));
  return collate(parts);
}

template <class S>
auto collate_vectors(std::vector<S>& samples) {
  const auto collate_at = [&](std::size_t i) {
    return collate_part(
        samples, [i](S & sample) -> auto& { return sample[i]; });
  };
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].size() != samples.front().size())
      fail_collate("vectors of different lengths", i);
  }
  std::vector<decltype(collate_at(0))> result;
  for (std::size_t i = 0, size = samples.front().size(); i < size; ++i)
    result.push_back(collate_at(i));
  return result;
}

template <class S>
auto collate_maps(std::vector<S>& samples) {
  using Key = typename S::key_type;
  const auto collate_key = [&](const Key& key) {
    return collate_part(
        samples, [&](S & sample) -> auto& { return sample.find(key)->second; });
  };
  for (std::size_t i = 0; i < samples.size(); ++i) {
    bool same = samples[i].size() == samples.front().size();
    for (const auto& entry : samples.front()) same = same && samples[i].count(entry.first) == 1;
    if (!same) fail_collate("maps of different keys", i);
  }
  std::map<Key, decltype(collate_key(std::declval<const Key&>()))> result;
  for (const auto& entry : samples.front()) result.emplace(entry.first, collate_key(entry.first));
  return result;
}

template <class S>
auto collate_optionals(std::vector<S>& samples) {
  const auto collate_values = [&] {
    return collate_part(
        samples, [](S & sample) -> auto& { return *sample; });
  };
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (samples[i].has_value() != samples.front().has_value())
      fail_collate("optionals, some of them empty", i);
  }
  return samples.front() ? std::optional(collate_values())
                         : std::optional<decltype(collate_values())>();
}

template <class S, std::size_t... I>
auto collate_tuples(std::vector<S>& samples, std::index_sequence<I...>) {
  const auto part = [&]<std::size_t N>(std::integral_constant<std::size_t, N>) {
    return collate_part(
        samples, [](S & sample) -> auto& { return std::get<N>(sample); });
  };
  if constexpr (kIsArray<S>) {
    return std::array{part(std::integral_constant<std::size_t, I>())...};
  } else if constexpr (kIsPair<S>) {
    return std::pair{part(std::integral_constant<std::size_t, I>())...};
  } else {
    return std::tuple{part(std::integral_constant<std::size_t, I>())...};
  }
}

template <class S>
auto collate_examples(std::vector<S>& samples) {
  const auto data = [](S & sample) -> auto& {
    return sample.data;
  };
  using Data = decltype(collate_part(samples, data));
  if constexpr (kHasTarget<S>) {
    const auto target = [](S & sample) -> auto& {
      return sample.target;
    };
    using Target = decltype(collate_part(samples, target));
    return torch::data::Example<Data, Target>(collate_part(samples, data),
                                              collate_part(samples, target));
  } else {
    return torch::data::Example<Data, void>(collate_part(samples, data));
  }
}

}  // namespace fulmen::detail
