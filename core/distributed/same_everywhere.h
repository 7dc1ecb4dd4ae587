#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fulmen/core/distributed/collectives.h"

namespace fulmen::detail {

/// Collective: whether all ranks of the group have this text. Two numbers are exchanged.
bool is_same_everywhere(std::string_view text, const ProcessGroup& group);
/// Collective: empty if all ranks have this text, else who has what, the same on all of them.
std::string find_difference(const std::string& text, const ProcessGroup& group);
/// "12 on ranks 0, 2 and 13 on rank 1"; versions[i] is that of ranks[i].
std::string list_versions(const std::vector<std::string>& versions, const std::vector<int>& ranks);
bool are_equal(const std::vector<std::string>& list);

}  // namespace fulmen::detail
