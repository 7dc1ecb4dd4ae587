#pragma once

#include <boost/json/object.hpp>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/core/checkpoint/file_system.h"
#include "fulmen/core/support/state_dict.h"

namespace fulmen {

/// All that a checkpoint holds. A name in `aliases` is another name of a stored model tensor.
/// JSON values come back exactly, doubles bitwise.
struct CheckpointContents {
  TensorMap model = {};
  std::map<std::string, std::string> aliases = {};
  TensorMap optimizer = {};
  boost::json::object trainer = {};
  TensorMap rank_state = {};
  boost::json::object rank_values = {};
  /// For writing, on rank 0: what pack_rank_state() made on ranks 1, 2, ...
  std::vector<std::string> other_ranks = {};
};

/// A rank's own part as bytes that rank 0 can write, and only write. Throws CheckpointError for a
/// tensor that cannot be stored.
std::string pack_rank_state(const TensorMap& rank_state, const boost::json::object& rank_values);

enum class CheckpointParts {
  kEverything,
  kModelOnly,
  kRankOnly,  ///< The trainer's values and one rank's own state, without the large tensors.
};

/// Writes a checkpoint directory; missing parents are made. It is written under a temporary name,
/// flushed and renamed, so a crash at any moment leaves either nothing or all of it under this
/// name. Throws CheckpointError if the name exists or anything fails; then nothing is left behind
/// and other checkpoints are untouched.
void write_checkpoint(const std::filesystem::path& directory,
                      const CheckpointContents& contents,
                      FileSystem& file_system = posix_file_system());

/// Reads a checkpoint directory, checking size and checksum of every file that it reads. `path` may
/// also be a pointer file, and for kModelOnly a `.safetensors` file from anywhere. `rank` tells
/// whose own state is read. Throws CheckpointError that names the file or tensor.
CheckpointContents read_checkpoint(const std::filesystem::path& path,
                                   CheckpointParts parts = CheckpointParts::kEverything,
                                   int rank = 0);

/// Reads and checks every byte, keeps nothing. Throws as read_checkpoint.
void verify_checkpoint(const std::filesystem::path& path);

/// Whether this is a finished checkpoint directory, judged by its manifest; data is not read.
bool is_checkpoint(const std::filesystem::path& path);

/// The finished checkpoints in a directory, oldest first. Empty if there is no such directory.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& directory);

/// Removes a checkpoint directory; a crash at any moment leaves either all of it or nothing under
/// its name. Throws CheckpointError, before it touches anything, if the directory is not a Fulmen
/// checkpoint or also holds files that Fulmen did not write.
void remove_checkpoint(const std::filesystem::path& directory,
                       FileSystem& file_system = posix_file_system());

/// Removes what writers of this host that no longer run left unfinished in `parent`; returns these
/// paths. Files that Fulmen did not write stay.
std::vector<std::filesystem::path> remove_stale_temporaries(
    const std::filesystem::path& parent, FileSystem& file_system = posix_file_system());

/// Lets the pointer file `pointer` ("last", "best") in `directory` name the checkpoint
/// `checkpoint_name` beside it. Replaced in one step and flushed. Throws CheckpointError if there
/// is no such checkpoint or writing fails; the pointer then still names the old one, or the new
/// one.
void write_pointer(const std::filesystem::path& directory,
                   std::string_view pointer,
                   std::string_view checkpoint_name,
                   FileSystem& file_system = posix_file_system());

/// The checkpoint that a pointer file names; nullopt if there is no such pointer file. Throws
/// CheckpointError if the file is damaged or its checkpoint is gone.
std::optional<std::filesystem::path> read_pointer(const std::filesystem::path& directory,
                                                  std::string_view pointer);

}  // namespace fulmen
