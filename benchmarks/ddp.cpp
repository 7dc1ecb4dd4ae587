// What reducing gradients costs: Fulmen's GradientReducer beside c10d::Reducer, on the same groups.
//
//   OMP_NUM_THREADS=1 build/release/benchmarks/ddp [--rounds 60]
//
// Two ranks on this host, one thread each; 8 layers of 1024 x 1024 (8.4 million parameters), 32
// samples a rank. A round is one step of each kind, one after the other, in turns:
//   fulmen    GradientReducer, mesh data=2
//   c10d      c10d::Reducer, gradients as views of its buckets, with its buckets of 25 MiB
//   c10d-4    the same with buckets of 4 MiB, about as many as fulmen makes of this model
//   alone     no communication
//   shared    GradientReducer, all weights shared over a mesh data=1,model=2 (the same bytes)
// Printed are medians over rounds of ratios within a round, with the quartiles, and the collectives
// of a step of each kind. The exit code is 1 if fulmen's gradients are not those of c10d, or those
// of shared weights not their sum over the ranks.

#include <fulmen/fulmen.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <numeric>
#include <random>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace {

using Clock = std::chrono::steady_clock;
using fulmen::GradSync;

constexpr std::int64_t kLayers = 8;
constexpr std::int64_t kWidth = 1024;
constexpr std::int64_t kBatch = 32;

/// The model of one kind of step; all kinds have the same weights and inputs.
torch::nn::Sequential make_model() {
  torch::manual_seed(1);
  torch::nn::Sequential net;
  for (std::int64_t i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(kWidth, kWidth));
    net->push_back(torch::nn::ReLU());
  }
  return net;
}

struct Kind {
  std::string name;
  std::function<void()> step;
  std::function<void()> prepare = [] {};  ///< Before its clock starts.
  std::vector<double> seconds = {};
  fulmen::CommCounters::Count sent = {};
};

at::Tensor forward(torch::nn::Sequential& net, const at::Tensor& input) {
  return net->forward(input).square().mean();
}

class Ours {
 public:
  Ours(const fulmen::DeviceMesh& mesh, const char* shared_over)
      : net_(make_model()),
        placed_([&] {
          if (shared_over != nullptr) fulmen::mark_as_shared(*net_, shared_over);
          return fulmen::PlacedParameters(*net_, mesh);
        }()),
        reducer_(placed_) {}

  void step(const at::Tensor& input) {
    auto loss = forward(net_, input);
    reducer_.start_backward(GradSync::kNow);
    loss.backward(torch::full({}, reducer_.loss_scale()));
    reducer_.end_backward();
    fulmen::WindowVote vote;
    vote.weight.number = 1;
    vote.has_loss = true;
    reducer_.finish(vote);
  }
  torch::nn::Sequential& net() { return net_; }

 private:
  torch::nn::Sequential net_;
  fulmen::PlacedParameters placed_;
  fulmen::GradientReducer reducer_;
};

class Yardstick {
 public:
  Yardstick(c10d::ProcessGroup& group, std::int64_t bucket_cap) : net_(make_model()) {
    constexpr std::int64_t kFirst = 1 << 20;
    const auto parameters = net_->parameters();
    const std::vector<bool> sparse(parameters.size(), false);
    auto buckets =
        std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, {SIZE_MAX}, sparse));
    std::reverse(buckets.begin(), buckets.end());
    std::unordered_map<std::size_t, std::string> names;
    std::size_t index = 0;
    for (const auto& item : net_->named_parameters()) names[index++] = item.key();
    reducer_ = std::make_shared<c10d::Reducer>(
        parameters,
        buckets,
        c10::intrusive_ptr<c10d::ProcessGroup>::unsafe_reclaim_from_nonowning(&group),
        sparse,
        bucket_cap,
        /*find_unused_parameters=*/false,
        /*gradient_as_bucket_view=*/true,
        names,
        kFirst,
        false,
        false,
        std::vector<std::int64_t>{});
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
    logger_->set_construction_data_and_log("ddp", {}, -1, false, false, false);
  }

  void step(const at::Tensor& input) {
    logger_->set_runtime_stats_and_log();
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();
    auto loss = forward(net_, input);
    reducer_->prepare_for_backward({});
    loss.backward();
  }
  torch::nn::Sequential& net() { return net_; }

 private:
  torch::nn::Sequential net_;
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
};

struct Quartiles {
  double low, median, high;
};

Quartiles ratio(const Kind& a, const Kind& b) {
  std::vector<double> values;
  for (std::size_t i = 0; i < a.seconds.size(); ++i) values.push_back(a.seconds[i] / b.seconds[i]);
  std::sort(values.begin(), values.end());
  const auto at = [&](double part) {
    return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1))];
  };
  return {at(0.25), at(0.5), at(0.75)};
}

