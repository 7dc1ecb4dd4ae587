#pragma once

#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <typeinfo>

#include "fulmen/core/data/batch_visit.h"

namespace fulmen {

/// Takes a batch apart, or puts one together, part by part in the same order: how predictions
/// travel to another rank. Private to Fulmen.
class BatchArchive {
 public:
  virtual ~BatchArchive() = default;
  virtual bool reads() const = 0;
  virtual void tensor(at::Tensor& tensor) = 0;
  virtual void bytes(void* data, std::size_t size) = 0;
  /// How many parts follow: `own` if it takes apart.
  std::size_t count(std::size_t own) {
    std::uint64_t number = own;
    bytes(&number, sizeof(number));
    return number;
  }
};

namespace detail {

[[noreturn]] void fail_to_travel(const std::type_info& type);
/// For a struct of which only the tensors are known. Throws ConfigError unless they are all of it.
void exchange_tensors_of(const std::type_info& type,
                         const void* object,
                         std::size_t size,
                         c10::function_ref<void(const TensorVisitor&)> for_each,
                         BatchArchive& archive);

}  // namespace detail
}  // namespace fulmen
