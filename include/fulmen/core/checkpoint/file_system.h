#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

namespace fulmen {

/// A file that is being written. The destructor closes it without reporting errors: call close().
/// Every member throws CheckpointError that names the path, the system's reason and a remedy.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  /// Appends all of the bytes.
  virtual void write(const void* data, std::size_t size) = 0;
  /// Returns when the data is on the device.
  virtual void sync() = 0;
  virtual void close() = 0;
};

/// What rename() does with an existing target.
enum class ExistingTarget { kReplace, kRefuse };

/// Every change that Fulmen makes to a disk goes through this interface, so that tests can let any
/// one of them fail. Members throw CheckpointError. Thread-safe if the implementation is; the POSIX
/// one is.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// The parent must exist, the directory must not.
  virtual void create_directory(const std::filesystem::path& path) = 0;
  /// Creates a file that must not exist yet.
  virtual std::unique_ptr<WritableFile> create_file(const std::filesystem::path& path) = 0;
  /// Atomic, within one file system.
  virtual void rename(const std::filesystem::path& from,
                      const std::filesystem::path& to,
                      ExistingTarget existing) = 0;
  /// Makes names that were created, renamed or removed in the directory durable.
  virtual void sync_directory(const std::filesystem::path& path) = 0;
  virtual void remove_file(const std::filesystem::path& path) = 0;
  /// The directory must be empty.
  virtual void remove_directory(const std::filesystem::path& path) = 0;
};

/// The real file system.
FileSystem& posix_file_system();

}  // namespace fulmen
