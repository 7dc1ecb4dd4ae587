#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace fulmen {

/// "True": parameters and arithmetic have the dtype. Mixed: parameters are float32, autocast picks
/// the dtype.
enum class Precision { k64True, k32True, kBf16True, k16True, kBf16Mixed, k16Mixed };

/// "64-true", "32-true", "bf16-true", "16-true", "bf16-mixed" or "16-mixed".
std::string_view to_string(Precision precision);
/// The inverse of to_string; throws ConfigError that lists the valid names.
Precision parse_precision(std::string_view text);

/// Dtype of the parameters.
c10::ScalarType parameter_dtype(Precision precision);
/// Dtype of autocast; none unless mixed.
std::optional<c10::ScalarType> autocast_dtype(Precision precision);
/// Whether gradients need a GradScaler: 16-mixed only.
bool needs_grad_scaler(Precision precision);

/// Autocast on this thread while it lives, if the precision is mixed; else it does nothing. Puts
/// back what was before, also when left by an exception, and drops the cached casts when the
/// outermost guard ends. Forward and loss go inside, backward and step outside.
class AutocastGuard {
 public:
  AutocastGuard(c10::DeviceType device, Precision precision);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  c10::DeviceType device_;
  bool active_ = false;
  bool was_enabled_ = false;
  c10::ScalarType previous_dtype_ = c10::ScalarType::Float;
};

/// Makes new floating-point tensors have this dtype while it lives. The default is one for the
/// whole process, so two threads must not hold guards of different dtypes at once.
class DefaultDtypeGuard {
 public:
  explicit DefaultDtypeGuard(c10::ScalarType dtype);
  explicit DefaultDtypeGuard(Precision precision);
  ~DefaultDtypeGuard();
  DefaultDtypeGuard(const DefaultDtypeGuard&) = delete;
  DefaultDtypeGuard& operator=(const DefaultDtypeGuard&) = delete;

 private:
  c10::ScalarType previous_;
};

}  // namespace fulmen
