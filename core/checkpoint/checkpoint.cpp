#include "fulmen/core/checkpoint/checkpoint.h"

#include <system_error>
#include <utility>

#include "core/checkpoint/crc32.h"
#include "core/checkpoint/input_file.h"
#include "core/checkpoint/json_text.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/rank_state.h"
#include "core/checkpoint/temporary.h"
#include "fulmen/core/checkpoint/safetensors.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

using std::filesystem::path;

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kTrainerFile = "trainer.json";
constexpr std::uint64_t kMaxJson = 1'000'000'000;

/// Hugging Face libraries refuse weights without this entry.
constexpr std::pair<const char*, const char*> kWeightsFormat = {"format", "pt"};

/// Aliases stand in the metadata as safetensors.torch.save_model writes them: alias -> stored name.
SafetensorsMetadata metadata_of(const CheckpointContents& contents) {
  SafetensorsMetadata metadata = {kWeightsFormat};
  for (const auto& [alias, stored] : contents.aliases) {
    if (contents.model.contains(alias) || !contents.model.contains(stored)) {
      fail<CheckpointError>("write_checkpoint",
                            "the alias '",
                            alias,
                            "' of '",
                            stored,
                            "' must not be stored itself, and its target must be.");
    }
    metadata[alias] = stored;
  }
  return metadata;
}

std::map<std::string, std::string> aliases_of(const SafetensorsHeader& header) {
  std::map<std::string, std::string> aliases;
  for (const auto& [key, text] : header.metadata) {
    if (key == kWeightsFormat.first && text == kWeightsFormat.second) continue;
    if (header.tensors.contains(text) && !header.tensors.contains(key)) aliases[key] = text;
  }
  return aliases;
}

std::string rank_tensors_file(std::size_t rank) {
  return "rank-" + std::to_string(rank) + ".safetensors";
}
std::string rank_values_file(std::size_t rank) {
  return "rank-" + std::to_string(rank) + ".json";
}

/// Writes flushed files into one directory and remembers their checksums.
class DirectoryWriter {
 public:
  DirectoryWriter(path directory, FileSystem& file_system)
      : directory_(std::move(directory)), file_system_(file_system) {}

  void tensors(const std::string& name,
               const TensorMap& tensors,
               const SafetensorsMetadata& metadata = {}) {
    const auto file = file_system_.create_file(directory_ / name);
    auto sums = write_safetensors(*file, tensors, metadata);
    file->sync();
    file->close();
    manifest_.files[name] = {sums.size, sums.header, std::move(sums.tensors)};
  }

  /// A tensor file whose bytes and checksums another rank made.
  void packed(const std::string& name, std::string_view bytes, SafetensorsChecksums sums) {
    write_bytes(name, bytes);
    manifest_.files[name] = {sums.size, sums.header, std::move(sums.tensors)};
  }

  void values(const std::string& name, const boost::json::object& values) {
    const std::string text = detail::json_text(values);
    detail::parse_json(text, name);  // What cannot be read again is not written.
    write_bytes(name, text);
    manifest_.files[name] = {text.size(), detail::crc32_of(text.data(), text.size()), {}};
  }

  void manifest() { write_bytes(detail::kManifestFile, detail::manifest_text(manifest_)); }

 private:
  void write_bytes(const std::string& name, std::string_view bytes) {
    const auto file = file_system_.create_file(directory_ / name);
    file->write(bytes.data(), bytes.size());
    file->sync();
    file->close();
  }

  path directory_;
  FileSystem& file_system_;
  detail::Manifest manifest_;
};

void fill_directory(const path& directory,
                    const CheckpointContents& contents,
                    FileSystem& file_system) {
  DirectoryWriter writer(directory, file_system);
  writer.tensors(kModelFile, contents.model, metadata_of(contents));
  writer.tensors(kOptimizerFile, contents.optimizer);
  writer.values(kTrainerFile, contents.trainer);
  writer.tensors(rank_tensors_file(0), contents.rank_state);
  writer.values(rank_values_file(0), contents.rank_values);
  for (std::size_t i = 0; i < contents.other_ranks.size(); ++i) {
    auto part = detail::unpack_rank_state(contents.other_ranks[i]);
    writer.packed(rank_tensors_file(i + 1), part.tensors, std::move(part.sums));
    writer.values(rank_values_file(i + 1), part.values);
  }
  writer.manifest();
  file_system.sync_directory(directory);
}

void make_directories(const path& directory, FileSystem& file_system) {
  std::error_code error;
  if (std::filesystem::exists(directory, error)) return;
  const path parent = detail::parent_of(directory);
  make_directories(parent, file_system);
  try {
    file_system.create_directory(directory);
  } catch (const CheckpointError&) {
    // Another process may have been faster.
    if (!std::filesystem::is_directory(directory, error)) throw;
  }
  file_system.sync_directory(parent);
}

path checked_target(const path& directory) {
  path target = detail::with_plain_name(directory);
  if (target.filename().string().front() == '.') {
    fail<CheckpointError>(
        "write_checkpoint",
        "the name '",
        target.filename().string(),
        "' begins with a dot, which marks unfinished files. Choose another name.");
  }
  std::error_code error;
  if (std::filesystem::exists(std::filesystem::symlink_status(target, error))) {
    fail<CheckpointError>(target.string(),
                          "exists already, and checkpoints are never overwritten. "
                          "Choose another name, or remove it first.");
  }
  return target;
}

/// Reads files of one checkpoint directory against its manifest.
class DirectoryReader {
 public:
  explicit DirectoryReader(path directory)
      : directory_(std::move(directory)), manifest_(detail::read_manifest(directory_)) {}

