// A strategy outside the tree, written against installed headers, under the installed suite.
#include <fulmen/testing/strategy_conformance.h>

#include <iostream>

#include "naive_strategy.h"

int main() {
  const auto make = [](const std::shared_ptr<fulmen::World>& world) {
    return std::make_shared<fulmen::NaiveStrategy>(world);
  };
  const auto failures = fulmen::check_strategy({.make = make, .ranks = 2});
  for (const auto& failure : failures) std::cout << failure << "\n";
  std::cout << "a strategy of our own: " << failures.size() << " promises broken\n";
  return failures.empty() ? 0 : 1;
}
