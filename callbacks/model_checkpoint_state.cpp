#include <boost/json/array.hpp>
#include <boost/json/value.hpp>
#include <system_error>
#include <utility>

#include "callbacks/monitoring.h"
#include "fulmen/callbacks/model_checkpoint.h"
#include "fulmen/core/checkpoint/checkpoint.h"
#include "fulmen/core/support/error.h"
#include "fulmen/core/support/log.h"

namespace fulmen {
namespace {

using std::filesystem::path;

constexpr std::string_view kWhere = "ModelCheckpoint";

bool same_directory(const path& a, const path& b) {
  std::error_code error;
  return a == b || std::filesystem::equivalent(a, b, error);
}

bool is_there(const path& file) {
  std::error_code error;
  return std::filesystem::exists(file, error);
}

/// Names come from a file and go to a function that deletes: they must not lead out of the
/// directory.
std::string plain_name(std::string name) {
  if (name.find('/') != std::string::npos || name.starts_with('.')) {
    fail<CheckpointError>(kWhere,
                          "the state names a checkpoint '",
                          name,
                          "', which is not a plain file name. The "
                          "checkpoint is damaged; restore its weights only.");
  }
  return name;
}

}  // namespace

path ModelCheckpoint::best_model_path() const {
  const auto* top = best();
  return top == nullptr ? foreign_best_ : directory_ / top->name;
}

std::optional<double> ModelCheckpoint::best_model_score() const {
  const auto* top = options_.monitor.empty() ? nullptr : best();
  return top == nullptr ? std::nullopt : std::optional(top->score);
}

path ModelCheckpoint::last_model_path() const {
  return state_.last.empty() ? path() : directory_ / state_.last;
}

std::map<path, double> ModelCheckpoint::best_k_models() const {
  std::map<path, double> models;
  if (options_.monitor.empty()) return models;
  for (const auto& kept : state_.kept) models[directory_ / kept.name] = kept.score;
  return models;
}

path ModelCheckpoint::kth_best_model_path() const {
  const auto* last = worst();
  return last == nullptr ? path() : directory_ / last->name;
}

std::optional<double> ModelCheckpoint::kth_value() const {
  const auto* last = options_.monitor.empty() ? nullptr : worst();
  return last == nullptr ? std::nullopt : std::optional(last->score);
}

StateDict ModelCheckpoint::state_dict() const {
  boost::json::array kept;
  for (const auto& one : state_.kept) {
    kept.push_back(boost::json::object{
        {"name", one.name}, {"score", double_to_json(one.score)}, {"order", one.order}});
  }
  boost::json::array to_remove;
  for (const auto& name : state_.to_remove) to_remove.emplace_back(name);
  StateDict state;
  auto& values = state.values;
  values["directory"] = directory_.string();
  values["best_model_path"] = best_model_path().string();
  values["kept"] = std::move(kept);
  values["last"] = state_.last;
  values["to_remove"] = std::move(to_remove);
  if (state_.current_score) values["current_score"] = double_to_json(*state_.current_score);
  values["order"] = state_.order;
  values["saved_step"] = state_.saved_step;
  values["saved_batches"] = state_.saved_batches;
  values["saved_epoch"] = state_.saved_epoch;
  values["trigger_step"] = state_.trigger_step;
  values["postponed"] = state_.postponed;
  return state;
}

void ModelCheckpoint::load_state_dict(const StateDict& state) {
  const auto& values = state.values;
  State loaded;
  for (const auto& one : require_array(values, "kept", kWhere)) {
    const auto* fields = one.if_object();
    const auto& object = fields != nullptr ? *fields : boost::json::object();
    const auto* score = object.if_contains("score");
    loaded.kept.push_back(
        {.name = plain_name(require_string(object, "name", kWhere)),
         .score = json_to_double(score != nullptr ? *score : boost::json::value(), kWhere),
         .order = require_int(object, "order", kWhere)});
  }
  for (const auto& name : require_array(values, "to_remove", kWhere)) {
    if (const auto* text = name.if_string()) loaded.to_remove.push_back(plain_name(text->c_str()));
  }
  if (const auto* score = values.if_contains("current_score")) {
    loaded.current_score = json_to_double(*score, kWhere);
  }
  loaded.last = plain_name(require_string(values, "last", kWhere));
  loaded.order = require_int(values, "order", kWhere);
  loaded.saved_step = require_int(values, "saved_step", kWhere);
  loaded.saved_batches = require_int(values, "saved_batches", kWhere);
  loaded.saved_epoch = require_int(values, "saved_epoch", kWhere);
  loaded.trigger_step = require_int(values, "trigger_step", kWhere);
  loaded.postponed = require_bool(values, "postponed", kWhere);
  foreign_best_ = require_string(values, "best_model_path", kWhere);
  loaded_directory_ = require_string(values, "directory", kWhere);
  state_ = std::move(loaded);
}

void ModelCheckpoint::adopt_loaded_state(Context& context) {
  if (detail::is_writer(context)) remove_stale_temporaries(directory_);
  if (loaded_directory_.empty()) {
    state_.trigger_step = context.progress().global_step;
    return;
  }
  const auto from = std::exchange(loaded_directory_, {});
  if (!same_directory(from, directory_)) {
    // What lies elsewhere is not ours to rank or to remove.
    state_.kept.clear();
    state_.to_remove.clear();
    state_.last.clear();
    return;
  }
  foreign_best_.clear();
  clean_up_after_resume(context);
}

void ModelCheckpoint::clean_up_after_resume(Context& context) {
  std::erase_if(state_.kept, [&](const Kept& kept) {
    if (is_there(directory_ / kept.name)) return false;
    context.log().warning(
        kWhere, ": '", (directory_ / kept.name).string(), "' was among the best and is gone.");
    return true;
  });
  if (!is_there(directory_ / state_.last)) state_.last.clear();
  // The run before was ended between a save and its removals, or it had been restored from one of
  // these. What is newer than our checkpoint was written later under an old name, and stays.
  std::error_code error;
  const auto ours = std::filesystem::last_write_time(context.restored_from(), error);
  std::erase_if(state_.to_remove, [&](const std::string& name) {
    std::error_code missing;
    const auto time = std::filesystem::last_write_time(directory_ / name, missing);
    return error || missing || time > ours;
  });
  remove_dropped(context);
}

}  // namespace fulmen
