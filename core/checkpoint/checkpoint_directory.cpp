#include <algorithm>
#include <system_error>
#include <utility>

#include "core/checkpoint/input_file.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/temporary.h"
#include "fulmen/core/checkpoint/checkpoint.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

using std::filesystem::path;

constexpr std::uint64_t kMaxPointer = 4096;

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.front() != '.' && name.find('/') == std::string_view::npos &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return static_cast<unsigned char>(c) >= 32 && c != 127;
         });
}

path pointer_path(const path& directory, std::string_view pointer) {
  if (is_plain_name(pointer)) return directory / pointer;
  fail<CheckpointError>(
      "pointer", "'", pointer, "' is not a plain file name. Use one such as \"last\".");
}

/// Every entry; none if the directory cannot be read.
std::vector<path> entries_of(const path& directory) {
  std::vector<path> entries;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    entries.push_back(entry->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

void refuse_foreign_files(const path& directory, const detail::Manifest& manifest) {
  std::string foreign;
  for (const auto& entry : entries_of(directory)) {
    const std::string name = entry.filename().string();
    if (name == detail::kManifestFile || manifest.files.contains(name)) continue;
    foreign += (foreign.empty() ? "'" : ", '") + name + "'";
  }
  if (foreign.empty()) return;
  fail<CheckpointError>(directory.string(),
                        "is not removed: it holds ",
                        foreign,
                        ", which Fulmen did not write. Move that away, or remove the directory "
                        "yourself.");
}

}  // namespace

bool is_checkpoint(const path& directory) {
  return detail::has_manifest(directory);
}

std::vector<path> list_checkpoints(const path& directory) {
  std::vector<std::pair<std::filesystem::file_time_type, path>> found;
  for (const auto& entry : entries_of(directory)) {
    if (!is_checkpoint(entry)) continue;
    std::error_code error;
    const auto time = std::filesystem::last_write_time(entry / detail::kManifestFile, error);
    if (!error) found.emplace_back(time, entry);
  }
  std::sort(found.begin(), found.end());
  std::vector<path> checkpoints;
  for (auto& [time, entry] : found) checkpoints.push_back(std::move(entry));
  return checkpoints;
}

void remove_checkpoint(const path& directory, FileSystem& file_system) {
  const path target = detail::with_plain_name(directory);
  std::error_code error;
  if (std::filesystem::is_symlink(target, error)) {
    fail<CheckpointError>(target.string(), "is a symbolic link and is not removed.");
  }
  refuse_foreign_files(target, detail::read_manifest(target));
  const path parent = detail::parent_of(target);
  const path temporary = detail::temporary_beside(target);
  file_system.rename(target, temporary, ExistingTarget::kRefuse);
  // Without this a power cut could bring the name back with some of the files gone.
  file_system.sync_directory(parent);
  detail::remove_own_directory(temporary, file_system);
  file_system.sync_directory(parent);
}

std::vector<path> remove_stale_temporaries(const path& parent, FileSystem& file_system) {
  std::vector<path> removed;
  for (const auto& entry : entries_of(parent)) {
    if (!detail::owner_is_gone(entry.filename().string())) continue;
    std::error_code error;
    const auto status = std::filesystem::symlink_status(entry, error);
    try {
      if (std::filesystem::is_directory(status)) {
        detail::remove_own_directory(entry, file_system);
      } else if (std::filesystem::is_regular_file(status)) {
        file_system.remove_file(entry);
      } else {
        continue;
      }
      removed.push_back(entry);
    } catch (const CheckpointError&) {
      // Another process was faster, or foreign files are in it: not worth stopping a run.
    }
  }
  return removed;
}

void write_pointer(const path& directory,
                   std::string_view pointer,
                   std::string_view checkpoint_name,
                   FileSystem& file_system) {
  const path file = pointer_path(directory, pointer);
  if (!is_plain_name(checkpoint_name) || !is_checkpoint(directory / checkpoint_name)) {
    fail<CheckpointError>(file.string(),
                          "cannot point to '",
                          checkpoint_name,
                          "': there is no such checkpoint in this directory.");
  }
  const std::string text = std::string(checkpoint_name) + "\n";
  detail::replace_file(
      file, file_system, [&](WritableFile& to) { to.write(text.data(), text.size()); });
}

std::optional<path> read_pointer(const path& directory, std::string_view pointer) {
  const path file = pointer_path(directory, pointer);
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (status.type() == std::filesystem::file_type::not_found) return std::nullopt;
  std::string text = detail::read_small_file(file, kMaxPointer);
  if (!text.empty() && text.back() == '\n') text.pop_back();
  if (!is_plain_name(text)) {
    fail<CheckpointError>(file.string(),
                          "is not a pointer file: it must hold the name of a "
                          "checkpoint beside it. Give the checkpoint itself.");
  }
  if (!is_checkpoint(directory / text)) {
    fail<CheckpointError>(file.string(),
                          "points to '",
                          text,
                          "', which is not a checkpoint any more. Give another checkpoint.");
  }
  return directory / text;
}

}  // namespace fulmen
