#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "fulmen/core/checkpoint/file_system.h"
#include "fulmen/core/support/state_dict.h"

namespace fulmen {

/// Free text in the header of a safetensors file.
using SafetensorsMetadata = std::map<std::string, std::string>;

/// One tensor of a safetensors file. `begin` and `end` count bytes from the start of the data.
struct SafetensorsEntry {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> shape = {};
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// The header of a safetensors file, checked against the size of the file.
struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors = {};
  SafetensorsMetadata metadata = {};
  /// Bytes before the first byte of data.
  std::uint64_t data_begin = 0;
};

/// Size and CRC-32 values that together cover every byte of a safetensors file.
struct SafetensorsChecksums {
  std::uint64_t size = 0;
  std::uint32_t header = 0;
  std::map<std::string, std::uint32_t> tensors = {};
};

/// Writes strided tensors of any device, contiguous or not; each is copied only if it must be, one
/// at a time. Throws CheckpointError before the first write if a tensor cannot be stored (no data,
/// sparse, quantized, a dtype that the format lacks) or a reader would refuse the header.
SafetensorsChecksums write_safetensors(WritableFile& file,
                                       const TensorMap& tensors,
                                       const SafetensorsMetadata& metadata = {});

/// The same into a file of its own, which is flushed and then replaces `path` in one step.
void write_safetensors(const std::filesystem::path& path,
                       const TensorMap& tensors,
                       const SafetensorsMetadata& metadata = {},
                       FileSystem& file_system = posix_file_system());

/// Names, dtypes, shapes and metadata without the data. Throws CheckpointError if the file is
/// missing or malformed: nothing is allocated before its size was checked against the file.
SafetensorsHeader read_safetensors_header(const std::filesystem::path& path);

/// All tensors, on the CPU. Throws as read_safetensors_header, and for a BOOL that is not 0 or 1.
TensorMap read_safetensors(const std::filesystem::path& path);

/// The same, and throws CheckpointError that names the tensor if its data has another checksum.
TensorMap read_safetensors(const std::filesystem::path& path, const SafetensorsChecksums& expected);

/// Reads everything and keeps nothing. Throws as read_safetensors.
void verify_safetensors(const std::filesystem::path& path, const SafetensorsChecksums& expected);

}  // namespace fulmen
