#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace fulmen::detail {

/// A regular file that is being read. Throws CheckpointError with the path, the reason and a
/// remedy.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  /// Size in bytes when it was opened.
  std::uint64_t size() const { return size_; }
  const std::filesystem::path& path() const { return path_; }
  /// All of the bytes, or an error.
  void read_at(void* data, std::size_t size, std::uint64_t offset) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::uint64_t size_ = 0;
};

/// The whole file, which must not be longer than `limit` bytes.
std::string read_small_file(const std::filesystem::path& path, std::uint64_t limit);

/// Throws CheckpointError "<path>: cannot <action>: <the system's reason>. <remedy>".
[[noreturn]] void fail_with_errno(const std::filesystem::path& path,
                                  const std::string& action,
                                  int error);

}  // namespace fulmen::detail
