#pragma once

#include <string>
#include <string_view>

namespace fulmen::detail {

/// The first host of a list like "gpu[08-11,20],login1": "gpu08". Throws ConfigError for an empty
/// or torn list.
std::string first_slurm_node(std::string_view list);

}  // namespace fulmen::detail
