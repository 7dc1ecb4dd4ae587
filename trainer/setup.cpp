#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/data/random_key.h"
#include "fulmen/callbacks/timer.h"
#include "fulmen/core/support/error.h"
#include "run_state.h"
#include "session.h"

namespace fulmen::detail {
namespace {

constexpr std::string_view kHalfDone = "(its configure_sharded_model threw)";

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

}  // namespace

void Session::connect(Stage stage) {
  state.stop_reason.clear();
  wanted_finish_.clear();
  set_up_ = false;
  restored_from_.clear();
  restoring.reset();
  early_source_.reset();
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
      fail<ConfigError>(
          "Trainer", "the data module yields another batch type than ", module->name(), " takes.");
    }
  }
  connect_callbacks();
  if (stage == Stage::kFit) {
    for (const auto& callback : callbacks_) callback->reset();
  }
  strategy_->setup_environment({.accelerator = accelerator,
                                .log = log_,
                                .devices = options.devices,
                                .num_nodes = options.num_nodes});
  topology_ = strategy_->topology();
  loggers_ = topology_.rank == 0 ? own_loggers_ : std::vector<std::shared_ptr<Logger>>();
  make_plan(stage);
}

void Session::prepare_data() {
  // Downloads once on each host, and the others wait for it.
  if (topology_.local_rank == 0) {
    if (sources.data_module) {
      set_hook(HookPoint::kPrepareData);
      sources.data_module->prepare_data();
    }
    hook(HookPoint::kPrepareData).prepare_data();
  }
  if (several_ranks()) strategy_->barrier("prepare_data");
}

/// Rank 0's, or what the user chose: also without a seed all ranks must shuffle alike.
std::uint64_t Session::joint_seed() const {
  const auto own = options.seed.value_or(at::detail::getDefaultCPUGenerator().current_seed());
  if (!several_ranks()) return own;
  auto seed = at::scalar_tensor(static_cast<std::int64_t>(own), at::kLong);
  broadcast(seed, 0, strategy_->mesh().world()->all());
  return static_cast<std::uint64_t>(seed.item<std::int64_t>());
}

/// Ranks with other samples draw other numbers; the first stream's are those of one process.
void Session::separate_random_streams() const {
  if (!several_ranks()) return;
  const auto device = strategy_->root_device();
  auto state_of_first = accelerator->random_state(device);
  broadcast(state_of_first, 0, strategy_->mesh().world()->all());
  if (const auto stream = strategy_->mesh().random_stream(); stream > 0) {
    seed_everything(random_key(RandomPurpose::kRank, loader_seed_, stream));
  } else {
    accelerator->set_random_state(device, state_of_first);
  }
}

void Session::prepare(Stage stage) {
  if (stage == Stage::kFit && options.seed) seed_everything(*options.seed);
  loader_seed_ = joint_seed();
  prepare_data();
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
  const auto saves = [](const auto& callback) {
    return callback->kind() == CallbackKind::kCheckpoint;
  };
  if (stage == Stage::kFit && std::ranges::any_of(callbacks_, saves)) refuse_parts(*this);
  parameters_.clear();
  parameter_tensors_.clear();
  std::set<at::TensorImpl*> seen;
  for (const auto& parameter : module->named_parameters()) {
    if (seen.insert(parameter.value().unsafeGetTensorImpl()).second) {
      parameters_.emplace_back(parameter.key(), parameter.value());
      parameter_tensors_.push_back(parameter.value());
    }
  }
  if (stage == Stage::kFit) connect_optimizers();
  separate_random_streams();
}

