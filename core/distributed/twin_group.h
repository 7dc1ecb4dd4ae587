#pragma once

#include "fulmen/core/distributed/world.h"

namespace fulmen::detail {

/// The same ranks over connections of their own, made once for each group: collectives on it may be
/// started at another place relative to those on the group than on other ranks. Gradients need
/// that: which bucket is complete when depends on what a rank used. Collective, in the same order
/// on all members.
ProcessGroup twin_of(const ProcessGroup& group);

}  // namespace fulmen::detail
