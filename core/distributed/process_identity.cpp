#include "core/distributed/process_identity.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace fulmen::detail {
namespace {

/// What /proc/<pid>/stat says: a letter, and the start in ticks since boot.
struct Stat {
  char state = 0;  // 0: there is no such process.
  std::string start = {};
};

Stat read_stat(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string text;
  if (!std::getline(file, text)) return {};
  const auto end_of_name = text.rfind(')');  // The name may have spaces and brackets.
  if (end_of_name == std::string::npos) return {};
  std::istringstream fields(text.substr(end_of_name + 1));
  Stat stat;
  fields >> stat.state;
  constexpr int kFieldOfStart = 22;  // The state is field 3.
  for (int field = 4; field <= kFieldOfStart; ++field) fields >> stat.start;
  return stat;
}

/// The boot and the namespace of process ids.
std::string place() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::error_code error;
  const auto space = std::filesystem::read_symlink("/proc/self/ns/pid", error);
  if (!std::getline(file, boot) || error) return {};
  return boot + " " + space.string();
}

}  // namespace

std::string process_identity() {
  const auto where = place();
  const auto pid = std::to_string(::getpid());
  const auto stat = read_stat(pid);
  if (where.empty() || stat.state == 0) return {};
  return where + " " + pid + " " + stat.start;
}

ProcessState process_state(const std::string& identity) {
  std::istringstream fields(identity);
  std::string boot;
  std::string space;
  std::string pid;
  std::string start;
  if (!(fields >> boot >> space >> pid >> start)) return ProcessState::kUnknown;
  if (boot + " " + space != place() || pid == std::to_string(::getpid()))
    return ProcessState::kUnknown;
  const auto stat = read_stat(pid);
  if (stat.state == 0 || stat.state == 'Z' || stat.state == 'X' || stat.start != start)
    return ProcessState::kEnded;
  return stat.state == 'T' || stat.state == 't' ? ProcessState::kStopped : ProcessState::kRuns;
}

}  // namespace fulmen::detail
