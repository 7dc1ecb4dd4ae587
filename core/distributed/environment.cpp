#include "fulmen/core/distributed/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>

#include "core/distributed/slurm_nodes.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

constexpr std::string_view kWhere = "The launch environment";
constexpr std::int64_t kMost = std::numeric_limits<int>::max();

/// Reads variables, and says which is missing or wrong.
class Variables {
 public:
  explicit Variables(const VariableLookup& lookup) : lookup_(lookup) {}

  bool has(const std::string& name) const { return !text(name).empty(); }
  std::string text(const std::string& name) const { return lookup_(name).value_or(""); }

  std::optional<std::int64_t> wide_number(const std::string& name,
                                          std::int64_t least,
                                          std::int64_t most) const {
    const auto given = text(name);
    if (given.empty()) return std::nullopt;
    std::int64_t value = 0;
    const auto* end = given.data() + given.size();
    const auto [rest, error] = std::from_chars(given.data(), end, value);
    if (error == std::errc() && rest == end && value >= least && value <= most) return value;
    const std::string range = most == kMost ? " up" : " to " + std::to_string(most);
    fail<ConfigError>(
        kWhere, name, " must be a number from ", least, range, ", got \"", given, "\".");
  }
  std::optional<int> number(const std::string& name, int least) const {
    const auto value = wide_number(name, least, kMost);
    return value ? std::optional<int>(static_cast<int>(*value)) : std::nullopt;
  }
  int require_number(const std::string& name, int least, const std::string& because) const {
    if (const auto value = number(name, least)) return *value;
    fail_missing(name, because);
  }

  /// Sets the address, which must be there, and the port with it.
  void require_master(JobPlace& place, const std::string& because) const {
    place.master_addr = text("MASTER_ADDR");
    if (place.master_addr.empty()) fail_missing("MASTER_ADDR", because);
    const auto port = master_port();
    if (!port) fail_missing("MASTER_PORT", because + " and MASTER_ADDR");
    place.master_port = *port;
  }
  std::optional<std::uint16_t> master_port() const {
    const auto port = wide_number("MASTER_PORT", 1, 65535);
    return port ? std::optional(static_cast<std::uint16_t>(*port)) : std::nullopt;
  }

 private:
  [[noreturn]] static void fail_missing(const std::string& name, const std::string& because) {
    fail<ConfigError>(kWhere,
                      name,
                      " is missing, but this process was started with ",
                      because,
                      ". Set all variables of a launcher, or none.");
  }

  const VariableLookup& lookup_;
};

void check_below(const std::string& name, int rank, const std::string& size_name, int size) {
  if (rank < size) return;
  fail<ConfigError>(
      kWhere, name, " must be less than ", size_name, ", which is ", size, ", got ", rank, ".");
}

/// Rank and size under these names, if one of both is there.
bool read_rank(const Variables& variables,
               const std::string& rank,
               const std::string& size,
               Topology& topology) {
  if (!variables.has(rank) && !variables.has(size)) return false;
  topology.world_size = variables.require_number(size, 1, rank);
  topology.rank = variables.require_number(rank, 0, size);
  check_below(rank, topology.rank, size, topology.world_size);
  return true;
}

/// Rank and size on this host; whether the variables tell both.
bool read_local_rank(const Variables& variables,
                     const std::string& rank,
                     const std::string& size,
                     Topology& topology) {
  const auto local_size = variables.number(size, 1);
  const auto local_rank = variables.number(rank, 0);
  if (local_size) check_below(rank, local_rank.value_or(0), size, *local_size);
  topology.local_rank = local_rank.value_or(local_size ? topology.rank % *local_size : -1);
  topology.local_world_size = local_size.value_or(1);
  topology.node_rank = topology.rank / topology.local_world_size;
  return local_size.has_value();
}

std::optional<JobPlace> from_rank_variables(const Variables& variables) {
  JobPlace place{.method = LaunchMethod::kVariables};
  auto& topology = place.topology;
  if (!read_rank(variables, "RANK", "WORLD_SIZE", topology)) return std::nullopt;
  variables.require_master(place, "RANK and WORLD_SIZE");
  place.hosts_known = read_local_rank(variables, "LOCAL_RANK", "LOCAL_WORLD_SIZE", topology);
  if (!place.hosts_known && is_loopback(place.master_addr)) {
    topology.local_rank = topology.rank;
    topology.local_world_size = topology.world_size;
    topology.node_rank = 0;
    place.hosts_known = true;
  }
  topology.node_rank = variables.number("GROUP_RANK", 0).value_or(topology.node_rank);
  if (variables.has("FULMEN_LAUNCHED")) {
    place.method = LaunchMethod::kSelf;
    place.job_id = variables.text("FULMEN_LAUNCHED");
  } else if (variables.has("TORCHELASTIC_RUN_ID")) {
    place.method = variables.has("FULMEN_STORE") ? LaunchMethod::kRun : LaunchMethod::kTorchrun;
    const auto restarts = variables.number("TORCHELASTIC_RESTART_COUNT", 0).value_or(0);
    place.job_id = variables.text("TORCHELASTIC_RUN_ID") + "/" + std::to_string(restarts);
    place.agent_serves_store = variables.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  }
  return place;
}

