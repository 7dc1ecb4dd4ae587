#include <torch/torch.h>

#include <algorithm>
#include <boost/json/array.hpp>

#include "fulmen/core/checkpoint/weights.h"
#include "fulmen/core/optim/optimizer_state.h"
#include "fulmen/core/support/error.h"
#include "run_state.h"
#include "run_state_elastic.h"
#include "session.h"

namespace fulmen::detail {
namespace {

namespace json = boost::json;

constexpr std::string_view kWhere = "the checkpoint";

StateDict unstore(const json::object& values, const std::string& prefix, const TensorMap& tensors) {
  StateDict state{.values = values, .tensors = {}};
  const auto start = prefix + "/";
  for (auto it = tensors.lower_bound(start); it != tensors.end() && it->first.starts_with(start);
       ++it) {
    state.tensors[it->first.substr(start.size())] = it->second;
  }
  return state;
}

LoopState read_loop(const json::object& values) {
  const std::string where = std::string(kWhere) + " (loop)";
  LoopState state;
  state.progress = {.epoch = require_int(values, "epoch", where),
                    .batch_idx = require_int(values, "batch_idx", where),
                    .total_batches = require_int(values, "total_batches", where),
                    .global_step = require_int(values, "global_step", where),
                    .skipped_steps = require_int(values, "skipped_steps", where)};
  state.epoch_started = require_bool(values, "epoch_started", where);
  state.epoch_done = require_bool(values, "epoch_done", where);
  state.epoch_cut = require_bool(values, "epoch_cut", where);
  // Files of version 1 of one rank do not have it.
  state.own_end = values.contains("own_end") ? require_int(values, "own_end", where) : -1;
  state.validation_pending = require_bool(values, "validation_pending", where);
  state.micro_batches = require_int(values, "micro_batches", where);
  state.losses = require_int(values, "losses", where);
  state.skip_update = require_bool(values, "skip_update", where);
  state.weight.number = json_to_double(values.at("weight"), where);
  state.accumulate_grad_batches = require_int(values, "accumulate_grad_batches", where);
  state.seconds_since_validation = json_to_double(values.at("seconds_since_validation"), where);
  for (const auto& steps : require_array(values, "optimizer_steps", where)) {
    state.optimizer_steps.push_back(steps.to_number<std::int64_t>());
  }
  return state;
}

/// All that does not fit, a line each. Checks only.
std::vector<std::string> find_problems(Session& session,
                                       const CheckpointContents& contents,
                                       Restore what) {
  std::vector<std::string> problems;
  try {
    check_load(contents.model, contents.aliases, named_tensors(*session.module), kWhere);
  } catch (const CheckpointError& error) {
    problems.push_back(error.what());
  }
  if (what == Restore::kWeights || session.stage() != Stage::kFit) return problems;
  const auto& saved = require_array(contents.trainer, "optimizers", kWhere);
  if (saved.size() != session.optimizers.size()) {
    problems.push_back("it holds " + std::to_string(saved.size()) + " optimizers, the module has " +
                       std::to_string(session.optimizers.size()));
    return problems;
  }
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const auto& optimizer = *session.optimizers[i].optimizer;
    const auto& entry = saved[i].as_object();
    const auto name = require_string(entry, "name", kWhere);
    if (name != optimizer.name()) {
      problems.push_back("optimizer " + std::to_string(i) + " is " + name + " there and " +
                         std::string(optimizer.name()) + " here");
      continue;
    }
    optimizer.check_state(
        unstore(require_object(entry, "values", kWhere), std::to_string(i), contents.optimizer),
        problems);
    const auto& schedulers = require_array(entry, "schedulers", kWhere);
    if (schedulers.size() != session.optimizers[i].schedulers.size()) {
      problems.push_back("optimizer " + std::to_string(i) + " has " +
                         std::to_string(schedulers.size()) + " schedulers there and " +
                         std::to_string(session.optimizers[i].schedulers.size()) + " here");
      continue;
    }
    for (std::size_t j = 0; j < schedulers.size(); ++j) {
      const auto saved_name = require_string(schedulers[j].as_object(), "name", kWhere);
      const auto& scheduler = *session.optimizers[i].schedulers[j].scheduler;
      if (saved_name == scheduler.name()) continue;
      problems.push_back("scheduler " + std::to_string(j) + " of optimizer " + std::to_string(i) +
                         " is " + saved_name + " there and " + std::string(scheduler.name()) +
                         " here");
    }
  }
  return problems;
}

void restore_optimizers(Session& session, const CheckpointContents& contents) {
  const auto& saved = require_array(contents.trainer, "optimizers", kWhere);
  for (std::size_t i = 0; i < saved.size(); ++i) {
    const auto& entry = saved[i].as_object();
    const auto prefix = std::to_string(i);
    auto& config = session.optimizers[i];
    const auto state = unstore(require_object(entry, "values", kWhere), prefix, contents.optimizer);
    for (const auto& name : missing_hyperparameters(*config.optimizer, state)) {
      session.log().warning("Trainer: the checkpoint is older than ",
                            config.optimizer->name(),
                            "'s option \"",
                            name,
                            "\"; its value from configure_optimizers is used.");
    }
    config.optimizer->load_state_dict(state);
    const auto& schedulers = require_array(entry, "schedulers", kWhere);
    for (std::size_t j = 0; j < schedulers.size(); ++j) {
      const auto key = "scheduler/" + prefix + "/" + std::to_string(j);
      const auto& values = require_object(schedulers[j].as_object(), "values", kWhere);
      config.schedulers[j].scheduler->load_state_dict(unstore(values, key, contents.optimizer));
    }
  }
  if (session.scaler && contents.trainer.contains("scaler")) {
    session.scaler->load_state_dict(
        unstore(require_object(contents.trainer, "scaler", kWhere), "scaler", contents.optimizer));
  }
}

void restore_callbacks(Session& session, const CheckpointContents& contents) {
  const auto& extras = require_object(contents.trainer, "callback_extras", kWhere);
  session.set_hook(HookPoint::kOnLoadCheckpoint);
  for (const auto& callback : session.callbacks_) {
    const auto key = callback->state_key();
    const auto* values = extras.if_contains(key);
    const auto extra = values != nullptr
                           ? unstore(values->as_object(), "extra/" + key, contents.rank_state)
                           : StateDict();
    callback->on_load_checkpoint(session, *session.module, extra);
  }
  const auto& states = require_object(contents.trainer, "callbacks", kWhere);
  for (const auto& callback : session.callbacks_) {
    const auto key = callback->state_key();
    const auto* values = states.if_contains(key);
    if (values == nullptr) continue;
    callback->load_state_dict(unstore(values->as_object(), "callback/" + key, contents.rank_state));
  }
  std::string unused;
  for (const auto& [key, values] : states) {
    const bool known = std::any_of(
        session.callbacks_.begin(), session.callbacks_.end(), [&name = key](const auto& callback) {
          return callback->state_key() == name;
        });
    if (!known) unused += (unused.empty() ? "" : ", ") + std::string(key);
  }
  if (unused.empty()) return;
  session.log().warning(
      "Trainer: the checkpoint has state of callbacks that this trainer does not have: ",
      unused,
      ".");
}

void restore_gradients(Session& session, const CheckpointContents& contents) {
  const auto gradients = unstore({}, "gradient", contents.rank_state).tensors;
  for (const auto& [name, parameter] : session.distinct_parameters()) {
    if (auto it = gradients.find(name); it != gradients.end()) {
      at::Tensor(parameter).mutable_grad() = it->second.to(parameter.device());
    }
  }
  const auto& tensors = contents.rank_state;
  if (auto it = tensors.find("window/weight"); it != tensors.end())
    session.state.weight.tensor = it->second;
}

struct Found {
  CheckpointContents contents = {};
  LoopState loop = {};
  bool everything = false;  ///< Not weights alone.
  bool elastic = false;     ///< Of another number of data ranks.
};

/// Reads and checks all, and changes nothing. Throws CheckpointError.
Found read_and_check(Session& session, const std::string& from, Restore what) {
  const bool fits = session.stage() == Stage::kFit;
  Found found{.everything = fits && what == Restore::kEverything};
  const bool whole = found.everything || !from.ends_with(".safetensors");
  auto& contents = found.contents;
  if (found.everything) {
    found.elastic =
        has_other_data_ranks(session, read_checkpoint(from, CheckpointParts::kRankOnly), from);
  }
  // For weights alone any rank's part will do.
  const int rank = found.everything && !found.elastic ? session.topology().rank : 0;
  contents = read_checkpoint(
      from, whole ? CheckpointParts::kEverything : CheckpointParts::kModelOnly, rank);
  if (found.everything && require_bool(contents.trainer, "weights_only", kWhere)) {
    fail<CheckpointError>("Trainer",
                          from,
                          " holds weights only, so a run cannot be resumed from it. Use ",
                          ".restore = Restore::kWeights to start a new run from its weights.");
  }
  if (found.everything) {
    for (const auto* part : kRankParts) {
      if (const auto* own = contents.rank_values.if_contains(part)) contents.trainer[part] = *own;
    }
  }
  if (const auto problems = find_problems(session, contents, what); !problems.empty()) {
    std::string list;
    for (const auto& problem : problems) list += "\n  " + problem;
    fail<CheckpointError>("Trainer", from, " does not fit this run, and nothing was loaded:", list);
  }
  if (!found.everything) return found;
  if (found.elastic) refuse_open_gradients(session, contents, from);
  found.loop = read_loop(require_object(contents.trainer, "loop", kWhere));
  for (const auto* part : {"metrics", "train_data", "callbacks", "callback_extras"}) {
    require_object(contents.trainer, part, kWhere);
  }
  const auto precision = require_string(contents.trainer, "precision", kWhere);
  if (precision != to_string(session.options.precision)) {
    session.log().warning("Trainer: the checkpoint was written with precision ",
                          precision,
                          ", now it is ",
                          to_string(session.options.precision),
                          "; the run goes on with other rounding.");
  }
  return found;
}

}  // namespace

