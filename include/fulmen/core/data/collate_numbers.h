#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

namespace fulmen::detail {

/// Throws DataError: sample `sample` of the batch differs from the first, by `what`.
[[noreturn]] void fail_collate(std::string_view what, std::size_t sample);
/// A copy of `rows` x `columns` numbers; columns < 0: a tensor of one dim.
at::Tensor copy_numbers(const void* data,
                        c10::ScalarType type,
                        std::int64_t rows,
                        std::int64_t columns);

template <class T>
concept Number = std::is_arithmetic_v<T> || std::is_enum_v<T>;

/// The type that numbers of type T have in a tensor: integers are labels or indices, so int64.
template <class T>
struct NumberStorage {
  using type = std::int64_t;
  static constexpr auto kType = c10::ScalarType::Long;
};
template <>
struct NumberStorage<bool> {
  using type = std::uint8_t;
  static constexpr auto kType = c10::ScalarType::Bool;
};
template <>
struct NumberStorage<std::uint8_t> {
  using type = std::uint8_t;
  static constexpr auto kType = c10::ScalarType::Byte;
};
template <>
struct NumberStorage<float> {
  using type = float;
  static constexpr auto kType = c10::ScalarType::Float;
};
template <>
struct NumberStorage<double> {
  using type = double;
  static constexpr auto kType = c10::ScalarType::Double;
};
template <>
struct NumberStorage<long double> : NumberStorage<double> {};

template <class T>
at::Tensor collate_numbers(const std::vector<T>& numbers) {
  using Storage = NumberStorage<T>;
  std::vector<typename Storage::type> values;
  values.reserve(numbers.size());
  for (const T number : numbers) values.push_back(static_cast<typename Storage::type>(number));
  return copy_numbers(values.data(), Storage::kType, static_cast<std::int64_t>(values.size()), -1);
}

/// S is a vector or an array of numbers.
template <class S>
at::Tensor collate_number_rows(const std::vector<S>& rows) {
  using Storage = NumberStorage<typename S::value_type>;
  const auto columns = rows.front().size();
  std::vector<typename Storage::type> values;
  values.reserve(rows.size() * columns);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].size() != columns) fail_collate("vectors of different lengths", i);
    for (const auto value : rows[i]) values.push_back(static_cast<typename Storage::type>(value));
  }
  return copy_numbers(values.data(),
                      Storage::kType,
                      static_cast<std::int64_t>(rows.size()),
                      static_cast<std::int64_t>(columns));
}

}  // namespace fulmen::detail
