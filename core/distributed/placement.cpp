#include "fulmen/core/distributed/placement.h"

namespace fulmen {

Placement replicated() {
  return {.kind = Placement::Kind::kReplicated};
}
Placement shared() {
  return {.kind = Placement::Kind::kShared};
}
Placement sharded(std::int64_t dim) {
  return {.kind = Placement::Kind::kSharded, .dim = dim};
}
Placement local() {
  return {.kind = Placement::Kind::kLocal};
}

std::string to_string(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::kReplicated:
      return "replicated";
    case Placement::Kind::kShared:
      return "shared";
    case Placement::Kind::kSharded:
      return "sharded(" + std::to_string(placement.dim) + ")";
    case Placement::Kind::kLocal:
      return "local";
  }
  return "unknown";
}

}  // namespace fulmen
