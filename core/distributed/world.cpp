#include "fulmen/core/distributed/world.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <future>
#include <numeric>
#include <sstream>
#include <thread>

#include "core/distributed/collective_check.h"
#include "core/distributed/collective_watch.h"
#include "core/distributed/gloo_group.h"
#include "core/distributed/process_identity.h"
#include "core/distributed/twin_group.h"
#include "core/distributed/world_state.h"
#include "fulmen/core/support/accelerator.h"
#include "fulmen/core/support/error.h"
#include "fulmen/core/support/log.h"

namespace fulmen {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

std::string announcement(int rank) {
  return "rank/" + std::to_string(rank);
}

// What ranks say of themselves when they come: their checks, then their process.
std::string introduction(const WorldOptions& options) {
  return std::to_string(static_cast<int>(options.debug_collectives)) + " " +
         detail::process_identity();
}

// Waits for each rank's announcement in short turns, so that the error can say whose is missing.
void meet(c10d::Store& store,
          const Topology& topology,
          const std::string& introduced,
          milliseconds timeout) {
  store.set(announcement(topology.rank), introduced);
  const auto deadline = Clock::now() + timeout;
  std::vector<int> missing(static_cast<std::size_t>(topology.world_size));
  std::iota(missing.begin(), missing.end(), 0);
  auto pause = milliseconds(1);
  while (true) {
    std::erase_if(missing, [&](int rank) { return store.check({announcement(rank)}); });
    if (missing.empty()) return;
    if (Clock::now() >= deadline) {
      fail<DistributedError>("World",
                             "rank ",
                             topology.rank,
                             " waited ",
                             detail::seconds(timeout),
                             " for its ",
                             topology.world_size,
                             " ranks; missing: ",
                             list(missing),
                             ". See whether they were started, and what they printed.");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(50));
  }
}

// Members that have not asked for the group, as far as the store can still say.
std::string absent(c10d::Store& store, const std::vector<int>& ranks) {
  auto missing = ranks;
  try {
    std::erase_if(missing, [&](int rank) { return store.check({announcement(rank)}); });
  } catch (const std::exception&) {
    return {};  // The store is what failed, and the error says so already.
  }
  return missing.empty() ? std::string() : " Not asked for by: " + list(missing) + ".";
}

void check_topology(const Topology& topology) {
  if (topology.world_size >= 1 && topology.rank >= 0 && topology.rank < topology.world_size) return;
  fail<ConfigError>("World",
                    "a rank is from 0 to the world size - 1, got rank ",
                    topology.rank,
                    " of ",
                    topology.world_size,
                    ".");
}

c10::intrusive_ptr<c10d::ProcessGroup> connect(const ProcessGroup::State& group,
                                               const c10::intrusive_ptr<c10d::Store>& store,
                                               const WorldOptions& options,
                                               const std::string& kind) {
  // The members make a key that no other group of this world has, as a set of ranks has one group
  // of a kind.
  const auto name = kind + "/" + list(group.ranks);
  const auto own = c10::make_intrusive<c10d::PrefixStore>(name, store);
  try {
    own->set(announcement(group.ranks[static_cast<std::size_t>(group.rank)]),
             std::vector<std::uint8_t>{1});
    const auto size = static_cast<int>(group.ranks.size());
    auto made = detail::make_gloo_group(
        own, group.rank, size, name, options.timeout, options.listen_address);
    if (options.accelerator != nullptr) {
      options.accelerator->add_backend(
          {.group = *made,
           .store = c10::make_intrusive<c10d::PrefixStore>("device", own),
           .rank = group.rank,
           .size = size,
           .timeout = options.timeout});
    }
    return made;
  } catch (const std::exception& error) {
    fail<DistributedError>("World",
                           "the group \"",
                           group.name,
                           "\" of ranks {",
                           list(group.ranks),
                           "} could not be made within ",
                           detail::seconds(options.timeout),
                           ".",
                           absent(*own, group.ranks),
                           " ",
                           detail::text_of(error));
  }
}

// Makes the connections of a group of several ranks. Collective.
void open(ProcessGroup::State& group,
          const c10::intrusive_ptr<c10d::Store>& store,
          const WorldOptions& options,
          const std::shared_ptr<detail::CollectiveWatch>& watch,
          const std::string& kind) {
  const auto description = group.name + " {" + list(group.ranks) + "}";
  group.c10d = connect(group, store, options, kind);
  group.watch = watch;
  group.log = watch->add_group(kind + "/" + list(group.ranks), description);
  if (options.debug_collectives == CollectiveChecks::kNone) return;
  group.check = std::make_shared<detail::CollectiveCheck>(
      connect(group, store, options, "check of " + kind), group.ranks, description);
}

using Groups = std::vector<c10::intrusive_ptr<c10d::ProcessGroup>>;

void close(ProcessGroup::State& group, Groups& closing) {
  if (group.c10d) closing.push_back(std::move(group.c10d));
  if (group.check != nullptr) group.check->leave();
}

/// Gloo's destructor waits for collectives that are under way, and so for peers that may not come.
/// What is not done in a second is left to a thread that ends with them.
void destroy(Groups groups) {
  const auto done = std::make_shared<std::promise<void>>();
  const auto left = std::make_shared<std::atomic<std::size_t>>(groups.size());
  const auto all = done->get_future();
  for (auto& group : groups) {
    std::thread([group = std::move(group), done, left]() mutable {
      group.reset();
      if (--*left == 0) done->set_value();
    }).detach();
  }
  if (!groups.empty()) all.wait_for(std::chrono::seconds(1));
}

// What the variable of the environment says counts too, but on rank 0 only.
CollectiveChecks checks_of(const WorldOptions& options, int rank) {
  constexpr const char* kVariable = "FULMEN_DEBUG_COLLECTIVES";
  const char* found = std::getenv(kVariable);
  const std::string value = found == nullptr ? "" : found;
  if (rank != 0 || value.empty() || value == "0") return options.debug_collectives;
  if (value != "1") fail<ConfigError>("World", kVariable, " must be 0 or 1, got ", value, ".");
  Log().info(kVariable, " is set: all ranks compare each collective before it starts.");
  return CollectiveChecks::kCompare;
}

CollectiveChecks checks_of_first(c10d::Store& store) {
  return store.get_to_str(announcement(0)).starts_with('0') ? CollectiveChecks::kNone
                                                            : CollectiveChecks::kCompare;
}

}  // namespace