void restore(Session& session, const std::filesystem::path& path, Restore what) {
  Found found;
  // Rank 0 first: whether the others have a part of their own in there is seen from what it reads.
  for (const bool first : {true, false}) {
    session.jointly("Trainer", [&] {
      if (first == (session.topology().rank == 0))
        found = read_and_check(session, path.string(), what);
    });
  }
  auto& contents = found.contents;
  auto& loop = found.loop;
  if (found.elastic) {
    session.jointly("Trainer", [&] { take_over(session, contents, path.string()); });
    loop.own_end = -1;
  }
  const bool everything = found.everything;
  const auto* module_values = contents.trainer.if_contains("module_extra");
  const auto extra = module_values != nullptr
                         ? unstore(module_values->as_object(), "module", contents.rank_state)
                         : StateDict();
  session.hook(HookPoint::kOnLoadCheckpoint).on_load_checkpoint(extra);
  load_into(contents.model, contents.aliases, named_tensors(*session.module), kWhere);
  if (!everything) return;
  if (session.sources.data_module && contents.trainer.contains("data_module")) {
    session.sources.data_module->load_state_dict(
        unstore(require_object(contents.trainer, "data_module", kWhere),
                "data_module",
                contents.rank_state));
  }
  restore_callbacks(session, contents);
  restore_optimizers(session, contents);
  // The open window keeps its size, later ones have the program's.
  if (!loop.window_open()) loop.accumulate_grad_batches = session.options.accumulate_grad_batches;
  loop.next_accumulate_grad_batches = session.options.accumulate_grad_batches;
  session.state = loop;
  session.state.optimizer_steps.resize(session.optimizers.size());
  restore_gradients(session, contents);
  if (const auto* strategy = contents.rank_values.if_contains("strategy"))
    session.strategy().load_state_dict({.values = strategy->as_object(), .tensors = {}});
  if (require_int(contents.rank_values, "threads", kWhere) != at::get_num_threads()) {
    session.log().warning(
        "Trainer: the checkpoint was written with ",
        require_int(contents.rank_values, "threads", kWhere),
        " threads, now there are ",
        at::get_num_threads(),
        ". The order of sums differs, so results are equal within rounding, not bit for bit.");
  }
  session.restoring = std::move(contents);
}

void restore_source(Session& session, BatchSource& source) {
  const auto& contents = *session.restoring;
  source.load_state_dict(unstore(
      require_object(contents.trainer, "train_data", kWhere), "train_data", contents.rank_state));
}

void restore_metrics(Session& session) {
  const auto& contents = *session.restoring;
  session.metrics.load_state_dict(
      unstore(require_object(contents.trainer, "metrics", kWhere), "metrics", contents.rank_state));
}

void restore_random_state(Session& session) {
  if (!session.restoring) return;
  const auto it = session.restoring->rank_state.find("random/device");
  if (it == session.restoring->rank_state.end()) {
    fail<CheckpointError>(kWhere, "has no random state (\"random/device\").");
  }
  session.accelerator->set_random_state(session.strategy().root_device(), it->second);
}

}  // namespace fulmen::detail
