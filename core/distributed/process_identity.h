#pragma once

#include <string>

namespace fulmen::detail {

enum class ProcessState { kUnknown, kRuns, kStopped, kEnded };

/// Names this process to others of this host: the boot, the namespace of process ids, the id, and
/// when it started, separated by spaces. Empty where /proc does not say.
std::string process_identity();
/// kUnknown for a process of another host or namespace, and for this one.
ProcessState process_state(const std::string& identity);

}  // namespace fulmen::detail
