#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fulmen/core/distributed/world.h"
#include "fulmen/fwd.h"

namespace fulmen {

/// A strategy to be checked, on ranks that are threads of this process.
struct StrategyUnderTest {
  /// The strategy of one rank, over a world that exists already. Called once on each rank and run.
  std::function<std::shared_ptr<Strategy>(const std::shared_ptr<World>&)> make;
  int ranks = 2;
  /// Greatest difference of a gradient or weight from those of one process, in double precision.
  double tolerance = 1e-11;
};

/// What every strategy promises to users, checked with small runs of a Trainer: the environment and
/// mesh; the context around configure_sharded_model(), also when that throws; gradients of every
/// step and weights equal to one process's, with accumulation, clipping, a tail and ranks without
/// data; unused parameters; joint skips and stops; metrics over all samples; a second run; resuming
/// bit for bit; an error on one rank that ends all. Link fulmen::testing; any test framework will
/// do:
///   for (const auto& failure : check_strategy({.make = ..., .ranks = 3})) ADD_FAILURE() <<
///   failure;
/// Returns a sentence for each promise that is broken; none: the strategy conforms. Writes to a
/// temporary folder only. Takes a few seconds.
std::vector<std::string> check_strategy(const StrategyUnderTest& strategy);

}  // namespace fulmen
