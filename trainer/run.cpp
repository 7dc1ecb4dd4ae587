#include <torch/torch.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "fulmen/callbacks/model_checkpoint.h"
#include "fulmen/callbacks/results_table.h"
#include "fulmen/callbacks/timer.h"
#include "fulmen/core/support/error.h"
#include "fulmen/strategies/single_device.h"
#include "loops/evaluation_loop.h"
#include "loops/fit_loop.h"
#include "loops/predict_loop.h"
#include "run_state.h"
#include "session.h"
#include "signals.h"

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

/// Module::to(dtype) would convert counters and indices too.
void convert_floating_point(torch::nn::Module& module, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const auto convert = [&](at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == dtype) return;
    tensor.set_data(tensor.to(dtype));
  };
  for (auto& parameter : module.parameters()) convert(parameter);
  for (auto& buffer : module.buffers()) convert(buffer);
}

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
void Session::run(Stage stage, std::shared_ptr<ModuleBase> given, RunSources given_sources, const std::string& checkpoint,
                  Restore what, const Body& body) {
  if (running_) fail<ConfigError>("Trainer", "a run is going on already; a trainer runs one at a time.");
  if (given == nullptr) fail<ConfigError>("Trainer", to_string(stage), " got a null module.");
  if (given->has_trainer()) {
    fail<ConfigError>("Trainer", given->name(), " is in a run of another trainer. Wait for its end, or use a copy.");
  }
  module = std::move(given);
  sources = std::move(given_sources);
  stage_ = stage;
  running_ = true;
  stop_requested_ = false;
  interruption_text_.clear();
  std::unique_ptr<SignalGuard> signals;
  if (options.signals == SignalHandling::kSaveAndStop) signals = std::make_unique<SignalGuard>();
  GlobalSwitches switches(options);
  // For the whole run: the default dtype is one for all threads, those that read data among them.
  std::optional<DefaultDtypeGuard> dtype;
  if (parameter_dtype(options.precision) != at::kFloat) dtype.emplace(options.precision);
  bool interrupted = false;
  try {
    connect(stage);
    prepare(stage);
    if (!checkpoint.empty()) {
      restored_from_ = find_checkpoint(checkpoint);
      const bool whole = restored_from_.extension() != ".safetensors" ||
                         (stage == Stage::kFit && what == Restore::kEverything);
      restore(*this, read_checkpoint(restored_from_, whole ? CheckpointParts::kEverything : CheckpointParts::kModelOnly),
              what, restored_from_.string());
    }
    body();
    const char* reason = interruption();
    interrupted = reason != nullptr;
    if (interrupted) interrupt(reason);
    end(reason != nullptr ? RunStatus::kInterrupted : RunStatus::kFinished);
  } catch (const std::exception& error) {
    abandon(error);
    throw;
  } catch (...) {
    abandon(Error("an exception that is not a std::exception"));
    throw;
  }
  if (signals) signals->deliver();
  if (interrupted && stage != Stage::kFit) {
    fail<Interrupted>("Trainer", to_string(stage), " was stopped before its end (", interruption_text_,
                      "), so there are no results.");
  }
}

void Session::connect(Stage stage) {
  state.stop_reason.clear();
  set_up_ = false;
  restored_from_.clear();
  restoring.reset();
  sanity_checking_ = false;
  metrics.begin_run();
  module->attach(this, this);
  if (stage == Stage::kFit) {
    // Nothing of an earlier fit is carried over.
    state = {};
    optimizers.clear();
    finished_position.reset();
    finished_module.reset();
    module->zero_grad();
  }
  if (sources.data_module) {
    sources.data_module->attach(module.get());
    if (sources.data_module->dispatch_batch_type() != module->dispatch_batch_type()) {
      fail<ConfigError>("Trainer", "the data module yields another batch type than ", module->name(), " takes.");
    }
  }
  connect_callbacks();
  if (stage == Stage::kFit) {
    for (const auto& callback : callbacks_) callback->reset();
  }
  strategy_ = options.strategy ? options.strategy : SingleDeviceStrategy::make();
  strategy_->setup_environment(*accelerator);
  make_plan(stage);
}