std::string detail::text_of(const std::exception& error) {
  const auto* from_c10 = dynamic_cast<const c10::Error*>(&error);
  return from_c10 == nullptr ? error.what() : from_c10->what_without_backtrace();
}

std::string detail::seconds(milliseconds time) {
  std::ostringstream text;
  text << static_cast<double>(time.count()) / 1000.0 << " s";
  return text.str();
}

int ProcessGroup::rank() const {
  return state_->rank;
}
int ProcessGroup::size() const {
  return static_cast<int>(state_->ranks.size());
}
const std::vector<int>& ProcessGroup::ranks() const {
  return state_->ranks;
}
std::string ProcessGroup::describe() const {
  return state_->name + " {" + list(state_->ranks) + "}";
}
CommCounters& ProcessGroup::counters() const {
  return state_->counters;
}

c10d::ProcessGroup& ProcessGroup::c10d() const {
  if (state_->c10d == nullptr) {
    fail<DistributedError>(
        "ProcessGroup",
        describe(),
        size() == 1 ? " is one rank alone, and has no group of c10d."
                    : " was closed on this rank: its run ended by an error, or it left the job.");
  }
  return *state_->c10d;
}

World::World(std::unique_ptr<State> state) : state_(std::move(state)) {}
World::~World() = default;

