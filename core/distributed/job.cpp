#include "fulmen/core/distributed/job.h"

#include <ATen/Parallel.h>
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "core/distributed/launcher.h"
#include "core/distributed/meeting.h"
#include "core/distributed/signal_relay.h"
#include "fulmen/core/support/error.h"
#include "fulmen/core/support/log.h"

namespace fulmen {
namespace {

constexpr std::string_view kWhere = "The job";

std::string random_id() {
  std::random_device source;
  std::ostringstream text;
  text << std::hex << source() << source();
  return text.str();
}

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());
}

void check_options(const JobOptions& options) {
  constexpr std::int64_t kMost = 1 << 20;
  const auto bad = [](std::int64_t count) { return count < 1 || count > kMost; };
  if (!bad(options.devices) && !bad(options.num_nodes) && options.timeout.count() > 0) return;
  fail<ConfigError>(kWhere,
                    "devices and num_nodes must be from 1 to ",
                    kMost,
                    " and timeout greater than 0, got ",
                    options.devices,
                    ", ",
                    options.num_nodes,
                    " and ",
                    options.timeout.count(),
                    " ms.");
}

/// Nobody started the other ranks; may this process?
void check_may_start(const JobOptions& options) {
  if (options.launch == Launch::kNever) {
    fail<ConfigError>(kWhere,
                      "devices * num_nodes is ",
                      options.devices * options.num_nodes,
                      " and launch is kNever, but no launcher started this process. Use torchrun, ",
                      "mpirun or srun, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for ",
                      "each rank.");
  }
  if (options.num_nodes > 1) {
    fail<ConfigError>(kWhere,
                      "num_nodes is ",
                      options.num_nodes,
                      ", but no launcher started this process, and Fulmen starts the ranks of one ",
                      "host only. Start it on each host with torchrun, mpirun or srun.");
  }
}

void check_ranks(const JobPlace& place, const JobOptions& options) {
  const auto ranks = options.devices * options.num_nodes;
  const int size = place.topology.world_size;
  if (ranks == size) return;
  if (place.method == LaunchMethod::kSingle || place.method == LaunchMethod::kSelf) {
    fail<ConfigError>(kWhere,
                      "it has ",
                      size,
                      size == 1 ? " rank" : " ranks",
                      " since its first run, but devices * num_nodes is now ",
                      ranks,
                      ". All runs of a program have the same number of ranks.");
  }
  fail<ConfigError>(kWhere,
                    to_string(place.method),
                    " started ",
                    size,
                    size == 1 ? " rank" : " ranks",
                    ", but devices * num_nodes is ",
                    ranks,
                    ". Set devices to the ranks of each host (here ",
                    place.topology.local_world_size,
                    ") and num_nodes to the hosts, or start the program without that launcher.");
}

/// What the variables left open follows from the options.
void complete(JobPlace& place, const JobOptions& options) {
  if (place.hosts_known) return;
  auto& topology = place.topology;
  const int devices = static_cast<int>(options.devices);
  topology.local_world_size = devices;
  if (topology.local_rank < 0) topology.local_rank = topology.rank % devices;
  topology.node_rank = topology.rank / devices;
}

/// What this process is in its job.
class Job {
 public:
  /// There is one process, so there is one of these. It is never destroyed, because the other ranks
  /// need its store until they end, and the exit handler and the launcher's thread need it too.
  static Job& instance() {
    static Job* job = new Job;
    return *job;
  }

  std::shared_ptr<World> join(const JobOptions& options, Log& log) {
    const std::lock_guard<std::mutex> lock(mutex_);
    take_place(options);
    if (place_.topology.world_size == 1) return World::single();
    if (launcher_ != nullptr && launcher_->all_ended()) {
      fail<DistributedError>(kWhere, "the other ranks, which this process started, have ended.");
    }
    if (meeting_ == nullptr) meeting_ = std::make_unique<detail::Meeting>(place_, options.timeout);
    if (!std::exchange(announced_, true) && place_.topology.rank == 0) announce(log);
    // Counted before it can fail, so that all ranks count alike.
    const auto prefix = "fulmen/" + place_.job_id + "/" + std::to_string(worlds_++);
    const auto published = meeting_->take_port_file();  // Removed when all have come, or in vain.
    return World::join(place_.topology,
                       meeting_->store(),
                       {.timeout = options.timeout,
                        .listen_address = meeting_->listen_address(place_),
                        .key_prefix = prefix,
                        .debug_collectives = options.debug_collectives,
                        .accelerator = options.accelerator});
  }

