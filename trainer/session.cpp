#include "session.h"

#include <torch/torch.h>

#include <csignal>

#include "fulmen/callbacks/model_checkpoint.h"
#include "fulmen/core/support/error.h"
#include "fulmen/strategies/ddp.h"
#include "fulmen/strategies/single_device.h"
#include "loops/evaluation_loop.h"
#include "loops/fit_loop.h"
#include "loops/limited_source.h"
#include "run_state.h"
#include "signals.h"

namespace fulmen::detail {
namespace {

/// "last" by the default settings is in the newest run's folder that has one: a new run's own
/// folder is empty.
std::filesystem::path newest_sibling_with(const std::filesystem::path& directory,
                                          const std::string& pointer) {
  const auto version = directory.parent_path();
  std::filesystem::path found;
  std::filesystem::file_time_type newest;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(version.parent_path(), error)) {
    const auto candidate = entry.path() / directory.filename();
    const auto time = std::filesystem::last_write_time(candidate / pointer, error);
    if (!error && (found.empty() || time > newest)) {
      found = candidate;
      newest = time;
    }
  }
  return found;
}

}  // namespace

Session::Session(TrainerOptions given) : options(std::move(given)), log_(options.log_sink) {
  fulmen::validate(options);
  if (options.devices == kAsLaunched) {
    options.devices = launched_ranks();
    options.num_nodes = 1;
  }
  if (options.fast_dev_run > 0) {  // One epoch of a few batches, then one validation.
    options.val_check_interval = {};
    options.check_val_every_n_epoch = 1;
  }
  if (options.accelerator.object() != nullptr) {
    accelerator = options.accelerator.object();
  } else if (options.accelerator.name() == "cuda") {
    fail<ConfigError>(
        "TrainerOptions",
        "accelerator = \"cuda\" is not enough, as GPUs are in a library of their own: link ",
        "fulmen::cuda and pass .accelerator = fulmen::cuda(), or use \"cpu\".");
  } else {
    accelerator = cpu_accelerator();
  }
  strategy_ = options.strategy;
  if (strategy_ == nullptr && options.devices * options.num_nodes > 1) {
    strategy_ = DdpStrategy::make();
  } else if (strategy_ == nullptr) {
    strategy_ = SingleDeviceStrategy::make();
  }
  make_default_loggers();
  make_default_callbacks();
}

Session::~Session() = default;

void Session::request_stop(std::string reason) {
  {
    std::lock_guard<std::mutex> lock(stop_mutex_);
    stop_text_ = std::move(reason);
  }
  stop_requested_.store(true, std::memory_order_release);
}

void Session::log_value(std::string_view name,
                        const at::Tensor& value,
                        const LogOptions& log_options) {
  if (!options.barebones) metrics.log(name, value, log_options);
}

void Session::log_value(std::string_view name, double value, const LogOptions& log_options) {
  if (!options.barebones) metrics.log(name, value, log_options);
}

void Session::save_checkpoint(const std::filesystem::path& directory, CheckpointScope scope) {
  if (module == nullptr) fail<ConfigError>("Trainer", "save_checkpoint was called before any run.");
  const bool inside =
      state.phase == BatchPhase::kBeforeUpdate && scope == CheckpointScope::kEverything;
  if (state.phase == BatchPhase::kUpdating || inside) {
    fail<CheckpointError>(
        "Trainer",
        "a training batch is half done, and from such a state no run can go on. Save in ",
        "on_train_batch_end or later. After an exception the checkpoint before stands; "
        "ModelCheckpoint's ",
        "save_on_exception keeps what is needed to save the state before the batch.");
  }
  if (failed_ && several_ranks()) {
    fail<CheckpointError>(
        "Trainer",
        "after an error on one rank the others cannot take part in a checkpoint. ",
        "The one before stands.");
  }
  const auto hook_before = metrics.hook();
  write_jointly(*this, directory, scope);
  set_hook(hook_before);
}

void Session::set_accumulate_grad_batches(std::int64_t micro_batches) {
  if (micro_batches < 1) {
    fail<ConfigError>(
        "Trainer", "accumulate_grad_batches must be at least 1, got ", micro_batches, ".");
  }
  state.set_accumulate_grad_batches(micro_batches);
}

void Session::manual_backward(const at::Tensor& loss) {
  if (fit_loop == nullptr)
    fail<ConfigError>(module->name(), "manual_backward works in training_step only.");
  if (module->optimization_mode() != OptimizationMode::kManual) {
    fail<ConfigError>(module->name(),
                      "manual_backward needs manual optimization: let optimization_mode() return ",
                      "OptimizationMode::kManual.");
  }
  fit_loop->window().manual_backward(loss);
}

