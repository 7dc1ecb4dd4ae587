#include "core/checkpoint/safetensors_header.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <limits>
#include <utility>

#include "core/checkpoint/json_text.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

using c10::ScalarType;

constexpr const char* kMetadata = "__metadata__";

constexpr std::array<std::pair<ScalarType, const char*>, 19> kDtypes = {{
    {ScalarType::Double, "F64"},
    {ScalarType::Float, "F32"},
    {ScalarType::Half, "F16"},
    {ScalarType::BFloat16, "BF16"},
    {ScalarType::Long, "I64"},
    {ScalarType::Int, "I32"},
    {ScalarType::Short, "I16"},
    {ScalarType::Char, "I8"},
    {ScalarType::Byte, "U8"},
    {ScalarType::UInt16, "U16"},
    {ScalarType::UInt32, "U32"},
    {ScalarType::UInt64, "U64"},
    {ScalarType::Bool, "BOOL"},
    {ScalarType::ComplexFloat, "C64"},
    {ScalarType::Float8_e4m3fn, "F8_E4M3"},
    {ScalarType::Float8_e5m2, "F8_E5M2"},
    {ScalarType::Float8_e8m0fnu, "F8_E8M0"},
    {ScalarType::Float8_e4m3fnuz, "F8_E4M3FNUZ"},
    {ScalarType::Float8_e5m2fnuz, "F8_E5M2FNUZ"},
}};

const char* name_of(ScalarType dtype) {
  const auto* found = std::find_if(
      kDtypes.begin(), kDtypes.end(), [&](const auto& entry) { return entry.first == dtype; });
  return found == kDtypes.end() ? "" : found->second;
}

ScalarType dtype_of(std::string_view name) {
  const auto* found = std::find_if(
      kDtypes.begin(), kDtypes.end(), [&](const auto& entry) { return entry.second == name; });
  return found == kDtypes.end() ? ScalarType::Undefined : found->first;
}

void refuse_what_has_no_plain_data(const std::string& name, const at::Tensor& tensor) {
  const auto refuse = [&](const auto&... parts) {
    fail<CheckpointError>("safetensors", "cannot store the tensor '", name, "': ", parts...);
  };
  if (name == kMetadata) refuse("the format keeps this name for itself. Rename it.");
  if (!tensor.defined()) refuse("it is not defined. Leave it out.");
  if (tensor.is_meta()) refuse("it is on the meta device and has no data. Materialize it first.");
  if (tensor.layout() != c10::kStrided) refuse("it is not dense. Store its parts.");
  if (*name_of(tensor.scalar_type()) == '\0') {
    refuse("the format has no dtype ",
           c10::toString(tensor.scalar_type()),
           ". Convert it, or store its real and imaginary parts.");
  }
}

/// Larger items come first, which aligns each tensor without holes; then by name.
std::vector<std::string> data_order(const TensorMap& tensors) {
  std::vector<std::string> names;
  names.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  std::stable_sort(names.begin(), names.end(), [&](const auto& a, const auto& b) {
    return tensors.at(a).element_size() > tensors.at(b).element_size();
  });
  return names;
}

/// One entry of a header while it is read; `where` opens each message.
class EntryReader {
 public:
  EntryReader(std::string_view where, std::string_view name, const boost::json::value& value)
      : where_(where), name_(name) {
    if (!value.is_object()) refuse("its entry must be an object");
    object_ = &value.get_object();
    for (const auto& member : *object_) {
      const std::string_view key(member.key().data(), member.key().size());
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        refuse("its entry has the unknown key '", key, "'");
      }
    }
  }

  SafetensorsEntry read(std::uint64_t data_size) const {
    SafetensorsEntry entry;
    entry.dtype = dtype();
    std::tie(entry.begin, entry.end) = offsets();
    if (entry.begin > entry.end) {
      refuse("its data begins at ", entry.begin, ", after its end at ", entry.end);
    }
    if (entry.end > data_size) {
      refuse("its data ends at ", entry.end, ", but the file has ", data_size, " bytes of data");
    }
    const std::uint64_t bytes = read_shape(entry);
    if (bytes != entry.end - entry.begin) {
      refuse("its shape needs ", bytes, " bytes, but the file gives it ", entry.end - entry.begin);
    }
    return entry;
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail<CheckpointError>(where_,
                          "the tensor '",
                          name_,
                          "' is not valid: ",
                          parts...,
                          ". The file is damaged or hostile.");
  }

  const boost::json::value& member(const char* key) const {
    const boost::json::value* value = object_->if_contains(key);
    if (value == nullptr) refuse("its entry has no '", key, "'");
    return *value;
  }

  ScalarType dtype() const {
    const boost::json::value& value = member("dtype");
    if (!value.is_string()) refuse("its dtype must be a string");
    const std::string_view name(value.get_string().data(), value.get_string().size());
    const ScalarType result = dtype_of(name);
    if (result == ScalarType::Undefined)
      refuse("its dtype '", name, "' is not one that LibTorch has");
    return result;
  }

  std::uint64_t count(const boost::json::value& value, const char* what) const {
    if (value.is_int64() && value.get_int64() >= 0) {
      return static_cast<std::uint64_t>(value.get_int64());
    }
    if (value.is_uint64()) return value.get_uint64();
    refuse(what, " must hold whole numbers from 0, found ", boost::json::serialize(value));
  }

  std::pair<std::uint64_t, std::uint64_t> offsets() const {
    const boost::json::value& value = member("data_offsets");
    if (!value.is_array() || value.get_array().size() != 2) {
      refuse("its data_offsets must be two numbers");
    }
    const boost::json::array& two = value.get_array();
    return {count(two[0], "data_offsets"), count(two[1], "data_offsets")};
  }

  /// Fills the shape and returns the bytes that it needs.
  std::uint64_t read_shape(SafetensorsEntry& entry) const {
    const boost::json::value& value = member("shape");
    if (!value.is_array()) refuse("its shape must be an array");
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    // Sizes other than 0 must fit on their own too: LibTorch makes strides of them.
    std::uint64_t bytes = c10::elementSize(entry.dtype);
    bool empty = false;
    for (const auto& element : value.get_array()) {
      const std::uint64_t size = count(element, "shape");
      if (size == 0) empty = true;
      if (__builtin_mul_overflow(bytes, std::max<std::uint64_t>(size, 1), &bytes) ||
          bytes > kMost) {
        refuse("its shape ", boost::json::serialize(value), " is larger than any memory");
      }
      entry.shape.push_back(static_cast<std::int64_t>(size));
    }
    return empty ? 0 : bytes;
  }

  std::string_view where_;
  std::string_view name_;
  const boost::json::object* object_ = nullptr;
};

