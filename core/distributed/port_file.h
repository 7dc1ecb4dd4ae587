#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

namespace fulmen::detail {

/// Where rank 0 of a job on one host tells the others its port, if the launcher named none: a file
/// in a folder that only this user can write. Removed by the destructor of the rank that published.
class PortFile {
 public:
  /// Throws DistributedError if the folder cannot be made or belongs to another user.
  explicit PortFile(const std::string& job_id);
  ~PortFile();
  PortFile(const PortFile&) = delete;
  PortFile& operator=(const PortFile&) = delete;

  void publish(std::uint16_t port);
  /// The port of a rank 0 that runs; what a crashed job left is not taken. Throws DistributedError
  /// after the time limit.
  std::uint16_t wait(std::chrono::milliseconds timeout) const;

 private:
  std::filesystem::path file_;
  bool published_ = false;
};

}  // namespace fulmen::detail