std::optional<JobPlace> from_open_mpi(const Variables& variables) {
  JobPlace place{.method = LaunchMethod::kOpenMpi};
  auto& topology = place.topology;
  const std::string size = "OMPI_COMM_WORLD_SIZE";
  if (!read_rank(variables, "OMPI_COMM_WORLD_RANK", size, topology)) return std::nullopt;
  const std::string local_size = "OMPI_COMM_WORLD_LOCAL_SIZE";
  const std::string local_rank = "OMPI_COMM_WORLD_LOCAL_RANK";
  variables.require_number(local_size, 1, size);
  variables.require_number(local_rank, 0, size);
  read_local_rank(variables, local_rank, local_size, topology);
  const auto id = variables.text("PMIX_NAMESPACE");
  place.job_id = id.empty() ? variables.text("OMPI_MCA_ess_base_jobid") : id;
  if (variables.has("MASTER_ADDR")) {
    variables.require_master(place, "Open MPI");
  } else if (topology.local_world_size != topology.world_size) {
    fail<ConfigError>(
        kWhere,
        "mpirun started ranks on several hosts, but MASTER_ADDR is missing. Pass the ",
        "host of rank 0 and a free port there: mpirun -x MASTER_ADDR=... -x ",
        "MASTER_PORT=...");
  }
  return place;
}

/// Whether srun started this process as one of several. A batch script and a shell inside an
/// allocation have SLURM's variables too, and the number of tasks that they may start.
bool is_slurm_task(const Variables& variables) {
  if (!variables.has("SLURM_PROCID")) return false;
  const auto step_tasks = variables.number("SLURM_STEP_NUM_TASKS", 1);
  if (step_tasks.value_or(variables.number("SLURM_NTASKS", 1).value_or(1)) == 1) return false;
  // Batch scripts, and the shells of salloc, are steps with numbers from here on.
  constexpr std::int64_t kFirstSpecialStep = 0xfffffff0;
  const auto step = variables.wide_number("SLURM_STEP_ID", 0, 0xffffffff);
  if (!step && !step_tasks) return false;
  if (step.value_or(0) >= kFirstSpecialStep) return false;
  const auto name = variables.text("SLURM_JOB_NAME");
  if (!step && (name == "interactive" || name == "bash" || name == "sh")) return false;
  if (!variables.has("SLURM_PTY_PORT")) return true;
  // Either the shell of `srun --pty`, or started by another srun from there: a guess could be N
  // jobs that nobody asked for.
  fail<ConfigError>(kWhere,
                    "SLURM_PTY_PORT is set in a SLURM step of several tasks. If srun started this ",
                    "program once for each rank, unset SLURM_PTY_PORT; if it was started by hand ",
                    "from a shell of `srun --pty`, unset SLURM_PROCID.");
}

std::string slurm_master(const Variables& variables, int nodes) {
  if (variables.has("MASTER_ADDR")) return variables.text("MASTER_ADDR");
  if (nodes == 1) return "127.0.0.1";
  for (const auto* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (variables.has(name)) return detail::first_slurm_node(variables.text(name));
  }
  fail<ConfigError>(
      kWhere,
      "SLURM_STEP_NODELIST is missing, but srun started this process. Set MASTER_ADDR ",
      "to the host of rank 0.");
}

std::optional<JobPlace> from_slurm(const Variables& variables) {
  if (!is_slurm_task(variables)) return std::nullopt;
  JobPlace place{.method = LaunchMethod::kSlurm};
  auto& topology = place.topology;
  const std::string size =
      variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  read_rank(variables, "SLURM_PROCID", size, topology);
  const auto nodes = variables.number("SLURM_STEP_NUM_NODES", 1)
                         .value_or(variables.number("SLURM_NNODES", 1).value_or(1));
  topology.local_rank = variables.require_number("SLURM_LOCALID", 0, "SLURM_PROCID");
  topology.local_world_size = std::max(topology.local_rank + 1, topology.world_size / nodes);
  topology.node_rank = variables.number("SLURM_NODEID", 0).value_or(0);
  const auto step = variables.text("SLURM_STEP_ID");
  place.job_id = variables.text("SLURM_JOB_ID") + "." + step;
  place.master_addr = slurm_master(variables, nodes);
  // Every rank finds the same port without a word, below those that systems hand out.
  const std::int64_t job = variables.number("SLURM_JOB_ID", 0).value_or(0);
  const std::int64_t number = job + 997 * variables.number("SLURM_STEP_ID", 0).value_or(0);
  place.master_port =
      variables.master_port().value_or(static_cast<std::uint16_t>(10000 + number % 20000));
  return place;
}

std::optional<JobPlace> from_pmi(const Variables& variables) {
  JobPlace place{.method = LaunchMethod::kPmi};
  auto& topology = place.topology;
  if (!read_rank(variables, "PMI_RANK", "PMI_SIZE", topology)) return std::nullopt;
  if (topology.world_size == 1) return std::nullopt;
  variables.require_master(place, "PMI_RANK and PMI_SIZE");
  place.hosts_known = read_local_rank(variables, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", topology);
  return place;
}

}  // namespace

const char* to_string(LaunchMethod method) {
  switch (method) {
    case LaunchMethod::kSingle:
      return "single process";
    case LaunchMethod::kSelf:
      return "self-launch";
    case LaunchMethod::kRun:
      return "fulmen-run";
    case LaunchMethod::kTorchrun:
      return "torchrun";
    case LaunchMethod::kVariables:
      return "RANK variables";
    case LaunchMethod::kOpenMpi:
      return "Open MPI";
    case LaunchMethod::kSlurm:
      return "SLURM";
    case LaunchMethod::kPmi:
      return "PMI";
  }
  return "unknown";
}

VariableLookup process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::optional<JobPlace> detect_job(const VariableLookup& variable) {
  const Variables variables(variable);
  if (auto place = from_rank_variables(variables)) return place;
  if (auto place = from_open_mpi(variables)) return place;
  if (auto place = from_slurm(variables)) return place;
  return from_pmi(variables);
}

}  // namespace fulmen
