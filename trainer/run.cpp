#include <torch/torch.h>

#include <csignal>

#include "fulmen/callbacks/results_table.h"
#include "fulmen/core/support/error.h"
#include "loops/evaluation_loop.h"
#include "loops/fit_loop.h"
#include "loops/predict_loop.h"
#include "run_state.h"
#include "session.h"
#include "signals.h"
#include "slurm_requeue.h"

namespace fulmen::detail {
namespace {

/// Process-wide switches that a run sets, put back at its end.
class GlobalSwitches {
 public:
  explicit GlobalSwitches(const TrainerOptions& options)
      : deterministic_(at::globalContext().deterministicAlgorithms()),
        warn_only_(at::globalContext().deterministicAlgorithmsWarnOnly()),
        benchmark_(at::globalContext().benchmarkCuDNN()) {
    if (options.deterministic != Deterministic::kUnset) {
      at::globalContext().setDeterministicAlgorithms(options.deterministic != Deterministic::kNo,
                                                     options.deterministic == Deterministic::kWarn);
    }
    if (options.benchmark) at::globalContext().setBenchmarkCuDNN(*options.benchmark);
    if (options.detect_anomaly) anomaly_ = std::make_unique<torch::autograd::DetectAnomalyGuard>();
  }
  ~GlobalSwitches() {
    at::globalContext().setDeterministicAlgorithms(deterministic_, warn_only_);
    at::globalContext().setBenchmarkCuDNN(benchmark_);
  }
  GlobalSwitches(const GlobalSwitches&) = delete;
  GlobalSwitches& operator=(const GlobalSwitches&) = delete;

 private:
  bool deterministic_;
  bool warn_only_;
  bool benchmark_;
  std::unique_ptr<torch::autograd::DetectAnomalyGuard> anomaly_;
};

template <class Action>
class Finally {
 public:
  explicit Finally(Action action) : action_(std::move(action)) {}
  ~Finally() { action_(); }
  Finally(const Finally&) = delete;
  Finally& operator=(const Finally&) = delete;

