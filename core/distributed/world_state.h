#pragma once

#include <exception>
#include <functional>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "fulmen/core/distributed/world.h"

namespace fulmen {

namespace detail {
class CollectiveCheck;
class CollectiveWatch;
class GroupLog;
}  // namespace detail

struct ProcessGroup::State {
  int rank = 0;
  std::vector<int> ranks;
  std::string name;
  std::chrono::milliseconds timeout{0};
  c10::intrusive_ptr<c10d::ProcessGroup> c10d;  // Null for a group of one rank.
  CommCounters counters;
  std::shared_ptr<CommCounters> world_counters;
  std::function<std::shared_ptr<State>()> make_twin = {};
  std::shared_ptr<State> twin = {};  // See twin_group.h.
  // These are null for a group of one rank.
  std::shared_ptr<detail::GroupLog> log = {};
  std::shared_ptr<detail::CollectiveWatch> watch = {};
  std::shared_ptr<detail::CollectiveCheck> check = {};  // Null without WorldOptions' checks too.

  void count(CollectiveKind kind, std::int64_t bytes) {
    counters.add(kind, bytes);
    world_counters->add(kind, bytes);
  }
};

struct World::State {
  Topology topology;
  WorldOptions options;
  c10::intrusive_ptr<c10d::Store> store;  // Null for a world of one rank.
  std::shared_ptr<CommCounters> counters = std::make_shared<CommCounters>();
  std::map<std::vector<int>, ProcessGroup> groups;
  std::shared_ptr<detail::CollectiveWatch> watch;  // Null for a world of one rank.
};

namespace detail {

/// What an exception of c10d says, without its list of stack frames.
std::string text_of(const std::exception& error);
/// "0.7 s".
std::string seconds(std::chrono::milliseconds time);

}  // namespace detail
}  // namespace fulmen