  void prepare_launch(const JobOptions& options) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (launcher_ != nullptr) {
      fail<ConfigError>("launch",
                        "this process has started its ranks already. Call launch once, and first.");
    }
    take_place(options);
  }

  bool is_started_by_us() const {
    return place_.method == LaunchMethod::kSelf && launcher_ == nullptr;
  }
  int finish(int own_code) { return launcher_ == nullptr ? own_code : launcher_->finish(own_code); }

 private:
  void take_place(const JobOptions& options) {
    check_options(options);
    if (placed_) return check_ranks(place_, options);
    if (auto found = detect_job(process_environment())) {
      check_ranks(*found, options);
      complete(*found, options);
      place_ = *found;
    } else if (options.devices * options.num_nodes > 1) {
      check_may_start(options);
      start_ranks(static_cast<int>(options.devices), options.timeout);
    }
    placed_ = true;
    const auto& topology = place_.topology;
    if (topology.world_size > 1 && std::getenv("OMP_NUM_THREADS") == nullptr)
      at::set_num_threads(std::max(1, usable_cores() / topology.local_world_size));
  }

  void start_ranks(int ranks, std::chrono::milliseconds timeout) {
    JobPlace place{.method = LaunchMethod::kSelf,
                   .topology = {.world_size = ranks, .local_world_size = ranks},
                   .master_addr = "127.0.0.1",
                   .job_id = random_id()};
    auto meeting = std::make_unique<detail::Meeting>(place, timeout);
    place.master_port = meeting->port();
    std::vector<detail::ChildRank> children;
    for (int rank = 1; rank < ranks; ++rank) {
      children.push_back({.rank = rank,
                          .variables = {{"RANK", std::to_string(rank)},
                                        {"LOCAL_RANK", std::to_string(rank)},
                                        {"WORLD_SIZE", std::to_string(ranks)},
                                        {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
                                        {"GROUP_RANK", "0"},
                                        {"MASTER_ADDR", place.master_addr},
                                        {"MASTER_PORT", std::to_string(place.master_port)},
                                        {"FULMEN_LAUNCHED", place.job_id}}});
    }
    launcher_ = std::make_unique<detail::Launcher>(children);
    owner_ = ::getpid();
    ::on_exit(&Job::leave, this);
    meeting_ = std::move(meeting);
    place_ = std::move(place);
  }

  /// At the exit of the first process: its ranks end too, and their failure is the job's.
  static void leave(int status, void* self) {
    auto* job = static_cast<Job*>(self);
    if (::getpid() != job->owner_) return;  // A copy made by fork.
    // The signal is on another thread and ends this process in a moment.
    for (int i = 0; i < 500 && detail::SignalRelay::is_active(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::cout.flush();
    std::fflush(nullptr);
    const int code = job->finish(status & 0xff);
    job->launcher_.reset();
    if (code != (status & 0xff)) ::_exit(code);
  }

  void announce(Log& log) const {
    const int threads = at::get_num_threads();
    log.info("Job: ",
             place_.topology.world_size,
             " ranks by ",
             to_string(place_.method),
             ", this is rank 0, rendezvous ",
             meeting_->address(),
             ", ",
             threads,
             threads == 1 ? " thread each." : " threads each.");
  }

  std::mutex mutex_;
  bool placed_ = false;
  JobPlace place_;
  std::unique_ptr<detail::Meeting> meeting_;
  std::unique_ptr<detail::Launcher> launcher_;  // In the first process of a self-launch.
  pid_t owner_ = 0;
  bool announced_ = false;
  int worlds_ = 0;
};

}  // namespace

std::shared_ptr<World> join_job(const JobOptions& options, Log& log) {
  return Job::instance().join(options, log);
}

int launch(int ranks, const std::function<int()>& body) {
  auto& job = Job::instance();
  job.prepare_launch({.devices = ranks});
  int code = 1;
  try {
    code = body();
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
  }
  if (job.is_started_by_us()) std::exit(code);
  return job.finish(code);
}

}  // namespace fulmen
