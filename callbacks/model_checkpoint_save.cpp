#include <algorithm>
#include <system_error>
#include <utility>

#include "callbacks/monitoring.h"
#include "fulmen/callbacks/model_checkpoint.h"
#include "fulmen/core/checkpoint/checkpoint.h"
#include "fulmen/core/loggers/logger.h"
#include "fulmen/core/support/error.h"
#include "fulmen/core/support/log.h"

namespace fulmen {
namespace {

using std::filesystem::path;

constexpr std::string_view kWhere = "ModelCheckpoint";

bool is_there(const path& file) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::symlink_status(file, error));
}

bool same_file(const path& a, const path& b) {
  std::error_code error;
  return !a.empty() && !b.empty() && std::filesystem::equivalent(a, b, error);
}

}  // namespace

bool ModelCheckpoint::is_better(const Kept& candidate, const Kept& than) const {
  if (options_.monitor.empty()) return candidate.order > than.order;
  return detail::is_better(options_.mode, candidate.score, than.score);
}

const ModelCheckpoint::Kept* ModelCheckpoint::best() const {
  const Kept* found = nullptr;
  for (const auto& kept : state_.kept) {
    if (found == nullptr || is_better(kept, *found)) found = &kept;
  }
  return found;
}

const ModelCheckpoint::Kept* ModelCheckpoint::worst() const {
  const Kept* found = nullptr;
  for (const auto& kept : state_.kept) {
    if (found == nullptr || is_better(*found, kept)) found = &kept;
  }
  return found;
}

bool ModelCheckpoint::enters(const Kept& candidate) const {
  if (options_.save_top_k == -1) return true;
  if (std::ssize(state_.kept) < options_.save_top_k) return true;
  return options_.save_top_k > 0 && is_better(candidate, *worst());
}

void ModelCheckpoint::refuse_unknown_metrics(Context& context) const {
  std::vector<std::string> needed = names_.metrics();
  if (!options_.monitor.empty()) needed.insert(needed.begin(), options_.monitor);
  for (const auto& name : needed) {
    if (context.metric(name)) continue;
    const bool monitored = name == options_.monitor;
    const char* use = monitored ? "monitor" : "filename";
    // A metric of the training step may come later; one of validation would be there now.
    if (validated_ || (!context.plan().has_validation && !monitored)) {
      fail<ConfigError>(kWhere,
                        use,
                        " needs the metric '",
                        name,
                        "', which was not logged. Logged were: ",
                        detail::known_metrics(context),
                        ". Log it in a step, or change ",
                        use,
                        ".");
    }
    context.log().warning_once(
        kWhere, ": nothing is saved while the metric '", name, "' of ", use, " is not logged.");
    return;
  }
}

void ModelCheckpoint::save_if_kept(Context& context) {
  const auto& progress = context.progress();
  const bool trained = progress.global_step > 0 || progress.total_batches > 0;
  const bool saved = progress.global_step == state_.saved_step &&
                     (progress.global_step > 0 || progress.total_batches == state_.saved_batches);
  const bool wanted = options_.save_top_k != 0 || options_.save_last != SaveLast::kNo;
  if (!trained || saved || !wanted) return;
  if (!metrics_known(context)) return refuse_unknown_metrics(context);

  State next = state_;
  if (!options_.monitor.empty()) {
    next.current_score = detail::from_rank_zero(context, *context.metric(options_.monitor));
  }
  Kept candidate{.name = {}, .score = next.current_score.value_or(0), .order = ++next.order};
  const bool kept = enters(candidate);
  if (!kept && options_.save_last == SaveLast::kNo) {
    state_.current_score = next.current_score;
    ++declined_;
    if (options_.verbose) {
      context.log().info(kWhere,
                         ": ",
                         options_.monitor,
                         " = ",
                         candidate.score,
                         " is not among the best ",
                         options_.save_top_k,
                         "; nothing saved.");
    }
    return;
  }
  candidate.name =
      free_name(context, names_.format(progress.epoch, progress.global_step, [&](auto key) {
        return context.metric(key);
      }));
  next.last = candidate.name;
  next.saved_step = progress.global_step;
  next.saved_batches = progress.total_batches;
  next.saved_epoch = progress.epoch;
  if (kept && options_.save_top_k > 0 && std::ssize(next.kept) == options_.save_top_k) {
    const auto evicted = worst()->name;
    std::erase_if(next.kept, [&](const Kept& old) { return old.name == evicted; });
    next.to_remove.push_back(evicted);
  }
  if (kept) next.kept.push_back(candidate);
  commit(context,
         std::move(next),
         options_.save_weights_only ? CheckpointScope::kWeightsOnly : CheckpointScope::kEverything);
}