void Session::prepare(Stage stage) {
  if (stage == Stage::kFit && options.seed) seed_everything(*options.seed);
  loader_seed_ = options.seed.value_or(at::detail::getDefaultCPUGenerator().current_seed());
  if (sources.data_module) {
    set_hook(HookPoint::kPrepareData);
    sources.data_module->prepare_data();
  }
  hook(HookPoint::kPrepareData).prepare_data();
  set_up_ = true;
  set_hook(HookPoint::kSetup);
  if (sources.data_module) sources.data_module->setup(stage);
  call_callbacks(HookPoint::kSetup, &Callback::setup, stage);
  hook(HookPoint::kSetup).setup(stage);
  configure_sharded_model();
  // With float32 a module stays as it is, be it float64.
  const auto dtype = parameter_dtype(options.precision);
  if (dtype != at::kFloat) convert_floating_point(*module, dtype);
  strategy_->setup(*module, stage);
  parameters_.clear();
  std::set<at::TensorImpl*> seen;
  for (const auto& parameter : module->named_parameters()) {
    if (seen.insert(parameter.value().unsafeGetTensorImpl()).second) {
      parameters_.emplace_back(parameter.key(), parameter.value());
    }
  }
  if (stage == Stage::kFit) connect_optimizers();
}

void Session::configure_sharded_model() {
  constexpr std::string_view kHalfDone = "(its configure_sharded_model threw)";
  const auto key = strategy_->key();
  if (module->configured_for() == key) return;
  if (module->configured_for() == kHalfDone) {
    fail<ConfigError>("Trainer", module->name(), " is built in part only: its configure_sharded_model threw in an earlier ",
                      "run. Make a new module.");
  }
  if (!module->configured_for().empty()) {
    fail<ConfigError>("Trainer", module->name(), " is configured for the strategy \"", module->configured_for(),
                      "\" and cannot be used with \"", key, "\". Make a new module and load the weights into it.");
  }
  const auto context = strategy_->model_sharded_context(*module);
  module->set_configured_for(std::string(kHalfDone));
  hook(HookPoint::kConfigureShardedModel).configure_sharded_model();
  call_callbacks(HookPoint::kOnConfigureShardedModel, &Callback::on_configure_sharded_model);
  module->set_configured_for(key);
}

void Session::connect_optimizers() {
  optimizers = hook(HookPoint::kConfigureOptimizers).configure_optimizers().configs();
  if (optimizers.empty()) {
    log_.warning("Trainer: ", module->name(), " has no optimizer: configure_optimizers returned none, so nothing is updated.");
  }
  check_optimizers();
  std::map<at::TensorImpl*, std::string> names;
  for (const auto& [name, parameter] : parameters_) names.emplace(parameter.unsafeGetTensorImpl(), name);
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    optimizers[i].optimizer->bind([&](NamedParameter& parameter) {
      const auto it = names.find(parameter.tensor.unsafeGetTensorImpl());
      if (it == names.end()) {
        fail<ConfigError>(module->name(), "optimizer ", i, " (", optimizers[i].optimizer->name(), ") holds a tensor of shape ",
                          parameter.tensor.sizes(), " that is no parameter of the module, so no checkpoint would hold it. ",
                          "Register it with register_parameter or register_module.");
      }
      parameter.name = it->second;
    });
  }
  strategy_->setup_optimizers(*module, optimizers);
  scaler = needs_grad_scaler(options.precision) ? GradScaler::make() : nullptr;
  state.optimizer_steps.assign(optimizers.size(), 0);
  state.set_accumulate_grad_batches(options.accumulate_grad_batches);
}

