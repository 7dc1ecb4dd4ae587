#include <torch/torch.h>

#include <boost/json/array.hpp>

#include "fulmen/core/checkpoint/weights.h"
#include "fulmen/core/distributed/placed_parameters.h"
#include "fulmen/core/support/error.h"
#include "loops/fit_loop.h"
#include "run_state.h"
#include "session.h"

namespace fulmen::detail {
namespace {

namespace json = boost::json;

/// Puts a state's tensors under "<prefix>/" and returns its values.
json::object store(const StateDict& state, const std::string& prefix, TensorMap& tensors) {
  for (const auto& [name, tensor] : state.tensors) tensors[prefix + "/" + name] = tensor;
  return state.values;
}

json::object store_loop(const Session& session) {
  const auto& state = session.state;
  const auto& progress = state.progress;
  const bool next = state.epoch_closing;  // This epoch is over but for the callback that saves.
  json::array optimizer_steps;
  for (auto steps : state.optimizer_steps) optimizer_steps.push_back(steps);
  const double since =
      session.fit_loop != nullptr ? session.fit_loop->seconds_since_validation() : 0;
  return {{"epoch", progress.epoch + (next ? 1 : 0)},
          {"batch_idx", next ? 0 : progress.batch_idx},
          {"total_batches", progress.total_batches},
          {"global_step", progress.global_step},
          {"skipped_steps", progress.skipped_steps},
          {"epoch_started", state.epoch_started && !next},
          {"epoch_done", state.epoch_done && !next},
          {"epoch_cut", state.epoch_cut && !next},
          {"own_end", next ? -1 : state.own_end},
          {"validation_pending", state.validation_pending},
          {"micro_batches", state.micro_batches},
          {"losses", state.losses},
          {"skip_update", state.skip_update && state.window_open()},
          {"weight", double_to_json(state.weight.number)},
          {"accumulate_grad_batches", state.accumulate_grad_batches},
          {"seconds_since_validation", double_to_json(since)},
          {"optimizer_steps", optimizer_steps}};
}

void store_callbacks(Session& session, CheckpointContents& contents) {
  json::object callbacks;
  for (const auto& callback : session.callbacks_) {
    const auto key = callback->state_key();
    const auto state = callback->state_dict();
    if (!state.empty()) callbacks[key] = store(state, "callback/" + key, contents.rank_state);
  }
  contents.trainer["callbacks"] = std::move(callbacks);
}

void store_open_gradients(Session& session, CheckpointContents& contents) {
  const auto& state = session.state;
  const bool manual = session.module->optimization_mode() == OptimizationMode::kManual;
  if (!state.window_open() && !manual) return;
  for (const auto& [name, parameter] : session.distinct_parameters()) {
    if (parameter.grad().defined()) contents.rank_state["gradient/" + name] = parameter.grad();
  }
  if (state.weight.tensor.defined()) contents.rank_state["window/weight"] = state.weight.tensor;
}

void store_optimizers(const Session& session, CheckpointContents& contents) {
  json::array optimizers;
  std::size_t index = 0;
  for (const auto& config : session.optimizers) {
    const auto prefix = std::to_string(index++);
    json::array schedulers;
    std::size_t scheduler_index = 0;
    for (const auto& scheduler : config.schedulers) {
      const auto key = "scheduler/" + prefix + "/" + std::to_string(scheduler_index++);
      schedulers.push_back(json::object{
          {"name", scheduler.scheduler->name()},
          {"values", store(scheduler.scheduler->state_dict(), key, contents.optimizer)}});
    }
    optimizers.push_back(
        json::object{{"name", config.optimizer->name()},
                     {"values", store(config.optimizer->state_dict(), prefix, contents.optimizer)},
                     {"schedulers", std::move(schedulers)}});
  }
  contents.trainer["optimizers"] = std::move(optimizers);
  if (session.scaler)
    contents.trainer["scaler"] = store(session.scaler->state_dict(), "scaler", contents.optimizer);
}

void store_extras(Session& session, CheckpointContents& contents, CheckpointScope scope) {
  json::object extras;
  if (scope == CheckpointScope::kEverything) {
    session.set_hook(HookPoint::kOnSaveCheckpoint);
    for (const auto& callback : session.callbacks_) {
      StateDict extra;
      callback->on_save_checkpoint(session, *session.module, extra);
      const auto key = callback->state_key();
      if (!extra.empty()) extras[key] = store(extra, "extra/" + key, contents.rank_state);
    }
  }
  contents.trainer["callback_extras"] = std::move(extras);
  StateDict extra;
  session.hook(HookPoint::kOnSaveCheckpoint).on_save_checkpoint(extra);
  contents.trainer["module_extra"] = store(extra, "module", contents.rank_state);
}

}  // namespace

void refuse_parts(Session& session) {
  if (!session.several_ranks()) return;
  const PlacedParameters placed(*session.module, session.strategy().mesh());
  for (const auto& parameter : placed.parameters()) {
    for (const auto& axis : placed.own_axes(parameter)) {
      if (placed.mesh().size(axis) == 1) continue;
      fail<CheckpointError>("Trainer",
                            parameter.name,
                            " is ",
                            to_string(parameter.placements.at(axis)),
                            " over \"",
                            axis,
                            "\"; checkpoints of parameters that differ between ranks are not part ",
                            "of this version. Set enable_checkpointing = false.");
    }
  }
}

CheckpointContents capture_position(Session& session) {
  CheckpointContents contents;
  contents.trainer["loop"] = store_loop(session);
  store_callbacks(session, contents);
  auto& loop = *session.fit_loop;
  const auto metrics =
      loop.pinned_metrics() != nullptr ? *loop.pinned_metrics() : session.metrics.state_dict();
  contents.trainer["metrics"] = store(metrics, "metrics", contents.rank_state);
  contents.trainer["train_data"] = store(loop.source_state(), "train_data", contents.rank_state);
  contents.rank_state["random/device"] =
      session.accelerator->random_state(session.strategy().root_device());
  contents.rank_values["threads"] = at::get_num_threads();
  contents.rank_values["strategy"] = session.strategy().state_dict().values;
  for (auto& [name, tensor] : contents.rank_state) tensor = tensor.clone();
  return contents;
}

CheckpointContents capture(Session& session, CheckpointScope scope) {
  CheckpointContents contents;
  session.strategy().synchronize_buffers(*session.module);
  auto model = module_state(*session.module);
  const auto& progress = session.state.progress;
  if (scope == CheckpointScope::kEverything) {
    const auto* loop = session.fit_loop.get();
    const auto* pinned = loop != nullptr ? loop->pinned_state() : nullptr;
    if (loop == nullptr && session.finished_position && session.finished_module == session.module) {
      pinned = &*session.finished_position;
    }
    if (loop == nullptr && pinned == nullptr) {
      fail<ConfigError>(
          "Trainer",
          "save_checkpoint of everything needs a fit of this module that runs, or has ended by ",
          "itself. Use CheckpointScope::kWeightsOnly, or a callback's on_interrupt.");
    }
    contents = pinned != nullptr ? *pinned : capture_position(session);
    if (loop != nullptr && !loop->source_can_skip() && session.state.epoch_started &&
        !session.state.epoch_closing) {
      session.log().warning_once(
          "Trainer: a checkpoint inside an epoch was written, but the training loader cannot be ",
          "entered inside an epoch, so a run cannot be resumed from it. Use a DataLoader.");
    }
    store_open_gradients(session, contents);
    store_optimizers(session, contents);
  }
  // Buffers as they were at the start of a validation that is broken off.
  for (auto& [name, tensor] : contents.model) {
    if (model.tensors.contains(name)) model.tensors[name] = tensor;
  }
  contents.model = std::move(model.tensors);
  contents.aliases = std::move(model.aliases);
  contents.trainer["epoch"] = progress.epoch;
  contents.trainer["global_step"] = progress.global_step;
  contents.trainer["weights_only"] = scope == CheckpointScope::kWeightsOnly;
  contents.trainer["world_size"] = session.strategy().topology().world_size;
  contents.trainer["mesh"] = session.strategy().mesh().describe();
  contents.trainer["precision"] = to_string(session.options.precision);
  contents.trainer["hyperparameters"] = session.module->hyperparameters;
  if (session.sources.data_module && scope == CheckpointScope::kEverything) {
    contents.trainer["data_module"] =
        store(session.sources.data_module->state_dict(), "data_module", contents.rank_state);
  }
  store_extras(session, contents, scope);
  return contents;
}

void write_jointly(Session& session,
                   const std::filesystem::path& directory,
                   CheckpointScope scope) {
  if (!session.several_ranks()) return write_checkpoint(directory, capture(session, scope));
  const auto all = session.strategy().mesh().world()->all();
  // Rank 0's word counts for the place, and what fails on one rank fails on all.
  constexpr std::string_view kSaving = "save_checkpoint";
  CheckpointContents contents;
  session.jointly(kSaving, [&] {
    refuse_parts(session);
    contents = capture(session, scope);
    for (const auto* part : kRankParts) {
      if (const auto* own = contents.trainer.if_contains(part)) contents.rank_values[part] = *own;
    }
  });
  std::string packed;
  session.jointly(kSaving, [&] {
    if (all.rank() != 0) packed = pack_rank_state(contents.rank_state, contents.rank_values);
  });
  auto parts = gather_bytes(packed, 0, all);
  session.jointly(kSaving, [&] {
    if (all.rank() != 0) return;
    parts.erase(parts.begin());
    contents.other_ranks = std::move(parts);
    write_checkpoint(directory, contents);
  });
}

}  // namespace fulmen::detail