void Session::manual_step(std::size_t index, const Optimizer::Closure& closure) {
  if (fit_loop == nullptr || module->optimization_mode() != OptimizationMode::kManual) {
    fail<ConfigError>(module->name(),
                      "step_optimizer works in training_step under manual optimization only.");
  }
  if (index >= optimizers.size()) {
    fail<ConfigError>(module->name(),
                      "step_optimizer(",
                      index,
                      "): configure_optimizers returned ",
                      optimizers.size(),
                      " optimizers.");
  }
  fit_loop->window().manual_step(index, closure);
}

void Session::automatic_step(Optimizer& optimizer, const Optimizer::Closure& closure) {
  if (optimizer.reevaluates()) {
    state.phase = BatchPhase::kUpdating;
    optimizer.step(closure);
    state.updated = !state.skip_update;
    return;
  }
  closure();
  if (state.skip_update) return;
  state.phase = BatchPhase::kUpdating;  // Also if a user's closure did not call ours.
  optimizer.step();
  state.updated = true;
}

at::Tensor Session::clip_gradients(Optimizer& optimizer,
                                   std::optional<double> value,
                                   ClipAlgorithm algorithm) {
  if (!value) return {};
  if (!(*value > 0))
    fail<ConfigError>(
        module->name(), "clip_gradients needs a value greater than 0, got ", *value, ".");
  if (fit_loop != nullptr) fit_loop->window().prepare_clipping(optimizer);
  const auto parameters = optimizer.all_parameters();
  if (algorithm == ClipAlgorithm::kNorm) return strategy_->clip_grad_norm(parameters, *value);
  strategy_->clip_grad_value(parameters, *value);
  return {};
}

void Session::transfer(BatchView batch, std::int64_t dataloader_idx) {
  const auto dtype = parameter_dtype(options.precision);
  if (dtype != at::kFloat) {
    batch.for_each_tensor([&](at::Tensor& tensor) {
      if (tensor.is_floating_point() && tensor.scalar_type() != dtype) tensor = tensor.to(dtype);
    });
  }
  const auto device = strategy_->root_device();
  if (auto* data = sources.data_module.get()) {
    set_hook(HookPoint::kOnBeforeBatchTransfer);
    data->dispatch_before_batch_transfer(batch, dataloader_idx);
    move_batch(*data, batch, device, dataloader_idx);
    data->dispatch_after_batch_transfer(batch, dataloader_idx);
    return;
  }
  hook(HookPoint::kOnBeforeBatchTransfer).dispatch_before_batch_transfer(batch, dataloader_idx);
  move_batch(hook(HookPoint::kTransferBatchToDevice), batch, device, dataloader_idx);
  hook(HookPoint::kOnAfterBatchTransfer).dispatch_after_batch_transfer(batch, dataloader_idx);
}

template <class Owner>
void Session::move_batch(Owner& owner,
                         BatchView batch,
                         c10::Device device,
                         std::int64_t dataloader_idx) {
  if (device.is_cpu()) return owner.dispatch_transfer_batch(batch, device, dataloader_idx);
  accelerator->copy_batch(
      device, batch, [&] { owner.dispatch_transfer_batch(batch, device, dataloader_idx); });
}

void Session::send_to_loggers(std::map<std::string, double> values, std::int64_t step) {
  if (values.empty() || loggers_.empty()) return;
  // A metric named "step" is the x axis of its record.
  if (auto it = values.find("step"); it != values.end()) {
    step = static_cast<std::int64_t>(it->second);
    values.erase(it);
  } else {
    values.emplace("epoch", static_cast<double>(state.progress.epoch));
  }
  for (const auto& logger : loggers_) logger->log_metrics(values, step);
}

std::vector<std::shared_ptr<BatchSource>> Session::eval_sources(Stage stage) {
  const auto point = stage == Stage::kTest      ? HookPoint::kTestDataloader
                     : stage == Stage::kPredict ? HookPoint::kPredictDataloader
                                                : HookPoint::kValDataloader;
  auto found = sources.eval;
  set_hook(point);
  if (found.empty()) {
    found = sources.data_module ? sources.data_module->dispatch_eval_dataloaders(stage)
                                : module->dispatch_eval_dataloaders(stage);
  }
  if (found.empty() && stage_ != Stage::kFit) {
    fail<ConfigError>("Trainer",
                      to_string(stage),
                      " got no loader: pass one, or let ",
                      module->name(),
                      " or the data module return one.");
  }
  return found;
}

BatchLimit Session::dev_run_or(const BatchLimit& limit) const {
  return options.fast_dev_run > 0 ? batches(options.fast_dev_run) : limit;
}