void Session::check_optimizers() const {
  const auto& name = module->name();
  const bool manual = module->optimization_mode() == OptimizationMode::kManual;
  for (const auto& config : optimizers) {
    if (config.optimizer == nullptr) fail<ConfigError>(name, "configure_optimizers returned a null optimizer.");
    const bool plain = options.nonfinite_loss != NonFiniteLoss::kSkipStep && options.accumulate_grad_batches == 1 && !needs_grad_scaler(options.precision) && optimizers.size() == 1;
    if (config.optimizer->reevaluates() && !manual && !plain) {
      fail<ConfigError>(name, config.optimizer->name(), " evaluates the loss several times in a step, so it needs ",
                        "accumulate_grad_batches = 1, a precision other than 16-mixed, no optimizer beside it, and no ",
                        "NonFiniteLoss::kSkipStep.");
    }
    for (const auto& scheduler : config.schedulers) {
      if (scheduler.scheduler == nullptr) fail<ConfigError>(name, "configure_optimizers returned a null scheduler.");
      if (scheduler.frequency < 1) {
        fail<ConfigError>(name, "the frequency of a scheduler must be at least 1, got ", scheduler.frequency, ".");
      }
      if (scheduler.scheduler->needs_metric() && scheduler.monitor.empty()) {
        fail<ConfigError>(name, scheduler.scheduler->name(), " needs a metric: set .monitor to the name of one that is logged.");
      }
    }
  }
  if (!manual) return;
  if (options.accumulate_grad_batches != 1) {
    fail<ConfigError>(name, "manual optimization accumulates by itself: accumulate_grad_batches must be 1, got ",
                      options.accumulate_grad_batches, ".");
  }
  if (options.nonfinite_loss == NonFiniteLoss::kSkipStep) {
    fail<ConfigError>(name, "manual optimization steps by itself: nonfinite_loss can be kIgnore or kRaise, not kSkipStep.");
  }
  if (options.gradient_clip_val) {
    fail<ConfigError>(name, "manual optimization clips by itself: leave gradient_clip_val unset and call clip_gradients().");
  }
}

void Session::make_plan(Stage stage) {
  plan_ = {};
  const auto limit = [](std::optional<std::int64_t> value) { return value && *value >= 0 ? value : std::nullopt; };
  plan_.max_epochs = limit(options.max_epochs);
  plan_.max_steps = limit(options.max_steps);
  plan_.log_every_n_steps = options.log_every_n_steps;
  plan_.fast_dev_run = options.fast_dev_run > 0;
  plan_.default_root_dir = options.default_root_dir;
  if (plan_.fast_dev_run) {
    plan_.max_epochs = 1;
    plan_.max_steps = options.fast_dev_run;
  }
  if (stage != Stage::kFit) return;
  const bool timed = std::any_of(callbacks_.begin(), callbacks_.end(), [](const auto& callback) {
    const auto* timer = dynamic_cast<const Timer*>(callback.get());
    return timer != nullptr && timer->remaining().has_value();
  });
  if (!options.max_epochs && !plan_.max_steps && !timed && !plan_.fast_dev_run) {
    plan_.max_epochs = 1000;
    log_.warning("Trainer: neither max_epochs nor max_steps is set; fit ends after 1000 epochs. max_epochs = -1 means no limit.");
  }
  plan_.has_validation = !sources.eval.empty();  // Hooks that give loaders are asked when the loop starts.
  const auto& interval = options.val_check_interval;
  plan_.validates_once_per_epoch = interval.kind() == ValidationInterval::Kind::kFraction && interval.value() >= 1 &&
                                   options.check_val_every_n_epoch == 1;
}

FitResult Session::fit(std::shared_ptr<ModuleBase> given, RunSources given_sources, const FitOptions& fit_options) {
  FitResult result;
  run(Stage::kFit, std::move(given), std::move(given_sources), fit_options.checkpoint, fit_options.restore, [&] {
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

EvalResults Session::evaluate(Stage stage, std::shared_ptr<ModuleBase> given, RunSources given_sources,
                              const EvalOptions& eval_options) {
  EvalResults results;
  run(stage, std::move(given), std::move(given_sources), eval_options.checkpoint, Restore::kWeights, [&] {
    EvaluationLoop(*this, eval_sources(stage), stage).run();
    results = metrics.dataloader_results(stage == Stage::kTest ? MetricPhase::kTest : MetricPhase::kValidate);
    strategy_->teardown();
  });
  if (eval_options.verbose && strategy_->topology().rank == 0) print_results(stage, results);
  return results;
}

std::vector<AnyBatch> Session::predict(std::shared_ptr<ModuleBase> given, RunSources given_sources,
                                       const EvalOptions& eval_options) {
  std::vector<AnyBatch> outputs;
  run(Stage::kPredict, std::move(given), std::move(given_sources), eval_options.checkpoint, Restore::kWeights, [&] {
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
  // One that throws does not keep the others from their turn. The first error is the run's if the run has none yet.
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
  if (strategy_) strategy_->teardown();
  finish();
}

}  // namespace fulmen::detail
