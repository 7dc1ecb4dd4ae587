// How long a job takes to start: from the start of its first process to the end of its first step,
// and to its first barrier for more and more ranks.
//
//   OMP_NUM_THREADS=1 build/release/benchmarks/start [--rounds 5] [--ranks 2,4,...]
//
// With FULMEN_TORCHRUN=<path of a torchrun with a full torch> the same in Python with DDP, started
// by torchrun, takes turns with it (benchmarks/start_torchrun.py).
#include <fulmen/fulmen.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace fulmen;

/// Seconds of the clock that all processes of this host, also Python's, have in common.
double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void report() {
  std::printf("reached %.6f\n", now());
  std::fflush(stdout);
}

class Mlp final : public LightningModule<> {
 public:
  StepOutput training_step(Batch& batch, std::int64_t) override {
    auto [x, y] = batch.unpack<2>();
    return torch::cross_entropy_loss(net_->forward(x), y);
  }
  void on_train_batch_end(const StepOutput&, Batch&, std::int64_t) override {
    if (trainer().strategy().topology().rank == 0) report();
  }
  OptimizerConfigs configure_optimizers() override { return SGD::make(*this, {.lr = 0.1}); }

 private:
  torch::nn::Sequential net_ =
      register_module("net",
                      torch::nn::Sequential(
                          torch::nn::Linear(64, 64), torch::nn::ReLU(), torch::nn::Linear(64, 10)));
};

int run_first_step(int ranks) {
  auto data = tensor_dataset({torch::randn({64, 64}), torch::randint(10, {64})});
  Trainer trainer({.strategy = DdpStrategy::make(),
                   .devices = ranks,
                   .loggers = std::vector<std::shared_ptr<Logger>>(),
                   .enable_checkpointing = false,
                   .enable_progress_bar = false,
                   .enable_model_summary = false,
                   .max_steps = 1});
  trainer.fit(std::make_shared<Mlp>(), DataLoader(data, {.batch_size = 32}));
  return 0;
}

int run_barrier(int ranks) {
  return launch(ranks, [ranks] {
    Log log;
    const auto world = join_job({.devices = ranks}, log);
    barrier("first", world->all());
    if (world->rank() == 0) report();
    return 0;
  });
}

/// Seconds from here to what the program reports. Ends this process if it does not.
double measure(const std::string& command) {
  const double start = now();
  FILE* output = popen(("timeout 300 " + command + " 2>&1").c_str(), "r");
  std::string text;
  char buffer[4096];
  while (output != nullptr && std::fgets(buffer, sizeof buffer, output) != nullptr) text += buffer;
  const int status = output != nullptr ? pclose(output) : -1;
  const auto place = text.rfind("reached ");
  if (status == 0 && place != text.npos) return std::stod(text.substr(place + 8)) - start;
  std::cerr << "error: " << command << " failed:\n" << text;
  std::exit(1);
}

struct Series {
  std::string name;
  std::string command;
  std::vector<double> seconds = {};
  double median() const {
    auto sorted = seconds;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }
};

void run_alternating(std::vector<Series>& list, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    for (auto& series : list) series.seconds.push_back(measure(series.command));
  }
}

void print(const Series& series, const Series& reference) {
  const auto [least, most] = std::ranges::minmax(series.seconds);
  std::printf("%-34s %7.3f s (%.3f to %.3f)  %6.2f x %s\n",
              series.name.c_str(),
              series.median(),
              least,
              most,
              series.median() / reference.median(),
              reference.name.c_str());
}

int compare(const std::string& self, int rounds, const std::vector<int>& ranks) {
  const auto build = std::filesystem::path(self).parent_path().parent_path();
  std::vector<Series> steps{{"self-launch, 2 ranks", self + " --role step --devices 2"},
                            {"fulmen-run, 2 ranks",
                             (build / "tools/run/fulmen-run").string() + " --nproc-per-node 2 " +
                                 self + " --role step --devices 2"}};
  if (const char* torchrun = std::getenv("FULMEN_TORCHRUN")) {
    const auto script = std::filesystem::path(FULMEN_SOURCE_DIR) / "benchmarks/start_torchrun.py";
    steps.push_back({"torchrun, Python, 2 ranks",
                     std::string(torchrun) + " --nproc-per-node 2 " + script.string()});
  }
  std::printf("To the end of the first step, %d rounds:\n", rounds);
  run_alternating(steps, rounds);
  for (const auto& series : steps) print(series, steps.front());
  std::vector<Series> barriers;
  for (const auto n : ranks) {
    barriers.push_back({"self-launch, " + std::to_string(n) + " ranks",
                        self + " --role barrier --devices " + std::to_string(n)});
  }
  const int few = std::max(1, rounds / 2);
  std::printf("To the first barrier, %d rounds:\n", few);
  run_alternating(barriers, few);
  for (const auto& series : barriers) print(series, barriers.front());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("How long a job takes to start.");
  int rounds = 5;
  int devices = 2;
  std::string role;
  std::vector<int> ranks{2, 4, 8, 16, 32, 64};
  app.add_option("--rounds", rounds, "of each program")->check(CLI::PositiveNumber);
  app.add_option("--ranks", ranks, "of jobs that only meet")->delimiter(',');
  app.add_option("--role", role, "what a rank does: for the program itself");
  app.add_option("--devices", devices, "ranks of a role");
  CLI11_PARSE(app, argc, argv);
  if (role == "step") return run_first_step(devices);
  if (role == "barrier") return run_barrier(devices);
  return compare(std::filesystem::canonical("/proc/self/exe").string(), rounds, ranks);
}
