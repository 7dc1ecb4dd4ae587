#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "fulmen/core/distributed/topology.h"

namespace fulmen {

/// Who started the ranks of a job.
enum class LaunchMethod {
  kSingle,     ///< Nobody: one process.
  kSelf,       ///< Fulmen, from the first process.
  kRun,        ///< fulmen-run.
  kTorchrun,   ///< torchrun or another elastic agent.
  kVariables,  ///< RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, set by somebody.
  kOpenMpi,    ///< mpirun of Open MPI.
  kSlurm,      ///< srun.
  kPmi,        ///< mpiexec of MPICH and its relatives, with MASTER_ADDR and MASTER_PORT.
};
/// "single process", "self-launch", "fulmen-run", "torchrun", "RANK variables", "Open MPI",
/// "SLURM", "PMI".
const char* to_string(LaunchMethod method);

/// A rank's place in a job that somebody else started, and where its ranks meet.
struct JobPlace {
  LaunchMethod method = LaunchMethod::kSingle;
  Topology topology = {};
  /// False: the variables do not say how many ranks share a host, nor local_rank if that is -1.
  /// join_job() then takes JobOptions::devices ranks for each host.
  bool hosts_known = true;
  /// Empty under Open MPI with all ranks on one host: rank 0 publishes its port in a file.
  std::string master_addr = {};
  std::uint16_t master_port = 0;
  /// The agent serves the store already (TORCHELASTIC_USE_AGENT_STORE): rank 0 must not bind.
  bool agent_serves_store = false;
  std::string job_id = {};  ///< Tells jobs on one port apart; empty: none was given.
};

/// Looks an environment variable up; empty if it is not set. Tests hand in a map.
using VariableLookup = std::function<std::optional<std::string>(const std::string& name)>;
/// That of this process.
VariableLookup process_environment();

/// True for "localhost", "::1" and 127.x.y.z.
bool is_loopback(const std::string& host);

/// What the variables say. The first that is there counts, and a partial set is an error and never
/// falls through to the next:
/// - RANK and WORLD_SIZE, from Fulmen's own launcher, torchrun or somebody; they need MASTER_ADDR
///   and MASTER_PORT. Without both of them, MASTER_ADDR or LOCAL_RANK alone mean nothing.
/// - Open MPI; MASTER_ADDR and MASTER_PORT are needed with several hosts.
/// - SLURM, in a step of several tasks that is not an interactive shell. MASTER_ADDR: else the
/// first
///   host of the step. MASTER_PORT: else 10000 + (SLURM_JOB_ID + 997 * SLURM_STEP_ID) % 20000.
/// - PMI_RANK and PMI_SIZE above 1; they need MASTER_ADDR and MASTER_PORT.
/// An empty variable counts as one that is not set. Empty result: none of these.
/// Throws ConfigError that names the variable that is missing or has no valid value.
std::optional<JobPlace> detect_job(const VariableLookup& variable);

}  // namespace fulmen
