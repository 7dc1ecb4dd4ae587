#include "core/checkpoint/manifest.h"

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <limits>
#include <string_view>
#include <system_error>

#include "core/checkpoint/input_file.h"
#include "core/checkpoint/json_text.h"
#include "core/checkpoint/temporary.h"
#include "fulmen/core/support/error.h"
#include "fulmen/core/support/state_dict.h"

namespace fulmen::detail {
namespace {

constexpr const char* kFormat = "fulmen-checkpoint";
constexpr std::int64_t kVersion = 1;
/// A header and a manifest name the same tensors, so they have about the same length.
constexpr std::uint64_t kMaxManifest = 200'000'000;

std::uint32_t require_crc(const boost::json::object& object,
                          std::string_view key,
                          std::string_view where) {
  const std::int64_t value = require_int(object, key, where);
  if (value < 0 || value > std::numeric_limits<std::uint32_t>::max()) {
    fail<CheckpointError>(where,
                          "the checksum of '",
                          key,
                          "' is ",
                          value,
                          ", not a number of 32 bits. The file is damaged.");
  }
  return static_cast<std::uint32_t>(value);
}

ManifestEntry read_entry(const boost::json::object& json, std::string_view where) {
  ManifestEntry entry;
  const std::int64_t size = require_int(json, "size", where);
  if (size < 0) fail<CheckpointError>(where, "the size ", size, " is negative. It is damaged.");
  entry.size = static_cast<std::uint64_t>(size);
  const bool has_tensors = json.contains("tensors");
  entry.crc32 = require_crc(json, has_tensors ? "header_crc32" : "crc32", where);
  if (!has_tensors) return entry;
  entry.tensors.emplace();
  const boost::json::object& tensors = require_object(json, "tensors", where);
  for (const auto& member : tensors) {
    const std::string_view name(member.key().data(), member.key().size());
    entry.tensors->emplace(name, require_crc(tensors, name, where));
  }
  return entry;
}

void refuse_what_is_no_checkpoint(const std::filesystem::path& directory) {
  std::error_code error;
  const auto status = std::filesystem::status(directory, error);
  if (status.type() == std::filesystem::file_type::none) {
    fail_with_errno(directory, "look at it", error.value());
  }
  if (!std::filesystem::exists(status)) {
    fail<CheckpointError>(directory.string(),
                          "there is no such checkpoint: the path does not exist. Check the path.");
  }
  if (!std::filesystem::is_directory(status)) {
    fail<CheckpointError>(directory.string(),
                          "is not a checkpoint: checkpoints are directories. Check the path.");
  }
  if (is_temporary_name(directory.filename().string())) {
    fail<CheckpointError>(directory.string(),
                          "is what an interrupted save left, not a checkpoint. Use another one.");
  }
  if (!std::filesystem::exists(directory / kManifestFile, error) && !error) {
    fail<CheckpointError>(directory.string(),
                          "is not a Fulmen checkpoint: it holds no ",
                          kManifestFile,
                          ". Check the path.");
  }
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  boost::json::object files;
  for (const auto& [name, entry] : manifest.files) {
    boost::json::object& file = files[name].emplace_object();
    file["size"] = entry.size;
    file[entry.tensors ? "header_crc32" : "crc32"] = entry.crc32;
    if (!entry.tensors) continue;
    boost::json::object& tensors = file["tensors"].emplace_object();
    for (const auto& [tensor, crc] : *entry.tensors) tensors[tensor] = crc;
  }
  return json_text({{"format", kFormat}, {"version", kVersion}, {"files", std::move(files)}});
}

Manifest read_manifest(const std::filesystem::path& directory) {
  refuse_what_is_no_checkpoint(directory);
  const auto path = directory / kManifestFile;
  const std::string where = path.string();
  const boost::json::object json = parse_json(read_small_file(path, kMaxManifest), where);
  if (const auto format = require_string(json, "format", where); format != kFormat) {
    fail<CheckpointError>(where,
                          "the format is '",
                          format,
                          "', not '",
                          kFormat,
                          "': this is not a Fulmen checkpoint. Check the path.");
  }
  if (const auto version = require_int(json, "version", where); version != kVersion) {
    fail<CheckpointError>(where,
                          "the format version is ",
                          version,
                          ", this Fulmen reads version ",
                          kVersion,
                          ". Use the Fulmen that wrote the checkpoint, or a newer one.");
  }
  Manifest manifest;
  for (const auto& member : require_object(json, "files", where)) {
    std::string name(member.key());
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos ||
        !member.value().is_object()) {
      fail<CheckpointError>(where, "the entry '", name, "' is not that of a file. It is damaged.");
    }
    const auto& entry = member.value().get_object();
    manifest.files.emplace(name, read_entry(entry, where + ", file '" + name + "'"));
  }
  return manifest;
}

bool has_manifest(const std::filesystem::path& directory) {
  try {
    read_manifest(directory);
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

}  // namespace fulmen::detail
