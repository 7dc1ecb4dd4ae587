#include "fulmen/testing/strategy_conformance.h"

#include <torch/torch.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "testing/conformance_run.h"

namespace fulmen {
namespace {

using detail::ConformanceCase;
using detail::ConformanceResult;

/// Collects what is wrong, a sentence each.
class Findings {
 public:
  explicit Findings(const StrategyUnderTest& strategy) : strategy_(strategy) {}

  void expect(bool good, const std::string& promise, const std::string& detail = "") {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!good) list_.push_back(promise + (detail.empty() ? "." : ": " + detail + "."));
  }
  /// Trains on ranks and alone, and compares.
  void expect_equal(const std::string& promise, const ConformanceCase& what) {
    const auto expected = detail::run_alone(what);
    expect(expected.error.empty(), promise, "one process failed: " + expected.error);
    int rank = 0;
    for (const auto& result : detail::run_case(strategy_, what)) {
      const auto text = detail::difference(result, expected, strategy_.tolerance);
      expect(text.empty(), promise, "on rank " + std::to_string(rank++) + " " + text);
      expect(std::abs(result.val_loss - expected.val_loss) <= strategy_.tolerance,
             promise,
             "val_loss is " + std::to_string(result.val_loss) + ", not " +
                 std::to_string(expected.val_loss));
    }
  }
  const StrategyUnderTest& strategy() const { return strategy_; }
  std::vector<std::string> take() { return std::move(list_); }

 private:
  const StrategyUnderTest& strategy_;
  std::mutex mutex_;
  std::vector<std::string> list_;
};

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "fulmen-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path path_;
};

void check_environment(Findings& findings) {
  const int ranks = findings.strategy().ranks;
  run_thread_ranks(ranks, [&](const std::shared_ptr<World>& world) {
    const auto strategy = detail::make_joined(findings.strategy(), world);
    findings.expect(strategy->mesh().size() == ranks, "The mesh has all ranks");
    findings.expect(strategy->topology().rank == world->rank(), "topology() names this rank");
    const auto keys = all_gather_object(boost::json::string(strategy->key()), world->all());
    for (const auto& key : keys) {
      findings.expect(!key.as_string().empty() && key == keys.front(),
                      "key() is a text that is the same on all ranks");
    }
    const auto mine = at::scalar_tensor(world->rank() + 1.0, at::kDouble);
    const double n = ranks;
    const auto reduced = [&](ReduceOp op) { return strategy->reduce(mine, op).item<double>(); };
    findings.expect(reduced(ReduceOp::kSum) == n * (n + 1) / 2, "reduce() gives the sum");
    findings.expect(reduced(ReduceOp::kMean) == (n + 1) / 2, "reduce() gives the mean");
    findings.expect(reduced(ReduceOp::kMin) == 1, "reduce() gives the least");
    findings.expect(reduced(ReduceOp::kMax) == n, "reduce() gives the greatest");
    strategy->barrier("conformance");
    strategy->teardown();
  });
}

void check_context(Findings& findings) {
  std::atomic<int> sums = 0;
  ConformanceCase what;
  what.probe.in_hook = [&](const DeviceMesh& mesh) {
    auto one = at::ones({}, at::kDouble);
    all_reduce(one, ReduceOp::kSum, mesh.world()->all());
    if (one.item<double>() == mesh.size()) ++sums;
  };
  for (const auto& result : detail::run_case(findings.strategy(), what))
    findings.expect(result.error.empty(), "configure_sharded_model() runs", result.error);
  findings.expect(sums == findings.strategy().ranks,
                  "Collectives on the mesh work inside configure_sharded_model()");

  const int last = findings.strategy().ranks - 1;
  what.probe.in_hook = [&](const DeviceMesh& mesh) {
    if (mesh.world()->rank() == last) throw std::runtime_error("no room for the layer");
    auto one = at::ones({}, at::kDouble);
    all_reduce(one, ReduceOp::kSum, mesh.world()->all());
  };
  const auto results = detail::run_case(findings.strategy(), what);
  for (const auto& result : results) {
    findings.expect(!result.error.empty(),
                    "An exception in configure_sharded_model() on one rank ends all");
  }
  findings.expect(results.back().error.find("no room for the layer") != std::string::npos,
                  "The exception of configure_sharded_model() is fit's",
                  results.back().error);
  findings.expect(!in_sharded_context(), "The context is left when the hook throws");
}

void check_numbers(Findings& findings) {
  findings.expect_equal("Training equals one process", {});
  findings.expect_equal("Accumulation with a tail equals one process",
                        {.trainer = {.accumulate_grad_batches = 3}});
  findings.expect_equal("Clipping the norm equals one process",
                        {.trainer = {.gradient_clip_val = 0.1}});
  findings.expect_equal(
      "Clipping values equals one process",
      {.trainer = {.gradient_clip_val = 0.05, .gradient_clip_algorithm = ClipAlgorithm::kValue}});
  findings.expect_equal("An epoch whose last samples are fewer than ranks equals one process",
                        {.samples = 37});
  findings.expect_equal("The same with accumulation equals one process",
                        {.trainer = {.accumulate_grad_batches = 2}, .samples = 37});
}

