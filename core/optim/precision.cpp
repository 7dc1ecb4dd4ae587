#include "fulmen/core/optim/precision.h"

#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>

#include <array>
#include <string>
#include <utility>

#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

constexpr std::array<std::pair<Precision, std::string_view>, 6> kNames = {{
    {Precision::k64True, "64-true"},
    {Precision::k32True, "32-true"},
    {Precision::kBf16True, "bf16-true"},
    {Precision::k16True, "16-true"},
    {Precision::kBf16Mixed, "bf16-mixed"},
    {Precision::k16Mixed, "16-mixed"},
}};

}  // namespace

std::string_view to_string(Precision precision) {
  for (const auto& [value, name] : kNames) {
    if (value == precision) return name;
  }
  fail<ConfigError>(
      "Precision", "there is no precision with the number ", static_cast<int>(precision), ".");
}

Precision parse_precision(std::string_view text) {
  std::string valid;
  for (const auto& [value, name] : kNames) {
    if (name == text) return value;
    valid += (valid.empty() ? "" : ", ") + std::string(name);
  }
  fail<ConfigError>("Precision", "'", text, "' is not a precision. Valid are ", valid, ".");
}

c10::ScalarType parameter_dtype(Precision precision) {
  switch (precision) {
    case Precision::k64True:
      return c10::ScalarType::Double;
    case Precision::kBf16True:
      return c10::ScalarType::BFloat16;
    case Precision::k16True:
      return c10::ScalarType::Half;
    default:
      return c10::ScalarType::Float;
  }
}

std::optional<c10::ScalarType> autocast_dtype(Precision precision) {
  if (precision == Precision::kBf16Mixed) return c10::ScalarType::BFloat16;
  if (precision == Precision::k16Mixed) return c10::ScalarType::Half;
  return std::nullopt;
}

bool needs_grad_scaler(Precision precision) {
  return precision == Precision::k16Mixed;
}

AutocastGuard::AutocastGuard(c10::DeviceType device, Precision precision) : device_(device) {
  const auto dtype = autocast_dtype(precision);
  if (!dtype) return;
  was_enabled_ = at::autocast::is_autocast_enabled(device);
  previous_dtype_ = at::autocast::get_autocast_dtype(device);
  at::autocast::set_autocast_dtype(device, *dtype);
  at::autocast::set_autocast_enabled(device, true);
  at::autocast::increment_nesting();
  active_ = true;
}

AutocastGuard::~AutocastGuard() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, previous_dtype_);
}

DefaultDtypeGuard::DefaultDtypeGuard(c10::ScalarType dtype)
    : previous_(c10::typeMetaToScalarType(c10::get_default_dtype())) {
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
}

DefaultDtypeGuard::DefaultDtypeGuard(Precision precision)
    : DefaultDtypeGuard(parameter_dtype(precision)) {}

DefaultDtypeGuard::~DefaultDtypeGuard() {
  c10::set_default_dtype(c10::scalarTypeToTypeMeta(previous_));
}

}  // namespace fulmen