BatchLimit Session::train_limit() const {
  return dev_run_or(options.overfit_batches.value_or(options.limit_train_batches));
}

std::optional<std::int64_t> Session::estimated_stepping_batches() {
  if (stage_ != Stage::kFit || !running_) {
    fail<ConfigError>("Trainer", "estimated_stepping_batches is known while fit runs only.");
  }
  const auto running = metrics.hook();
  early_source_ = train_source();
  prepare_source(*early_source_, "the training loader");
  set_hook(running);
  auto size = LimitedSource(*early_source_,
                            train_limit(),
                            "the training loader",
                            "limit_train_batches",
                            Lookahead::kNo)
                  .size();
  if (several_ranks()) {  // As many as the rank with the most; -1: unknown.
    const auto own = at::scalar_tensor(size.value_or(-1), at::kLong);
    const auto most = strategy_->reduce(own, ReduceOp::kMax).item<std::int64_t>();
    size = most < 0 ? std::nullopt : std::optional(most);
  }
  std::optional<std::int64_t> steps;
  if (size && plan_.max_epochs) {
    const auto window = options.accumulate_grad_batches;
    steps = (*size + window - 1) / window * *plan_.max_epochs;
  }
  if (plan_.max_steps) steps = std::min(steps.value_or(*plan_.max_steps), *plan_.max_steps);
  return steps;
}

std::shared_ptr<BatchSource> Session::train_source() {
  if (early_source_ != nullptr) return std::exchange(early_source_, nullptr);
  auto found = sources.train;
  set_hook(HookPoint::kTrainDataloader);
  if (found == nullptr) {
    found = sources.data_module ? sources.data_module->dispatch_train_dataloader()
                                : module->dispatch_train_dataloader();
  }
  if (found == nullptr) {
    fail<ConfigError>("Trainer",
                      "fit got no training loader: pass one, or let ",
                      module->name(),
                      " or the data module return one from train_dataloader().");
  }
  if (found->batch_type() != module->dispatch_batch_type()) {
    fail<ConfigError>("Trainer",
                      "the training loader yields another batch type than ",
                      module->name(),
                      " takes.");
  }
  return found;
}

void Session::prepare_source(BatchSource& source, std::string_view what) const {
  source.set_default_seed(loader_seed_);
  const auto& mesh = strategy_->mesh();
  if (!options.use_distributed_sampler) return;
  const DataShare share{.index = mesh.data_rank(), .count = mesh.data_size()};
  if (source.set_share(share)) return;
  fail<DataError>(what,
                  "cannot be shared out to ",
                  share.count,
                  " data ranks: it is no DataLoader. Use one, or split the data yourself and set ",
                  ".use_distributed_sampler = false.");
}

std::filesystem::path Session::find_checkpoint(const std::string& text,
                                               MissingCheckpoint missing) const {
  if (!several_ranks()) return look_for_checkpoint(text, missing);
  // Rank 0 looks; the others would race with what it writes, or have other folders.
  boost::json::value found;
  const auto all = strategy_->mesh().world()->all();
  jointly("Trainer", [&] {
    if (all.rank() == 0) found = look_for_checkpoint(text, missing).string();
  });
  return std::string(broadcast_object(found, 0, all).as_string());
}

std::filesystem::path Session::look_for_checkpoint(const std::string& text,
                                                   MissingCheckpoint missing) const {
  if (text != "last" && text != "best") {
    const std::filesystem::path path = text;
    if (!std::filesystem::is_regular_file(path) || path.extension() == ".safetensors") return path;
    return read_pointer(path.parent_path(), path.filename().string()).value_or(path);
  }
  std::string looked;
  for (const auto& callback : callbacks_) {
    const auto* checkpoint = dynamic_cast<const ModelCheckpoint*>(callback.get());
    if (checkpoint == nullptr) continue;
    auto directory = checkpoint->dirpath();
    if (directory.empty()) continue;
    auto found = read_pointer(directory, text);
    if (!found && checkpoint->options().dirpath.empty()) {
      if (auto sibling = newest_sibling_with(directory, text); !sibling.empty())
        found = read_pointer(sibling, text);
    }
    if (found) return *found;
    looked += (looked.empty() ? "" : ", ") + directory.string();
  }
  if (missing == MissingCheckpoint::kStartAnew) return {};
  fail<CheckpointError>("Trainer",
                        "there is no \"",
                        text,
                        "\" checkpoint",
                        looked.empty()
                            ? std::string(": no ModelCheckpoint of this trainer has a folder yet")
                            : " in " + looked,
                        ". Leave .checkpoint empty to start anew, or give a path.");
}

}  // namespace fulmen::detail