void check_decisions(Findings& findings) {
  const int last = findings.strategy().ranks - 1;
  ConformanceCase skipping{
      .trainer = {.max_epochs = 1, .nonfinite_loss = NonFiniteLoss::kSkipStep}};
  skipping.probe.loss = [last](const at::Tensor& loss, std::int64_t batch_idx, int rank) {
    const bool bad = batch_idx == 1 && rank == last;
    return bad ? loss * std::numeric_limits<double>::quiet_NaN() : loss;
  };
  for (const auto& result : detail::run_case(findings.strategy(), skipping)) {
    findings.expect(result.error.empty(), "A loss that is not finite is skipped", result.error);
    findings.expect(result.progress.global_step == 3 && result.progress.skipped_steps == 1,
                    "A loss that is not finite on one rank skips the step on all");
  }

  std::atomic<bool> stop = false;
  ConformanceCase stopping{.trainer = {.max_epochs = 50}};
  std::mutex mutex;
  std::vector<std::int64_t> steps;
  run_thread_ranks(findings.strategy().ranks, [&](const std::shared_ptr<World>& world) {
    auto options = detail::quiet(stopping.trainer);
    options.devices = findings.strategy().ranks;
    options.strategy = findings.strategy().make(world);
    Trainer trainer(options);
    detail::ConformanceProbe probe;
    probe.at_batch_end = [&](std::int64_t batch_idx, int rank) {
      if (batch_idx == 2 && rank == last && !stop.exchange(true)) trainer.request_stop("enough");
    };
    const auto module = std::make_shared<detail::ConformanceModule>(probe);
    const auto result = trainer.fit(module, detail::conformance_data(48, 3));
    const std::lock_guard<std::mutex> lock(mutex);
    steps.push_back(trainer.progress().global_step);
    findings.expect(result.status == RunStatus::kInterrupted,
                    "A request to stop on one rank stops all");
  });
  for (const auto count : steps)
    findings.expect(count == steps.front(), "All ranks stop at the same step");
}

void check_resume(Findings& findings) {
  const Folder folder;
  const auto checkpoint = folder.path_ / "checkpoint";
  const auto whole = detail::run_case(findings.strategy(), {.trainer = {.max_epochs = 4}});
  run_thread_ranks(findings.strategy().ranks, [&](const std::shared_ptr<World>& world) {
    auto options = detail::quiet({.max_epochs = 2});
    options.devices = findings.strategy().ranks;
    options.strategy = detail::make_joined(findings.strategy(), world);
    Trainer trainer(options);
    const auto module = std::make_shared<detail::ConformanceModule>(detail::ConformanceProbe());
    const auto batch = 12 / options.strategy->mesh().data_size();
    trainer.fit(module, detail::conformance_data(48, batch), detail::conformance_data(20, 3));
    trainer.save_checkpoint(checkpoint);
    // The same module again, and then one that belongs to nobody.
    trainer.validate(module, detail::conformance_data(20, 3), {.verbose = false});
    findings.expect(module->configured == 1,
                    "A module is configured once for the same strategy and mesh");
    Trainer other(detail::quiet({}));
    try {
      other.validate(module, detail::conformance_data(20, 3), {.verbose = false});
      findings.expect(options.strategy->key() == "single_device",
                      "A module that is configured for another strategy is refused");
    } catch (const ConfigError& error) {
      findings.expect(std::string(error.what()).find(options.strategy->key()) != std::string::npos,
                      "The refusal names the strategy that the module is configured for",
                      error.what());
    }
  });
  const auto rest =
      detail::run_case(findings.strategy(),
                       {.trainer = {.max_epochs = 4}, .fit = {.checkpoint = checkpoint.string()}});
  for (std::size_t rank = 0; rank < rest.size(); ++rank) {
    auto expected = whole[rank];
    if (expected.gradients.size() == 16)
      expected.gradients.erase(expected.gradients.begin(), expected.gradients.begin() + 8);
    const auto text = detail::difference(rest[rank], expected, 0);
    findings.expect(text.empty(), "A resumed run is the unbroken one bit for bit", text);
  }
}

void check_errors(Findings& findings) {
  const int last = findings.strategy().ranks - 1;
  ConformanceCase what;
  what.probe.loss = [last](const at::Tensor& loss, std::int64_t batch_idx, int rank) {
    if (batch_idx == 2 && rank == last) throw std::runtime_error("the simulator fell over");
    return loss;
  };
  const auto results = detail::run_case(findings.strategy(), what);
  for (const auto& result : results)
    findings.expect(!result.error.empty(), "An error on one rank ends all");
  findings.expect(results.back().error.find("the simulator fell over") != std::string::npos,
                  "The rank that failed throws its own error",
                  results.back().error);
}

}  // namespace

std::vector<std::string> check_strategy(const StrategyUnderTest& strategy) {
  Findings findings(strategy);
  using Check = void (*)(Findings&);
  for (const auto& [name, check] :
       std::initializer_list<std::pair<const char*, Check>>{{"environment", check_environment},
                                                            {"context", check_context},
                                                            {"numbers", check_numbers},
                                                            {"decisions", check_decisions},
                                                            {"resume", check_resume},
                                                            {"errors", check_errors}}) {
    try {
      check(findings);
    } catch (const std::exception& error) {
      findings.expect(false, "The check of " + std::string(name) + " ran to its end", error.what());
    }
  }
  return findings.take();
}

}  // namespace fulmen