double median_ms(const Kind& kind) {
  auto values = kind.seconds;
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return 1e3 * values[values.size() / 2];
}

void print(const char* what, const Kind& a, const Kind& b) {
  const auto q = ratio(a, b);
  std::printf("%-28s %.3f  (quartiles %.3f to %.3f)\n", what, q.median, q.low, q.high);
}

double largest_difference(torch::nn::Sequential& a, torch::nn::Sequential& b, double factor) {
  double largest = 0;
  const auto of_a = a->parameters();
  const auto of_b = b->parameters();
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    const auto difference = of_a[i].grad() - of_b[i].grad() * factor;
    largest = std::max(largest, difference.abs().max().item<double>());
  }
  return largest;
}

int run(int rounds) {
  fulmen::Log log;
  at::set_num_threads(1);
  const auto world = fulmen::join_job({.devices = 2}, log);
  const fulmen::DeviceMesh data({{.name = "data", .size = 2}}, world);
  const fulmen::DeviceMesh model({{.name = "data", .size = 1}, {.name = "model", .size = 2}},
                                 world);
  Ours ours(data, nullptr);
  Yardstick yardstick(world->all().c10d(), 25 << 20);
  Yardstick small_buckets(world->all().c10d(), 4 << 20);
  auto alone_net = make_model();
  Ours shared(model, "model");

  torch::manual_seed(7 + world->rank());
  const auto input = torch::randn({kBatch, kWidth});
  std::vector<Kind> kinds = {{.name = "fulmen",
                              .step = [&] { ours.step(input); },
                              .prepare = [&] { ours.net()->zero_grad(); }},
                             {.name = "c10d",
                              .step = [&] { yardstick.step(input); },
                              .prepare = [&] { yardstick.net()->zero_grad(); }},
                             {.name = "c10d-4",
                              .step = [&] { small_buckets.step(input); },
                              .prepare = [&] { small_buckets.net()->zero_grad(); }},
                             {.name = "alone",
                              .step = [&] { forward(alone_net, input).backward(); },
                              .prepare = [&] { alone_net->zero_grad(); }},
                             {.name = "shared",
                              .step = [&] { shared.step(input); },
                              .prepare = [&] { shared.net()->zero_grad(); }}};
  std::vector<std::size_t> turns(kinds.size());
  std::iota(turns.begin(), turns.end(), std::size_t{0});
  std::mt19937 random(1);
  constexpr int kWarmUp = 5;
  for (int round = -kWarmUp; round < rounds; ++round) {
    // In another order each time, equal on both ranks, so that none always follows the same one.
    std::shuffle(turns.begin(), turns.end(), random);
    for (const auto i : turns) {
      auto& kind = kinds[i];
      kind.prepare();
      fulmen::barrier("round", world->all());
      world->counters().reset();
      const auto start = Clock::now();
      kind.step();
      const std::chrono::duration<double> took = Clock::now() - start;
      kind.sent = world->counters().total();
      if (round >= 0) kind.seconds.push_back(took.count());
    }
  }

  const auto difference = largest_difference(ours.net(), yardstick.net(), 1);
  // The same samples as parts of one: their sum, not their mean.
  const auto shared_difference = largest_difference(shared.net(), ours.net(), 2);
  if (world->rank() == 0) {
    for (const auto& kind : kinds) {
      std::printf("%-8s %7.2f ms, %lld collectives of %.2f MB in a step\n",
                  kind.name.c_str(),
                  median_ms(kind),
                  static_cast<long long>(kind.sent.calls),
                  static_cast<double>(kind.sent.bytes) / 1e6);
    }
    std::puts("(c10d's own collectives are not counted.)");
    print("fulmen / c10d", kinds[0], kinds[1]);
    print("fulmen / c10d-4", kinds[0], kinds[2]);
    print("fulmen / alone", kinds[0], kinds[3]);
    print("shared / fulmen", kinds[4], kinds[0]);
    std::printf("largest difference of a gradient: from c10d's %g, of shared from twice %g\n",
                difference,
                shared_difference);
  }
  // Sums of two halves in the same order: the same bits but for the moment of halving.
  return difference <= 1e-9 && shared_difference <= 1e-9 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int rounds = 60;
  CLI::App app("Gradient reduction of two ranks, beside c10d::Reducer.");
  app.add_option("--rounds", rounds, "Rounds that are measured")->check(CLI::Range(1, 100000));
  CLI11_PARSE(app, argc, argv);
  return fulmen::launch(2, [&] { return run(rounds); });
}