SafetensorsMetadata read_metadata(const boost::json::value& value, std::string_view where) {
  if (!value.is_object()) {
    fail<CheckpointError>(where, "its __metadata__ must be an object. The file is damaged.");
  }
  SafetensorsMetadata metadata;
  for (const auto& member : value.get_object()) {
    if (!member.value().is_string()) {
      fail<CheckpointError>(where,
                            "its __metadata__ must hold strings, '",
                            std::string_view(member.key().data(), member.key().size()),
                            "' is none. The file is damaged.");
    }
    const boost::json::string& text = member.value().get_string();
    metadata.emplace(std::string(member.key()), std::string(text.data(), text.size()));
  }
  return metadata;
}

/// The data must be covered exactly once.
void refuse_holes_and_overlaps(const SafetensorsHeader& header,
                               std::uint64_t data_size,
                               std::string_view where) {
  std::vector<std::pair<const SafetensorsEntry*, const std::string*>> order;
  order.reserve(header.tensors.size());
  for (const auto& [name, entry] : header.tensors) order.emplace_back(&entry, &name);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.first->begin, a.first->end) < std::pair(b.first->begin, b.first->end);
  });
  std::uint64_t covered = 0;
  for (const auto& [entry, name] : order) {
    if (entry->begin != covered) {
      fail<CheckpointError>(where,
                            "the data of the tensor '",
                            *name,
                            "' begins at ",
                            entry->begin,
                            entry->begin < covered ? ", inside another tensor"
                                                   : ", after bytes that belong to no tensor",
                            ". The file is damaged or hostile.");
    }
    covered = entry->end;
  }
  if (covered != data_size) {
    fail<CheckpointError>(where,
                          data_size - covered,
                          " bytes at the end belong to no tensor. The file is damaged or hostile.");
  }
}

boost::json::object header_json(const SafetensorsHeader& layout) {
  boost::json::object json;
  if (!layout.metadata.empty()) {
    boost::json::object& texts = json[kMetadata].emplace_object();
    for (const auto& [key, text] : layout.metadata) texts[key] = text;
  }
  for (const auto& [name, entry] : layout.tensors) {
    boost::json::array shape(entry.shape.begin(), entry.shape.end());
    json[name] = {{"dtype", name_of(entry.dtype)},
                  {"shape", std::move(shape)},
                  {"data_offsets", boost::json::array{entry.begin, entry.end}}};
  }
  return json;
}

}  // namespace

std::string make_safetensors_header(const TensorMap& tensors,
                                    const SafetensorsMetadata& metadata,
                                    SafetensorsHeader& layout) {
  for (const auto& [name, tensor] : tensors) refuse_what_has_no_plain_data(name, tensor);
  layout = {.tensors = {}, .metadata = metadata, .data_begin = 0};
  std::uint64_t end = 0;
  for (const auto& name : data_order(tensors)) {
    const at::Tensor& tensor = tensors.at(name);
    const auto bytes = static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
    layout.tensors[name] = {.dtype = tensor.scalar_type(),
                            .shape = tensor.sizes().vec(),
                            .begin = end,
                            .end = end + bytes};
    end += bytes;
  }
  std::string json = boost::json::serialize(header_json(layout));
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kMaxSafetensorsHeader) {
    fail<CheckpointError>("safetensors",
                          "the header for ",
                          tensors.size(),
                          " tensors would be ",
                          json.size(),
                          " bytes long, and readers accept at most ",
                          kMaxSafetensorsHeader,
                          ". Use fewer tensors or shorter names.");
  }
  parse_safetensors_header(json, end, "safetensors");
  layout.data_begin = sizeof(std::uint64_t) + json.size();
  std::string text;
  for (std::uint64_t i = 0; i < 8; ++i) text.push_back(static_cast<char>(json.size() >> (8 * i)));
  return text + json;
}

SafetensorsHeader parse_safetensors_header(std::string_view json,
                                           std::uint64_t data_size,
                                           std::string_view where) {
  if (json.empty() || json.front() != '{') {
    fail<CheckpointError>(where,
                          "its header is not a JSON object. It is damaged, or not a "
                          "safetensors file.");
  }
  SafetensorsHeader header;
  for (const auto& member : parse_json(json, where)) {
    std::string name(member.key());
    if (name == kMetadata) {
      header.metadata = read_metadata(member.value(), where);
      continue;
    }
    const SafetensorsEntry entry = EntryReader(where, name, member.value()).read(data_size);
    header.tensors.emplace(std::move(name), entry);
  }
  refuse_holes_and_overlaps(header, data_size, where);
  return header;
}

}  // namespace fulmen::detail
