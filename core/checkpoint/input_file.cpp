#include "core/checkpoint/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

const char* remedy_for(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
      return "Give this user permission, or choose another directory.";
    case EROFS:
      return "The file system is read-only; choose another directory.";
    case ENOSPC:
    case EDQUOT:
      return "Free some disk space, or choose a directory on another disk.";
    case EFBIG:
      return "The file system or a limit does not allow files of this size.";
    case ENOENT:
      return "Check the path.";
    case ENOTDIR:
      return "A part of the path is a file; choose another directory.";
    case EEXIST:
    case ENOTEMPTY:
      return "The name is taken; choose another name, or remove it.";
    case ENAMETOOLONG:
      return "Choose a shorter name.";
    case EMFILE:
    case ENFILE:
      return "Raise the limit of open files (ulimit -n).";
    case EIO:
      return "The disk or the network reports a fault; look at the system log.";
    default:
      return "Check the path and the disk.";
  }
}

}  // namespace

void fail_with_errno(const std::filesystem::path& path, const std::string& action, int error) {
  fail<CheckpointError>(path.string(),
                        "cannot ",
                        action,
                        ": ",
                        std::system_category().message(error),
                        ". ",
                        remedy_for(error));
}

InputFile::InputFile(const std::filesystem::path& path) : path_(path) {
  // Not to wait for a writer if the path is a pipe.
  do {
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) fail_with_errno(path, "open for reading", errno);
  struct stat info {};
  const int error = ::fstat(descriptor_, &info) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(info.st_mode)) {
    size_ = static_cast<std::uint64_t>(info.st_size);
    return;
  }
  ::close(descriptor_);
  if (error != 0) fail_with_errno(path, "read the size", error);
  fail<CheckpointError>(path.string(), "is not a regular file. Check the path.");
}

InputFile::~InputFile() {
  ::close(descriptor_);
}

void InputFile::read_at(void* data, std::size_t size, std::uint64_t offset) const {
  // Linux reads at most 2 GiB in one call.
  constexpr std::size_t kMost = std::size_t{1} << 30;
  auto* to = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t count =
        ::pread(descriptor_, to, std::min(size, kMost), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_with_errno(path_, "read", errno);
    if (count == 0) {
      fail<CheckpointError>(path_.string(),
                            "ends at byte ",
                            offset,
                            ", ",
                            size,
                            " bytes too early: the file is truncated. Use another checkpoint.");
    }
    to += count;
    size -= static_cast<std::size_t>(count);
    offset += static_cast<std::uint64_t>(count);
  }
}

std::string read_small_file(const std::filesystem::path& path, std::uint64_t limit) {
  const InputFile file(path);
  if (file.size() > limit) {
    fail<CheckpointError>(path.string(),
                          "is ",
                          file.size(),
                          " bytes long, at most ",
                          limit,
                          " are allowed. It is damaged, or not a file of Fulmen.");
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read_at(text.data(), text.size(), 0);
  return text;
}

}  // namespace fulmen::detail
