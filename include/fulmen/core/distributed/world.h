#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fulmen/core/distributed/comm_counters.h"
#include "fulmen/core/distributed/topology.h"
#include "fulmen/fwd.h"

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace fulmen {

class World;

/// Some ranks of a world that talk to each other. A handle: copies are the same group, valid as
/// long as one of them lives. Collectives on it are in collectives.h; they are called from one
/// thread at a time, in the same order by all members.
class ProcessGroup {
 public:
  int rank() const;  ///< Of this process among the members, from 0.
  int size() const;
  /// Members as ranks of the world, ascending.
  const std::vector<int>& ranks() const;
  /// For messages, for example "model {0, 1}".
  std::string describe() const;
  bool operator==(const ProcessGroup& other) const { return state_ == other.state_; }

  /// c10d's group, for what collectives.h does not offer. Throws DistributedError for a group of
  /// one rank, which has none.
  c10d::ProcessGroup& c10d() const;
  CommCounters& counters() const;

  struct State;  ///< Private to core/distributed.
  explicit ProcessGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

enum class CollectiveChecks {
  kNone,
  /// Before each collective the ranks of its group compare what they are about to call (operation,
  /// dtype, shape, root, label), and fail together where it differs. For debugging: every
  /// collective takes about twice as long, and asynchronous ones start when they are waited for.
  kCompare,
};

struct WorldOptions {
  /// How long a rank waits for its peers, in the rendezvous and in each collective.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// The address of this host where sockets of the groups listen; other ranks must reach it.
  /// Empty: that of the interface which the variable GLOO_SOCKET_IFNAME names.
  std::string listen_address = "127.0.0.1";
  /// Begins the keys in the store, so that an earlier job on the same store is never met.
  std::string key_prefix = "fulmen";
  /// Rank 0's counts for all. The variable FULMEN_DEBUG_COLLECTIVES=1 is the same as kCompare.
  CollectiveChecks debug_collectives = CollectiveChecks::kNone;
  std::shared_ptr<Accelerator> accelerator = {};  ///< Adds its collectives to groups; may be null.
};

/// All ranks of a job, and the groups that were made among them. One object per rank; not
/// thread-safe. On CPUs the groups are c10d's over Gloo.
class World : public std::enable_shared_from_this<World> {
 public:
  /// This process alone: groups of one rank, collectives that return at once.
  static std::shared_ptr<World> single();
  /// Meets the other ranks in a store that all of them reach. Collective. Throws DistributedError
  /// that names the ranks that did not come within the time limit.
  static std::shared_ptr<World> join(const Topology& topology,
                                     c10::intrusive_ptr<c10d::Store> store,
                                     const WorldOptions& options = {});
  ~World();

  const Topology& topology() const;
  int rank() const { return topology().rank; }
  int size() const { return topology().world_size; }
  std::chrono::milliseconds timeout() const;

  /// The group of these ranks; the same set gives the same group. Collective over its members the
  /// first time, so all of them ask for their groups in the same order. `name` is for messages.
  /// Throws ConfigError unless this rank is a member and each rank is one of the world, named once.
  ProcessGroup group(std::vector<int> ranks, const std::string& name);
  /// Of all ranks.
  ProcessGroup all();
  /// Closes the connections of all groups, so that collectives of the other ranks fail now and not
  /// at the time limit. Later ones of this rank throw DistributedError. For a rank that failed.
  void leave() noexcept;
  /// What all groups of this rank have sent.
  CommCounters& counters();

  struct State;  ///< Private to core/distributed.
  explicit World(std::unique_ptr<State> state);

 private:
  std::unique_ptr<State> state_;
};

/// Runs `body` on `size` ranks that are threads of this process, each with a World of its own, and
/// waits for all. For tests, and for programs whose ranks are threads. What is process-wide
/// (default generators, number of threads, signals) is common to these ranks. When a body throws,
/// the others' collectives fail within the time limit, and the first exception is rethrown.
void run_thread_ranks(int size,
                      const std::function<void(const std::shared_ptr<World>&)>& body,
                      const WorldOptions& options = {.timeout = std::chrono::seconds(60)});

}  // namespace fulmen
