#include "core/distributed/port_file.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <fstream>
#include <system_error>
#include <thread>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

std::filesystem::path private_folder() {
  const auto folder =
      std::filesystem::temp_directory_path() / ("fulmen-" + std::to_string(::getuid()));
  struct stat status {};
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    fail<DistributedError>("The job",
                           "cannot make ",
                           folder.string(),
                           ": ",
                           std::generic_category().message(errno),
                           ". Set MASTER_ADDR and MASTER_PORT.");
  }
  if (::lstat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) ||
      status.st_uid != ::getuid() || (status.st_mode & 077) != 0) {
    fail<DistributedError>("The job",
                           folder.string(),
                           " must be a folder that only this user can use. Remove it, or set ",
                           "MASTER_ADDR and MASTER_PORT.");
  }
  return folder;
}

}  // namespace

PortFile::PortFile(const std::string& job_id) {
  if (job_id.empty()) {
    fail<DistributedError>("The job",
                           "has no id (PMIX_NAMESPACE) under which rank 0 could publish its port. ",
                           "Set MASTER_ADDR and MASTER_PORT.");
  }
  std::string name = job_id;
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  file_ = private_folder() / (name + ".port");
}

PortFile::~PortFile() {
  if (published_) ::unlink(file_.c_str());
}

void PortFile::publish(std::uint16_t port) {
  const auto temporary = file_.string() + "." + std::to_string(::getpid());
  {
    std::ofstream out(temporary);
    out << port << ' ' << ::getpid() << '\n';
  }
  std::error_code error;
  std::filesystem::rename(temporary, file_, error);
  if (error) {
    fail<DistributedError>(
        "The job", "cannot publish the port in ", file_.string(), ": ", error.message(), ".");
  }
  published_ = true;
}

std::uint16_t PortFile::wait(std::chrono::milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (std::chrono::steady_clock::now() < deadline) {
    std::ifstream in(file_);
    int port = 0;
    pid_t pid = 0;
    const bool read = static_cast<bool>(in >> port >> pid);
    if (read && port > 0 && port <= 65535 && pid > 0 && ::kill(pid, 0) == 0)
      return static_cast<std::uint16_t>(port);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  fail<DistributedError>("The job",
                         "rank 0 did not publish its port in ",
                         file_.string(),
                         " within ",
                         static_cast<double>(timeout.count()) / 1000.0,
                         " s.");
}

}  // namespace fulmen::detail
