#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace fulmen {

/// Where the values of a parameter are along one axis of the mesh. Design and worked example:
/// docs/shared_weights.md.
struct Placement {
  enum class Kind : std::uint8_t {
    kReplicated,  ///< Equal on all ranks; each rank's gradient is a whole one.
    kShared,      ///< Equal on all ranks; each rank's gradient is a term of a sum. Model-like only.
    kSharded,     ///< Each rank holds a slice along `dim`.
    kLocal,       ///< Each rank has a parameter of its own.
  };
  Kind kind = Kind::kReplicated;
  std::int64_t dim = 0;  ///< kSharded only.
  bool operator==(const Placement&) const = default;
};
Placement replicated();
Placement shared();
Placement sharded(std::int64_t dim);
Placement local();
/// "replicated", "shared", "sharded(0)", "local".
std::string to_string(const Placement& placement);

/// Marks by axis. An axis that is missing has its default placement.
using PlacementMarks = std::map<std::string, Placement, std::less<>>;

}  // namespace fulmen
