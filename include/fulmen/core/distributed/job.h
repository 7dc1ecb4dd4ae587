#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "fulmen/core/distributed/environment.h"
#include "fulmen/core/distributed/world.h"
#include "fulmen/fwd.h"

namespace fulmen {

/// Whether Fulmen may start the other ranks of this host.
enum class Launch {
  kAuto,   ///< Takes its place in a job that somebody started; else starts the ranks itself.
  kNever,  ///< For hosts that own main (simulators, MPI codes): no process is ever started.
};

struct JobOptions {
  std::int64_t devices = 1;  ///< Ranks on each host.
  std::int64_t num_nodes = 1;
  Launch launch = Launch::kAuto;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  CollectiveChecks debug_collectives = CollectiveChecks::kNone;
  std::shared_ptr<Accelerator> accelerator = {};  ///< Adds its collectives to groups; may be null.
};

/// Joins the job of this process and returns its world. The first call in a process that nobody
/// launched starts the other ranks: this executable with the same arguments, in this folder, with
/// no input and with their output prefixed by "[rank n] ". They run main() from its start and meet
/// this process here. Each call makes a new World over the same processes, under new keys; all
/// ranks make the same calls. Rank 0 logs one line that says how the ranks were found. The first
/// call sets threads per rank to cores / ranks of this host, unless OMP_NUM_THREADS is set.
///
/// Ranks that were started here end with this process, whatever ends it. When one of them ends by
/// an error, the others are ended within 4 s, and this process within 5 s if it has not ended by
/// itself; its exit code is then not 0. When this process returns from main(), it waits up to 30 s
/// for the others. SIGINT and SIGTERM are handed on, unless the program has a handler of its own.
///
/// Throws ConfigError: devices below 1; another number of ranks than the launcher started, or than
/// an earlier call had; a partial set of variables; more than one rank with Launch::kNever, or on
/// several hosts, and no launcher. Throws DistributedError if ranks do not come in time, or cannot
/// be started.
std::shared_ptr<World> join_job(const JobOptions& options, Log& log);

/// Runs `body` on n ranks of this host and returns its result, or that of a launcher that started
/// this process: the ranks are started here if nobody did, as by join_job(). On the ranks that were
/// started here the process ends when `body` returns, with its result as exit code. In the first
/// process: its own result if that is not 0, else the exit code of the first rank that failed,
/// else 0. What a body throws is logged and is exit code 1. Once in a process that starts ranks.
int launch(int ranks, const std::function<int()>& body);

}  // namespace fulmen
