#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fulmen/core/distributed/device_mesh.h"

// The arithmetic of a mesh, without ranks that run.
namespace fulmen::detail {

/// Axes with sizes, kinds and defaults filled in; parts multiply to their axis. Throws ConfigError.
std::vector<MeshAxis> resolve_axes(std::vector<MeshAxis> axes, int world_size);
/// Those without parts, in order.
std::vector<MeshAxis> leaf_axes(const std::vector<MeshAxis>& axes);
/// Names of the leaves of an axis of that name; empty if there is none.
std::vector<std::string> leaves_of(const std::vector<MeshAxis>& axes, std::string_view name);
/// All names that are known, for messages.
std::string known_names(const std::vector<MeshAxis>& axes);

/// Coordinates of a rank, row-major: the last leaf is fastest.
std::vector<int> coordinates(const std::vector<MeshAxis>& leaves, int rank);
/// Ranks that differ from `rank` only along the leaves that `varies` marks, ascending.
std::vector<int> members(const std::vector<MeshAxis>& leaves,
                         int rank,
                         const std::vector<bool>& varies);

}  // namespace fulmen::detail
