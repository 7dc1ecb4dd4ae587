#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

#include "fulmen/core/checkpoint/file_system.h"

namespace fulmen::detail {

/// A fresh name in the same directory: ".<name>.tmp-<host>-<process>-<random>".
std::filesystem::path temporary_beside(const std::filesystem::path& target);

bool is_temporary_name(std::string_view name);

/// Whether the name was made on this host by a process that no longer runs.
bool owner_is_gone(std::string_view temporary_name);

/// Lets `fill` write a temporary file, flushes it and renames it to `path`. If anything throws, the
/// temporary file is removed and `path` is as it was.
void replace_file(const std::filesystem::path& path,
                  FileSystem& file_system,
                  const std::function<void(WritableFile&)>& fill);

/// Removes the .json and .safetensors files in a directory and then the directory. Throws
/// CheckpointError if something else is in it.
void remove_own_directory(const std::filesystem::path& directory, FileSystem& file_system);

/// Without a slash at the end and without dots; throws CheckpointError if no name is left.
std::filesystem::path with_plain_name(const std::filesystem::path& path);

/// The directory to flush after a change of this name.
std::filesystem::path parent_of(const std::filesystem::path& path);

}  // namespace fulmen::detail
