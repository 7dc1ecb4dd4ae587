#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace c10d {
class Store;
}

namespace fulmen::detail {

/// The address of this host on the way to another: the one under which hosts of that network reach
/// it. Loopback if `host` is this one by a name of loopback. Sends nothing. Throws
/// boost::system::system_error if the host has no address, or no way leads there.
std::string own_address_towards(const std::string& host, std::uint16_t port);

/// The address under which the other ranks of a job on several hosts reach this one: on the way to
/// `host`, where they meet, or, where that is a name of this host that means loopback here (Debian
/// writes 127.0.1.1 into /etc/hosts), on the way to the first rank that has another. Collective if
/// a rank's way is loopback: each publishes its own under `prefix`, and such a rank waits for the
/// others. c10d's exceptions pass through.
std::string reachable_address(const std::string& host,
                              std::uint16_t port,
                              int rank,
                              int world_size,
                              const std::string& prefix,
                              c10d::Store& store);

}  // namespace fulmen::detail
