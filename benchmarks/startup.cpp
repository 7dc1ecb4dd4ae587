// From the start of a process to the end of its first optimizer step, and the memory that takes.
//
//   build/release/benchmarks/startup
//
// Counters: startup_seconds, median over 10 processes of the time from fork to the end of the first
// step of Trainer::fit (loading libtorch, making module, optimizer and trainer, one batch);
// peak_memory_mb, the largest resident set of such a process by then. Takes about 10 s.

#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <fulmen/fulmen.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;  // the same in all processes of the machine

constexpr const char* kChildFlag = "--first-step";
constexpr int kProcesses = 10;

/// What a child reports over its pipe.
struct Report {
  Clock::rep first_step_at;
  long peak_kilobytes;
};

class Mlp final : public fulmen::LightningModule<> {
 public:
  fulmen::StepOutput training_step(fulmen::Batch& batch, std::int64_t) override {
    auto [x, y] = batch.unpack<2>();
    return torch::cross_entropy_loss(net_->forward(x), y);
  }
  fulmen::OptimizerConfigs configure_optimizers() override { return fulmen::AdamW::make(*this); }

 private:
  torch::nn::Sequential net_ =
      register_module("net",
                      torch::nn::Sequential(
                          torch::nn::Linear(64, 64), torch::nn::ReLU(), torch::nn::Linear(64, 10)));
};

/// Reports the end of the first step to file descriptor 3.
class ReportFirstStep final : public fulmen::Callback {
 public:
  void on_train_batch_end(
      Context&, Module&, const fulmen::StepOutput&, fulmen::BatchView, std::int64_t) override {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const Report report{Clock::now().time_since_epoch().count(), usage.ru_maxrss};
    if (write(3, &report, sizeof report) != sizeof report)
      fulmen::fail<fulmen::Error>("startup", "cannot report.");
  }
};

int run_child() {
  auto data = fulmen::tensor_dataset({torch::randn({32, 64}), torch::randint(10, {32})});
  fulmen::Trainer trainer({.callbacks = {std::make_shared<ReportFirstStep>()},
                           .loggers = std::vector<std::shared_ptr<fulmen::Logger>>(),
                           .enable_checkpointing = false,
                           .enable_progress_bar = false,
                           .enable_model_summary = false,
                           .max_steps = 1});
  trainer.fit(std::make_shared<Mlp>(), fulmen::DataLoader(data, {.batch_size = 32}));
  return 0;
}

/// Starts this program anew and waits for its first step. False if it did not come.
bool run_process(double& seconds, double& peak_megabytes) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 3);
  char program[] = "/proc/self/exe";
  std::string flag = kChildFlag;
  char* arguments[] = {program, flag.data(), nullptr};
  const auto start = Clock::now().time_since_epoch().count();
  pid_t child = 0;
  const bool started = posix_spawn(&child, program, &actions, nullptr, arguments, environ) == 0;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  Report report{};
  const bool reported = started && read(ends[0], &report, sizeof report) == sizeof report;
  close(ends[0]);
  int status = 0;
  if (started) waitpid(child, &status, 0);
  seconds = std::chrono::duration<double>(Clock::duration(report.first_step_at - start)).count();
  peak_megabytes = static_cast<double>(report.peak_kilobytes) / 1024;
  return reported && status == 0;
}

void startup(benchmark::State& state) {
  std::vector<double> times;
  double peak = 0;
  for (auto _ : state) {
    double seconds = 0;
    double megabytes = 0;
    if (!run_process(seconds, megabytes)) {
      state.SkipWithError("the process ended before its first step");
      break;
    }
    state.SetIterationTime(seconds);
    times.push_back(seconds);
    peak = std::max(peak, megabytes);
  }
  if (times.empty()) return;
  std::sort(times.begin(), times.end());
  state.counters["startup_seconds"] = times[times.size() / 2];
  state.counters["peak_memory_mb"] = peak;
}
BENCHMARK(startup)->Iterations(kProcesses)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], kChildFlag) == 0) return run_child();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
