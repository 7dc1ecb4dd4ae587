#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fulmen/core/checkpoint/safetensors.h"

namespace fulmen::detail {

/// The longest header that Python's package reads.
constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

/// Lays the tensors out and returns the header with its length in front, ready to be written.
/// `layout` receives the offsets. Throws CheckpointError if a tensor cannot be stored.
std::string make_safetensors_header(const TensorMap& tensors,
                                    const SafetensorsMetadata& metadata,
                                    SafetensorsHeader& layout);

/// Checks the JSON of a header for a file with `data_size` bytes of data. `where` opens each
/// message.
SafetensorsHeader parse_safetensors_header(std::string_view json,
                                           std::uint64_t data_size,
                                           std::string_view where);

}  // namespace fulmen::detail
