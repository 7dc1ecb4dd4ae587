#pragma once

#include <string>
#include <vector>

#include "tests/support/run_program.h"

namespace fulmen {

/// Two hosts, as network namespaces of this one, with a link between them: node 0 is 10.77.0.1 and
/// fd77::1, node 1 is 10.77.0.2 and fd77::2. Needs ip of iproute2 and the right to make namespaces.
/// Removed by the destructor.
class TwoNodes {
 public:
  TwoNodes();
  ~TwoNodes();
  TwoNodes(const TwoNodes&) = delete;
  TwoNodes& operator=(const TwoNodes&) = delete;

  /// Why there are none; empty if they are there.
  const std::string& problem() const { return problem_; }
  /// The command, to be run on a node.
  std::vector<std::string> on(int node, const std::vector<std::string>& command) const;
  void cut() const;
  void mend() const;
  /// Packets of node 0 are late by 10 ms, or where the kernel has no netem, pass at 100 kbit/s.
  /// False if neither can be had.
  bool slow_down() const;

 private:
  std::string name(int node) const;
  void run(const std::string& command);

  std::string prefix_;
  std::string problem_;
};

}  // namespace fulmen
