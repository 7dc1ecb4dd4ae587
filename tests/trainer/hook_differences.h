#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace fulmen {

/// Where Fulmen differs from Lightning by intent. Every other difference is a failure.
struct Difference {
  /// How docs/differences.md calls it.
  const char* title;
  /// Events in Lightning's sequence, separated by blanks, and what takes their place. `#` stands
  /// for one number.
  std::string lightning;
  std::string fulmen;
  /// Only in these cases; empty: wherever the events are found.
  std::set<std::string> cases = {};
};

/// Applied from the first to the last.
const std::vector<Difference>& differences();

/// Counters at the end, where they differ.
struct CounterDifference {
  const char* title;
  std::string name;
  std::int64_t global_step;
  std::int64_t epoch;
};

const std::vector<CounterDifference>& counter_differences();

}  // namespace fulmen