void ModelCheckpoint::save_forced(Context& context, const CheckpointNameTemplate& names) {
  const auto& progress = context.progress();
  const bool saved = progress.global_step == state_.saved_step &&
                     progress.epoch == state_.saved_epoch &&
                     progress.total_batches == state_.saved_batches && !options_.save_weights_only;
  if (saved && !state_.last.empty() && is_there(directory_ / state_.last)) {
    if (detail::is_writer(context)) write_pointer(directory_, "last", state_.last);
    return;
  }
  // saved_step stays: a save that is still to come at this step is made by the resumed run.
  State next = state_;
  next.last = free_name(context, names.format(progress.epoch, progress.global_step, {}));
  commit(context, std::move(next), CheckpointScope::kEverything);
}

void ModelCheckpoint::commit(Context& context, State next, CheckpointScope scope) {
  const auto is_kept = [&](const std::string& name) {
    return std::ranges::any_of(next.kept, [&](const Kept& kept) { return kept.name == name; });
  };
  const bool drops_last = !state_.last.empty() && !is_kept(state_.last) &&
                          std::ranges::find(next.to_remove, state_.last) == next.to_remove.end();
  if (drops_last) next.to_remove.push_back(state_.last);
  const auto* top = best();
  const std::string best_before = top == nullptr ? "" : top->name;

  // The checkpoint holds the state in which it is there itself, so that a resumed run knows it.
  std::swap(state_, next);
  try {
    context.save_checkpoint(directory_ / state_.last, scope);
  } catch (...) {
    std::swap(state_, next);
    throw;
  }
  ++saves_;
  last_save_time_ = now();
  write_pointers(context, best_before);
  remove_dropped(context);
  if (options_.verbose)
    context.log().info(kWhere, ": saved '", (directory_ / state_.last).string(), "'.");
  if (!detail::is_writer(context)) return;
  for (const auto& logger : context.loggers())
    logger->after_save_checkpoint(directory_ / state_.last);
}

std::string ModelCheckpoint::free_name(Context& context, const std::string& wanted) {
  const auto name = [&](std::int64_t version) {
    return version == 0 ? wanted : wanted + "-v" + std::to_string(version);
  };
  std::int64_t version = 0;
  while (is_there(directory_ / name(version))) ++version;
  version = detail::agree_on_max(context, version);
  if (version == 0) return wanted;
  if (!options_.enable_version_counter) {
    fail<CheckpointError>(kWhere,
                          "'",
                          (directory_ / wanted).string(),
                          "' exists already and enable_version_counter "
                          "is off. Move it away, or choose another dirpath or filename.");
  }
  const bool own = wanted == state_.last || std::ranges::any_of(state_.kept, [&](const Kept& kept) {
                     return kept.name.starts_with(wanted);
                   });
  if (!own && !std::exchange(warned_of_clash_, true)) {
    context.log().warning(kWhere,
                          ": '",
                          wanted,
                          "' in '",
                          directory_.string(),
                          "' exists already, from another "
                          "callback or an earlier run; saving as '",
                          name(version),
                          "'.");
  }
  return name(version);
}

void ModelCheckpoint::write_pointers(Context& context, const std::string& best_before) {
  if (!detail::is_writer(context)) return;
  write_pointer(directory_, "last", state_.last);
  const auto* top = best();
  if (top == nullptr || (top->name == best_before && saves_ > 1)) return;
  try {
    const auto old = read_pointer(directory_, "best");
    const bool foreign = old && old->filename() != best_before && old->filename() != top->name;
    if (foreign && !std::exchange(warned_of_clash_, true)) {
      context.log().warning(kWhere,
                            ": the pointer 'best' in '",
                            directory_.string(),
                            "' named '",
                            old->filename().string(),
                            "' of another callback or an earlier run; now '",
                            top->name,
                            "'.");
    }
  } catch (const CheckpointError&) {
    // A pointer to something that is gone: replaced below.
  }
  write_pointer(directory_, "best", top->name);
}

void ModelCheckpoint::remove_dropped(Context& context) {
  std::vector<std::string> protected_names;
  for (const auto& name : std::exchange(state_.to_remove, {})) {
    const path directory = directory_ / name;
    if (same_file(directory, context.restored_from())) {
      protected_names.push_back(name);
    } else if (!detail::is_writer(context)) {
      continue;
    } else if (!is_there(directory)) {
      context.log().warning(
          kWhere, ": '", directory.string(), "' was to be removed and is gone already.");
    } else {
      try {
        remove_checkpoint(directory);
      } catch (const std::exception& error) {
        context.log().warning(
            kWhere, ": '", directory.string(), "' could not be removed: ", error.what());
      }
    }
  }
  state_.to_remove = std::move(protected_names);
}

}  // namespace fulmen
