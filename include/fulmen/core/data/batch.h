#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "fulmen/core/data/batch_exchange.h"
#include "fulmen/core/data/batch_visit.h"

namespace fulmen {
namespace detail {

struct BatchOperations {
  void (*visit)(void* batch, const TensorVisitor& visit);
  std::int64_t (*rows)(const void* batch);  ///< Null: the tensors tell.
  void (*destroy)(void* batch);
  void (*exchange)(void* batch, BatchArchive& archive);  ///< Null: it cannot travel.
  void* (*make)();                                       ///< Null: the same.
  const std::type_info& type;
};

template <class T>
std::int64_t rows_of(const void* batch) {
  return batch_rows(*static_cast<const T*>(batch));
}

template <class T>
constexpr auto rows_function() -> std::int64_t (*)(const void*) {
  if constexpr (HasBatchRows<T>) {
    return &rows_of<T>;
  } else {
    return nullptr;
  }
}

template <class T>
constexpr auto exchange_function() -> void (*)(void*, BatchArchive&) {
  if constexpr (can_travel<T>()) {
    return [](void* batch, BatchArchive& archive) {
      exchange_parts(*static_cast<T*>(batch), archive);
    };
  } else {
    return nullptr;
  }
}

template <class T>
constexpr auto make_function() -> void* (*)() {
  if constexpr (can_travel<T>()) {
    return []() -> void* { return new T(); };
  } else {
    return nullptr;
  }
}

template <class T>
inline const BatchOperations kBatchOperations = {
    .visit = [](void* batch,
                const TensorVisitor& visit) { visit_batch(*static_cast<T*>(batch), visit); },
    .rows = rows_function<T>(),
    .destroy = [](void* batch) { delete static_cast<T*>(batch); },
    .exchange = exchange_function<T>(),
    .make = make_function<T>(),
    .type = typeid(T),
};

}  // namespace detail

enum class Transfer { kBlocking, kNonBlocking };

/// A batch of any type, not owned: what callbacks and strategies see. Valid during the hook.
class BatchView {
 public:
  BatchView() = default;
  template <class B>
  requires(!std::is_same_v<std::remove_const_t<B>, BatchView>) explicit BatchView(B& batch)
      : batch_(&batch), operations_(&detail::kBatchOperations<B>) {}

  bool has_value() const { return batch_ != nullptr; }
  void for_each_tensor(const TensorVisitor& visit) const;
  /// Samples: dim 0 of its tensors (tensors without dims count for nothing; 1 if there are no
  /// others), or what batch_rows() says. Throws DataError if the tensors do not agree.
  std::int64_t rows() const;
  /// Moves every tensor.
  void to(c10::Device device, Transfer transfer = Transfer::kBlocking) const;
  /// Null if the batch is of another type.
  template <class B>
  B* get_if() const {
    return batch_ != nullptr && operations_->type == typeid(B) ? static_cast<B*>(batch_) : nullptr;
  }
  const std::type_info& type() const;
  /// Throws ConfigError, which names the type and the remedy, for a batch that holds what Fulmen
  /// cannot see.
  void exchange(BatchArchive& archive) const;

 private:
  friend class AnyBatch;
  BatchView(void* batch, const detail::BatchOperations* operations)
      : batch_(batch), operations_(operations) {}

  void* batch_ = nullptr;
  const detail::BatchOperations* operations_ = nullptr;
};

/// Owns one batch (or one prediction) of any type. Move only.
class AnyBatch {
 public:
  AnyBatch() = default;
  template <class B>
  requires(!std::is_same_v<std::remove_cvref_t<B>, AnyBatch>) explicit AnyBatch(B&& batch)
      : view_(new std::remove_cvref_t<B>(std::forward<B>(batch)),
              &detail::kBatchOperations<std::remove_cvref_t<B>>) {}
  AnyBatch(AnyBatch&& other) noexcept : view_(std::exchange(other.view_, {})) {}
  AnyBatch& operator=(AnyBatch&& other) noexcept {
    std::swap(view_, other.view_);
    return *this;
  }
  ~AnyBatch() {
    if (view_.batch_ != nullptr) view_.operations_->destroy(view_.batch_);
  }

  bool has_value() const { return view_.has_value(); }
  void reset() { *this = AnyBatch(); }
  BatchView view() const { return view_; }
  /// A new one of the same type. Throws ConfigError as BatchView::exchange().
  AnyBatch another() const;
  /// Throws nothing: the caller has checked the type.
  template <class B>
  B& get() const {
    return *static_cast<B*>(view_.batch_);
  }

 private:
  BatchView view_;
};

}  // namespace fulmen
