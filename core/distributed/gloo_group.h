#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace fulmen::detail {

inline constexpr const char* kInterfaceVariable = "GLOO_SOCKET_IFNAME";

// A c10d group with the Gloo backend, whose sockets listen at an address of this host (see
// WorldOptions). Collective over its members, whose store has no keys of other groups. c10d's
// errors pass through.
c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                       int rank,
                                                       int size,
                                                       const std::string& name,
                                                       std::chrono::milliseconds timeout,
                                                       const std::string& listen_address);

}  // namespace fulmen::detail