  TensorMap tensors(const std::string& name) const {
    return read_safetensors(found(name), checksums(name, entry(name)));
  }

  std::map<std::string, std::string> aliases() const {
    return aliases_of(read_safetensors_header(found(kModelFile)));
  }

  boost::json::object values(const std::string& name) const {
    return detail::parse_json(checked_text(name, entry(name)), (directory_ / name).string());
  }

  void verify() const {
    for (const char* name : {kModelFile, kOptimizerFile, kTrainerFile}) entry(name);
    entry(rank_tensors_file(0));
    entry(rank_values_file(0));
    for (const auto& [name, known] : manifest_.files) {
      if (known.tensors) {
        verify_safetensors(found(name), checksums(name, known));
      } else {
        detail::parse_json(checked_text(name, known), (directory_ / name).string());
      }
    }
  }

 private:
  const detail::ManifestEntry& entry(const std::string& name) const {
    const auto known = manifest_.files.find(name);
    if (known != manifest_.files.end()) return known->second;
    fail<CheckpointError>((directory_ / detail::kManifestFile).string(),
                          "does not list the file '",
                          name,
                          "'. The checkpoint is damaged; use another one.");
  }

  path found(const std::string& name) const {
    path file = directory_ / name;
    std::error_code error;
    // Whatever else is wrong, opening it will say.
    if (std::filesystem::exists(file, error) || error) return file;
    fail<CheckpointError>(directory_.string(),
                          "the file '",
                          name,
                          "' is missing. The checkpoint is not complete; use another one.");
  }

  SafetensorsChecksums checksums(const std::string& name,
                                 const detail::ManifestEntry& known) const {
    if (known.tensors) return {known.size, known.crc32, *known.tensors};
    fail<CheckpointError>((directory_ / detail::kManifestFile).string(),
                          "lists no tensors for '",
                          name,
                          "'. The checkpoint is damaged; use another one.");
  }

  std::string checked_text(const std::string& name, const detail::ManifestEntry& known) const {
    const path file = found(name);
    std::string text = detail::read_small_file(file, kMaxJson);
    if (text.size() != known.size) {
      fail<CheckpointError>(
          file.string(),
          "is ",
          text.size(),
          " bytes long, but ",
          known.size,
          " were written: it is truncated or was changed. Use another checkpoint.");
    }
    if (detail::crc32_of(text.data(), text.size()) != known.crc32) {
      fail<CheckpointError>(file.string(),
                            "has another checksum than when it was written: it is "
                            "damaged. Use another checkpoint.");
    }
    return text;
  }

  path directory_;
  detail::Manifest manifest_;
};

CheckpointContents read_weights_file(const path& file, CheckpointParts parts) {
  if (parts != CheckpointParts::kModelOnly) {
    fail<CheckpointError>(file.string(),
                          "holds weights alone, so a run cannot go on from it. Give "
                          "a checkpoint directory, or restore the weights alone.");
  }
  CheckpointContents contents;
  contents.model = read_safetensors(file);
  contents.aliases = aliases_of(read_safetensors_header(file));
  return contents;
}

/// Follows a pointer file; other paths come back as they are.
path followed(const path& given) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(given, error) || given.extension() == ".safetensors") {
    return given;
  }
  if (const path extension = given.extension(); !extension.empty()) {
    fail<CheckpointError>(
        given.string(),
        "is a file of the kind '",
        extension.string(),
        "'. Give a checkpoint directory or a .safetensors file; pickled files are "
        "never read, convert them in Python with the safetensors package.");
  }
  return read_pointer(detail::parent_of(given), given.filename().string()).value();
}

}  // namespace

void write_checkpoint(const path& directory,
                      const CheckpointContents& contents,
                      FileSystem& file_system) {
  const path target = checked_target(directory);
  const path parent = detail::parent_of(target);
  make_directories(parent, file_system);
  const path temporary = detail::temporary_beside(target);
  bool renamed = false;
  try {
    file_system.create_directory(temporary);
    fill_directory(temporary, contents, file_system);
    file_system.rename(temporary, target, ExistingTarget::kRefuse);
    renamed = true;
    file_system.sync_directory(parent);
  } catch (...) {
    try {
      if (renamed) file_system.rename(target, temporary, ExistingTarget::kRefuse);
      if (std::filesystem::exists(temporary)) {
        detail::remove_own_directory(temporary, file_system);
      }
    } catch (const std::exception&) {
      // The first error is the one to report; remove_stale_temporaries() takes the rest.
    }
    throw;
  }
}

CheckpointContents read_checkpoint(const path& given, CheckpointParts parts, int rank) {
  const path source = followed(given);
  std::error_code error;
  if (std::filesystem::is_regular_file(source, error)) return read_weights_file(source, parts);
  const DirectoryReader reader(detail::with_plain_name(source));
  CheckpointContents contents;
  if (parts != CheckpointParts::kRankOnly) {
    contents.model = reader.tensors(kModelFile);
    contents.aliases = reader.aliases();
  }
  if (parts == CheckpointParts::kModelOnly) return contents;
  if (parts == CheckpointParts::kEverything) contents.optimizer = reader.tensors(kOptimizerFile);
  contents.trainer = reader.values(kTrainerFile);
  const auto own = static_cast<std::size_t>(rank);
  contents.rank_state = reader.tensors(rank_tensors_file(own));
  contents.rank_values = reader.values(rank_values_file(own));
  return contents;
}

void verify_checkpoint(const path& given) {
  DirectoryReader(detail::with_plain_name(followed(given))).verify();
}

}  // namespace fulmen