void Session::configure_sharded_model() {
  const auto key = strategy_->key();
  if (module->configured_for() == key) return;
  if (module->configured_for() == kHalfDone) {
    fail<ConfigError>("Trainer",
                      module->name(),
                      " is built in part only: its configure_sharded_model threw in an earlier ",
                      "run. Make a new module.");
  }
  if (!module->configured_for().empty()) {
    fail<ConfigError>("Trainer",
                      module->name(),
                      " is configured for the strategy \"",
                      module->configured_for(),
                      "\" and cannot be used with \"",
                      key,
                      "\". Make a new module and load the weights into it.");
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
    log_.warning("Trainer: ",
                 module->name(),
                 " has no optimizer: configure_optimizers returned none, so nothing is updated.");
  }
  check_optimizers();
  std::map<at::TensorImpl*, std::string> names;
  for (const auto& [name, parameter] : parameters_)
    names.emplace(parameter.unsafeGetTensorImpl(), name);
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    optimizers[i].optimizer->bind([&](NamedParameter& parameter) {
      const auto it = names.find(parameter.tensor.unsafeGetTensorImpl());
      if (it == names.end()) {
        fail<ConfigError>(module->name(),
                          "optimizer ",
                          i,
                          " (",
                          optimizers[i].optimizer->name(),
                          ") holds a tensor of shape ",
                          parameter.tensor.sizes(),
                          " that is no parameter of the module, so no checkpoint would hold it. ",
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
    if (config.optimizer == nullptr)
      fail<ConfigError>(name, "configure_optimizers returned a null optimizer.");
    const bool plain = options.nonfinite_loss != NonFiniteLoss::kSkipStep &&
                       options.accumulate_grad_batches == 1 &&
                       !needs_grad_scaler(options.precision) && optimizers.size() == 1;
    if (config.optimizer->reevaluates() && several_ranks()) {
      fail<ConfigError>(name,
                        config.optimizer->name(),
                        " decides by its own rank's loss how often it evaluates, so it works on ",
                        "one rank only, not on ",
                        strategy_->topology().world_size,
                        ". Use another optimizer, or devices = 1.");
    }
    if (config.optimizer->reevaluates() && !manual && !plain) {
      fail<ConfigError>(name,
                        config.optimizer->name(),
                        " evaluates the loss several times in a step, so it needs ",
                        "accumulate_grad_batches = 1, a precision other than 16-mixed, no "
                        "optimizer beside it, and no ",
                        "NonFiniteLoss::kSkipStep.");
    }
    for (const auto& scheduler : config.schedulers) {
      if (scheduler.scheduler == nullptr)
        fail<ConfigError>(name, "configure_optimizers returned a null scheduler.");
      if (scheduler.frequency < 1) {
        fail<ConfigError>(name,
                          "the frequency of a scheduler must be at least 1, got ",
                          scheduler.frequency,
                          ".");
      }
      if (scheduler.scheduler->needs_metric() && scheduler.monitor.empty()) {
        fail<ConfigError>(name,
                          scheduler.scheduler->name(),
                          " needs a metric: set .monitor to the name of one that is logged.");
      }
    }
  }
  if (!manual) return;
  if (options.accumulate_grad_batches != 1) {
    fail<ConfigError>(
        name,
        "manual optimization accumulates by itself: accumulate_grad_batches must be 1, got ",
        options.accumulate_grad_batches,
        ".");
  }
  if (options.nonfinite_loss == NonFiniteLoss::kSkipStep) {
    fail<ConfigError>(name,
                      "manual optimization steps by itself: nonfinite_loss can be kIgnore or "
                      "kRaise, not kSkipStep.");
  }
  if (options.gradient_clip_val) {
    fail<ConfigError>(name,
                      "manual optimization clips by itself: leave gradient_clip_val unset and call "
                      "clip_gradients().");
  }
}

void Session::make_plan(Stage stage) {
  plan_ = {};
  const auto limit = [](std::optional<std::int64_t> value) {
    return value && *value >= 0 ? value : std::nullopt;
  };
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
    log_.warning(
        "Trainer: neither max_epochs nor max_steps is set; fit ends after 1000 epochs. max_epochs "
        "= -1 means no limit.");
  }
  plan_.has_validation =
      !sources.eval.empty();  // Hooks that give loaders are asked when the loop starts.
  const auto& interval = options.val_check_interval;
  plan_.validates_once_per_epoch = interval.kind() == ValidationInterval::Kind::kFraction &&
                                   interval.value() >= 1 && options.check_val_every_n_epoch == 1;
}

}  // namespace fulmen::detail
