#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace fulmen::detail {

constexpr const char* kManifestFile = "manifest.json";

/// What is known of one file. The CRC-32 is of the whole file or, for a safetensors file, of its
/// header; the tensors have their own, so each byte is read once and counted once.
struct ManifestEntry {
  std::uint64_t size = 0;
  std::uint32_t crc32 = 0;
  std::optional<std::map<std::string, std::uint32_t>> tensors = {};
};

/// The table of contents of a checkpoint directory, written last.
struct Manifest {
  std::map<std::string, ManifestEntry> files = {};
};

std::string manifest_text(const Manifest& manifest);

/// Throws CheckpointError, a sentence of its own for each: no such directory, no manifest in it,
/// damaged, another format, a newer version.
Manifest read_manifest(const std::filesystem::path& directory);

/// Whether the directory has a readable manifest of ours and a finished name.
bool has_manifest(const std::filesystem::path& directory);

}  // namespace fulmen::detail