void World::leave() noexcept {
  if (state_->watch != nullptr) state_->watch->leave();
  try {
    Groups closing;
    for (auto& [ranks, group] : state_->groups) {
      close(*group.state(), closing);
      if (group.state()->twin != nullptr) close(*group.state()->twin, closing);
    }
    destroy(std::move(closing));
  } catch (const std::exception& error) {
    Log().error("World: leaving the job failed as well: ", error.what());
  }
}

std::shared_ptr<World> World::single() {
  return std::make_shared<World>(std::make_unique<State>());
}

std::shared_ptr<World> World::join(const Topology& topology,
                                   c10::intrusive_ptr<c10d::Store> store,
                                   const WorldOptions& options) {
  check_topology(topology);
  auto state = std::make_unique<State>();
  state->topology = topology;
  state->options = options;
  if (topology.world_size > 1) {
    state->store = c10::make_intrusive<c10d::PrefixStore>(options.key_prefix, std::move(store));
    state->options.debug_collectives = checks_of(options, topology.rank);
    try {
      meet(*state->store, topology, introduction(state->options), options.timeout);
      state->options.debug_collectives = checks_of_first(*state->store);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail<DistributedError>("World",
                             "the store where the ranks meet failed on rank ",
                             topology.rank,
                             ": ",
                             detail::text_of(error));
    }
    state->watch = std::make_shared<detail::CollectiveWatch>(
        detail::CollectiveWatch::Options{.store = state->store,
                                         .rank = topology.rank,
                                         .world_size = topology.world_size,
                                         .timeout = options.timeout,
                                         .identity_key = announcement});
  }
  return std::make_shared<World>(std::move(state));
}

const Topology& World::topology() const {
  return state_->topology;
}
milliseconds World::timeout() const {
  return state_->options.timeout;
}
CommCounters& World::counters() {
  return *state_->counters;
}

ProcessGroup World::all() {
  std::vector<int> ranks(static_cast<std::size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group(std::move(ranks), "world");
}

ProcessGroup World::group(std::vector<int> ranks, const std::string& name) {
  std::sort(ranks.begin(), ranks.end());
  if (const auto it = state_->groups.find(ranks); it != state_->groups.end()) return it->second;
  const auto mine = std::find(ranks.begin(), ranks.end(), rank());
  const bool twice = std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end();
  if (mine == ranks.end() || twice || ranks.front() < 0 || ranks.back() >= size()) {
    fail<ConfigError>("World",
                      "the group \"",
                      name,
                      "\" of ranks {",
                      list(ranks),
                      "} must have rank ",
                      rank(),
                      ", which asks for it, as a member, and each rank once, from 0 to ",
                      size() - 1,
                      ".");
  }
  auto state = std::make_shared<ProcessGroup::State>();
  state->rank = static_cast<int>(mine - ranks.begin());
  state->ranks = ranks;
  state->name = name;
  state->timeout = timeout();
  state->world_counters = state_->counters;
  if (ranks.size() > 1) {
    open(*state, state_->store, state_->options, state_->watch, "group");
    state->make_twin = [original = std::weak_ptr(state),
                        store = state_->store,
                        options = state_->options,
                        watch = state_->watch] {
      const auto from = original.lock();
      auto twin = std::make_shared<ProcessGroup::State>();
      twin->rank = from->rank;
      twin->ranks = from->ranks;
      twin->name = from->name;
      twin->timeout = from->timeout;
      twin->world_counters = from->world_counters;
      open(*twin, store, options, watch, "twin");
      return twin;
    };
  }
  return state_->groups.emplace(std::move(ranks), ProcessGroup(std::move(state))).first->second;
}

ProcessGroup detail::twin_of(const ProcessGroup& group) {
  if (group.size() == 1) return group;
  auto& twin = group.state()->twin;
  if (twin == nullptr) twin = group.state()->make_twin();
  return ProcessGroup(twin);
}

}  // namespace fulmen