 private:
  Action action_;
};

}  // namespace

template <class Action>
void Session::attempt(const char* what, const Action& action) noexcept {
  try {
    action();
  } catch (const std::exception& error) {
    log_failure(what, error.what());
  } catch (...) {
    log_failure(what, "an exception that is not a std::exception");
  }
}

void Session::log_failure(const char* what, const char* text) noexcept {
  try {
    log_.error("Trainer: ", what, " failed as well: ", text);
  } catch (...) {
    // The sink itself throws: there is nobody left to tell, and the first error is on its way.
  }
}

template <class Body>
void Session::run(Stage stage,
                  std::shared_ptr<ModuleBase> given,
                  RunSources given_sources,
                  const FitOptions& from,
                  const Body& body) {
  if (running_)
    fail<ConfigError>("Trainer", "a run is going on already; a trainer runs one at a time.");
  if (given == nullptr) fail<ConfigError>("Trainer", to_string(stage), " got a null module.");
  if (given->has_trainer()) {
    fail<ConfigError>("Trainer",
                      given->name(),
                      " is in a run of another trainer. Wait for its end, or use a copy.");
  }
  module = std::move(given);
  sources = std::move(given_sources);
  stage_ = stage;
  running_ = true;
  stop_requested_ = false;
  interruption_text_.clear();
  wanted_stop_.clear();
  failed_ = false;
  std::unique_ptr<SignalGuard> signals;
  const auto slurm_job = slurm_batch_job(process_environment());
  if (options.signals == SignalHandling::kSaveAndStop) {
    std::vector<int> numbers{SIGINT, SIGTERM};
    if (!slurm_job.empty()) numbers.push_back(SIGUSR1);
    signals = std::make_unique<SignalGuard>(std::move(numbers));
  }
  GlobalSwitches switches(options);
  // For the whole run: the default dtype is one for all threads, those that read data among them.
  std::optional<DefaultDtypeGuard> dtype;
  if (parameter_dtype(options.precision) != at::kFloat) dtype.emplace(options.precision);
  bool interrupted = false;
  bool requeues = false;
  int signal = 0;
  try {
    connect(stage);
    prepare(stage);
    if (!from.checkpoint.empty()) restored_from_ = find_checkpoint(from.checkpoint, from.missing);
    if (!restored_from_.empty()) restore(*this, restored_from_, from.restore);
    body();
    agree_on_wishes();
    const char* reason = interruption();
    interrupted = reason != nullptr;
    if (interrupted) {
      interrupt(reason);
      requeues = any_rank(SignalGuard::received() == SIGUSR1 ? Answer::kYes : Answer::kNo);
      signal = signal_of_any_rank();
    }
    end(reason != nullptr ? RunStatus::kInterrupted : RunStatus::kFinished);
  } catch (const std::exception& error) {
    abandon(error);
    throw;
  } catch (...) {
    abandon(Error("an exception that is not a std::exception"));
    throw;
  }
  if (requeues && topology_.rank == 0) {
    requeue_slurm_job(slurm_job);
    log_.info("Trainer: SLURM has put job ", slurm_job, " back into its queue.");
  }
  if (signals) signals->deliver(signal);
  if (interrupted && stage != Stage::kFit) {
    fail<Interrupted>("Trainer",
                      to_string(stage),
                      " was stopped before its end (",
                      interruption_text_,
                      "), so there are no results.");
  }
}

FitResult Session::fit(std::shared_ptr<ModuleBase> given,
                       RunSources given_sources,
                       const FitOptions& fit_options) {
  FitResult result;
  run(Stage::kFit, std::move(given), std::move(given_sources), fit_options, [&] {
    fit_loop = std::make_unique<FitLoop>(*this);
    call(HookPoint::kOnFitStart, &Callback::on_fit_start, &ModuleBase::on_fit_start);
    for (const auto& logger : loggers_) logger->log_hyperparameters(module->hyperparameters);
    if (const char* reason = fit_loop->run()) {
      result = {.status = RunStatus::kInterrupted, .stop_reason = reason};
      return;
    }
    result.stop_reason = state.stop_reason;
    finished_position = capture_position(*this);
    finished_module = module;
    fit_loop.reset();
    strategy_->teardown();
    call(HookPoint::kOnFitEnd, &Callback::on_fit_end, &ModuleBase::on_fit_end);
  });
  return result;
}

EvalResults Session::evaluate(Stage stage,
                              std::shared_ptr<ModuleBase> given,
                              RunSources given_sources,
                              const EvalOptions& eval_options) {
  EvalResults results;
  run(stage,
      std::move(given),
      std::move(given_sources),
      {.checkpoint = eval_options.checkpoint, .restore = Restore::kWeights},
      [&] {
        EvaluationLoop(*this, eval_sources(stage), stage).run();
        results = metrics.dataloader_results(stage == Stage::kTest ? MetricPhase::kTest
                                                                   : MetricPhase::kValidate);
        strategy_->teardown();
      });
  if (eval_options.verbose && topology_.rank == 0) print_results(stage, results);
  return results;
}

std::vector<AnyBatch> Session::predict(std::shared_ptr<ModuleBase> given,
                                       RunSources given_sources,
                                       const EvalOptions& eval_options) {
  std::vector<AnyBatch> outputs;
  run(Stage::kPredict,
      std::move(given),
      std::move(given_sources),
      {.checkpoint = eval_options.checkpoint, .restore = Restore::kWeights},
      [&] {
        outputs = run_predict_loop(*this);
        strategy_->teardown();
      });
  return outputs;
}

void Session::interrupt(const char* reason) {
  log_.info("Trainer: the run stops: ", reason, ".");
  metrics.discard();
  set_hook(HookPoint::kOnInterrupt);
  // One that throws does not keep the others, which may save, from their turn.
  std::exception_ptr failure;
  for (const auto& callback : callbacks_) {
    try {
      callback->on_interrupt(*this, *module, reason);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void Session::abandon(const std::exception& error) noexcept {
  failed_ = true;
  if (!running_) return;  // Everything was torn down; a hook of the teardown threw.
  if (fit_loop != nullptr) {
    attempt("going back to the last boundary of a batch", [&] { fit_loop->roll_back(); });
  }
  attempt("the profiler", [&] { set_hook(HookPoint::kOnException); });
  for (const auto& callback : callbacks_) {
    attempt("on_exception of a callback", [&] { callback->on_exception(*this, *module, error); });
  }
  if (sources.data_module) {
    attempt("on_exception of the data module", [&] { sources.data_module->on_exception(error); });
  }
  attempt("the end of the run", [&] { end(RunStatus::kFailed); });
}

void Session::end(RunStatus status) {
  fit_loop.reset();
  restoring.reset();
  std::exception_ptr failure;
  // One that throws does not keep the others from their turn. The first error is the run's if the
  // run has none yet.
  const auto attempt_each = [&](const char* what, const auto& action) {
    if (status != RunStatus::kFinished || failure) return attempt(what, action);
    try {
      action();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  const auto finish = [&] {
    set_hook(HookPoint::kTeardown);
    if (!std::exchange(set_up_, false)) return;
    if (sources.data_module) {
      attempt_each("teardown of the data module", [&] { sources.data_module->teardown(stage_); });
    }
    for (const auto& callback : callbacks_) {
      attempt_each("teardown of a callback", [&] { callback->teardown(*this, *module, stage_); });
    }
    attempt_each("teardown of the module", [&] { module->teardown(stage_); });
  };
  const auto finalize = [&] {
    for (const auto& logger : loggers_) attempt_each("a logger", [&] { logger->finalize(status); });
  };
  const Finally detach([this] {
    metrics.set_hook(HookPoint::kOutside);
    if (sources.data_module) sources.data_module->attach(nullptr);
    module->attach(nullptr, nullptr);
    sources = {};
    running_ = false;
  });
  if (options.profiler) {
    attempt("the profiler", [&] {
      options.profiler->enter(HookPoint::kOutside);
      log_.info(options.profiler->describe());
    });
  }
  if (status == RunStatus::kFinished) {
    finish();
    finalize();
    if (failure) std::rethrow_exception(failure);
    return;
  }
  finalize();
  status == RunStatus::kFailed ? strategy_->abandon() : strategy_->teardown();
  finish();
}

}  // namespace fulmen::detail
