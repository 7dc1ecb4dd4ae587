#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>

#include "core/checkpoint/input_file.h"
#include "fulmen/core/checkpoint/file_system.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

using detail::fail_with_errno;

/// Calls again while a signal interrupts.
template <class Call>
auto retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class PosixFile final : public WritableFile {
 public:
  explicit PosixFile(const std::filesystem::path& path) : path_(path) {
    descriptor_ =
        retry([&] { return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
    if (descriptor_ < 0) fail_with_errno(path_, "create the file", errno);
  }
  ~PosixFile() override {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  void write(const void* data, std::size_t size) override {
    constexpr std::size_t kMost = std::size_t{1} << 30;
    const auto* from = static_cast<const char*>(data);
    std::size_t left = size;
    while (left > 0) {
      const ssize_t count =
          retry([&] { return ::write(descriptor_, from, std::min(left, kMost)); });
      if (count <= 0) {
        fail_with_errno(path_, "write " + std::to_string(size) + " bytes", count < 0 ? errno : EIO);
      }
      from += count;
      left -= static_cast<std::size_t>(count);
    }
  }

  void sync() override {
    if (retry([&] { return ::fsync(descriptor_); }) < 0) {
      fail_with_errno(path_, "flush to the disk", errno);
    }
  }

  void close() override {
    // Linux frees the descriptor even if close() is interrupted, so it must not be called again.
    const int descriptor = descriptor_;
    descriptor_ = -1;
    if (descriptor >= 0 && ::close(descriptor) < 0 && errno != EINTR) {
      fail_with_errno(path_, "close", errno);
    }
  }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

class PosixFileSystem final : public FileSystem {
 public:
  void create_directory(const std::filesystem::path& path) override {
    if (::mkdir(path.c_str(), 0777) < 0) fail_with_errno(path, "create the directory", errno);
  }

  std::unique_ptr<WritableFile> create_file(const std::filesystem::path& path) override {
    return std::make_unique<PosixFile>(path);
  }

  void rename(const std::filesystem::path& from,
              const std::filesystem::path& to,
              ExistingTarget existing) override {
    int result = -1;
    if (existing == ExistingTarget::kRefuse) {
      result = ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
      if (result == 0) return;
      // Some file systems lack this flag.
      if (errno != EINVAL && errno != ENOSYS) fail_rename(from, to);
      if (std::filesystem::exists(std::filesystem::symlink_status(to))) {
        errno = EEXIST;
        fail_rename(from, to);
      }
    }
    result = ::rename(from.c_str(), to.c_str());
    if (result < 0) fail_rename(from, to);
  }

  void sync_directory(const std::filesystem::path& path) override {
    const int descriptor =
        retry([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (descriptor < 0) fail_with_errno(path, "open the directory", errno);
    const int error = retry([&] { return ::fsync(descriptor); }) < 0 ? errno : 0;
    ::close(descriptor);
    // EINVAL: a file system that cannot flush directories and keeps their order itself.
    if (error != 0 && error != EINVAL) fail_with_errno(path, "flush the directory", error);
  }

  void remove_file(const std::filesystem::path& path) override {
    if (::unlink(path.c_str()) < 0) fail_with_errno(path, "remove the file", errno);
  }

  void remove_directory(const std::filesystem::path& path) override {
    if (::rmdir(path.c_str()) < 0) fail_with_errno(path, "remove the directory", errno);
  }

 private:
  [[noreturn]] static void fail_rename(const std::filesystem::path& from,
                                       const std::filesystem::path& to) {
    const int error = errno;
    fail_with_errno(to, "take this name (rename from '" + from.filename().string() + "')", error);
  }
};

}  // namespace

FileSystem& posix_file_system() {
  static PosixFileSystem file_system;
  return file_system;
}

}  // namespace fulmen
