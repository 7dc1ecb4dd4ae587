#pragma once

namespace fulmen {

/// Where this process stands in the job.
struct Topology {
  int rank = 0;              ///< Of all processes of the job, from 0.
  int local_rank = 0;        ///< Of those on this host.
  int world_size = 1;        ///< Processes of the job.
  int local_world_size = 1;  ///< Processes on this host.
  int node_rank = 0;         ///< Of the hosts.
};

}  // namespace fulmen
