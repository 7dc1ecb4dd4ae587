#include "group_state.h"

#include <algorithm>
#include <boost/json.hpp>
#include <set>

#include "fulmen/core/optim/optimizer_state.h"
#include "fulmen/core/support/error.h"

namespace json = boost::json;

namespace fulmen {
namespace detail {
namespace {

std::set<std::string> keys_of_group(const Optimizer& optimizer, std::size_t group) {
  std::set<std::string> keys;
  const auto parameters = optimizer.parameters(group);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    keys.insert(parameter_key(parameters[i], group, i));
  }
  return keys;
}

void check_parameter_names(const Optimizer& optimizer,
                           const json::object& saved,
                           std::size_t group,
                           std::vector<std::string>& problems) {
  const auto* names = saved.if_contains("parameters");
  if (names == nullptr || !names->is_array()) {
    problems.push_back(sentence("group ", group, " of the file has no list of parameters"));
    return;
  }
  auto expected = keys_of_group(optimizer, group);
  for (const auto& name : names->get_array()) {
    const std::string text =
        name.is_string() ? std::string(name.get_string()) : json::serialize(name);
    if (expected.erase(text) == 0) {
      problems.push_back(sentence(
          "group ", group, " of the file has parameter ", text, ", which this group has not"));
    }
  }
  for (const auto& name : expected) {
    problems.push_back(sentence("group ", group, " of the file lacks parameter ", name));
  }
}

void check_hyperparameters(const Optimizer& optimizer,
                           const json::object& saved,
                           std::size_t group,
                           std::vector<std::string>& problems) {
  const auto* values = saved.if_contains("hyperparameters");
  if (values == nullptr || !values->is_object()) {
    problems.push_back(sentence("group ", group, " of the file has no hyperparameters"));
    return;
  }
  const auto known = optimizer.hyperparameter_names(group);
  for (const auto& [key, value] : values->get_object()) {
    const std::string name(key);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      problems.push_back(
          sentence("group ", group, " of the file has the unknown hyperparameter ", name));
      continue;
    }
    try {
      json_to_double(value, name);
    } catch (const CheckpointError& error) {
      problems.push_back(sentence("group ", group, ": ", error.what()));
    }
  }
}

}  // namespace

std::string parameter_key(const NamedParameter& parameter, std::size_t group, std::size_t index) {
  return parameter.name.empty() ? sentence("#", group, ".", index) : parameter.name;
}

std::map<std::string, Place, std::less<>> places_by_key(const Optimizer& optimizer) {
  std::map<std::string, Place, std::less<>> places;
  for (std::size_t group = 0; group < optimizer.group_count(); ++group) {
    const auto parameters = optimizer.parameters(group);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      places.emplace(parameter_key(parameters[i], group, i), Place{group, i});
    }
  }
  return places;
}

std::pair<std::string_view, std::string_view> split_tensor_name(std::string_view name) {
  const auto slash = name.rfind('/');
  if (slash == std::string_view::npos) return {name, {}};
  return {name.substr(0, slash), name.substr(slash + 1)};
}

json::object groups_to_json(const Optimizer& optimizer) {
  json::array groups;
  for (std::size_t group = 0; group < optimizer.group_count(); ++group) {
    json::array names;
    const auto parameters = optimizer.parameters(group);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      names.emplace_back(parameter_key(parameters[i], group, i));
    }
    json::object values;
    for (const auto& name : optimizer.hyperparameter_names(group)) {
      values[name] = double_to_json(optimizer.hyperparameter(group, name));
    }
    groups.push_back(
        json::object{{"parameters", std::move(names)}, {"hyperparameters", std::move(values)}});
  }
  return {{"optimizer", json::string(optimizer.name())}, {"groups", std::move(groups)}};
}

void check_groups(const Optimizer& optimizer,
                  const json::object& values,
                  std::vector<std::string>& problems) {
  const auto* name = values.if_contains("optimizer");
  if (name == nullptr || !name->is_string()) {
    problems.push_back("the file does not name its optimizer");
  } else if (std::string_view(name->get_string()) != optimizer.name()) {
    problems.push_back(sentence("the file holds the state of ",
                                std::string(name->get_string()),
                                ", not of ",
                                optimizer.name()));
  }
  const auto* groups = values.if_contains("groups");
  if (groups == nullptr || !groups->is_array()) {
    problems.push_back("the file has no parameter groups");
    return;
  }
  const auto& saved = groups->get_array();
  if (saved.size() != optimizer.group_count()) {
    problems.push_back(sentence("the file has ",
                                saved.size(),
                                " parameter groups, the optimizer has ",
                                optimizer.group_count()));
    return;
  }
  for (std::size_t group = 0; group < saved.size(); ++group) {
    if (!saved[group].is_object()) {
      problems.push_back(sentence("group ", group, " of the file is not an object"));
      continue;
    }
    check_parameter_names(optimizer, saved[group].get_object(), group, problems);
    check_hyperparameters(optimizer, saved[group].get_object(), group, problems);
  }
}

std::vector<std::pair<std::string, double>> saved_hyperparameters(const json::object& values,
                                                                  std::size_t group) {
  std::vector<std::pair<std::string, double>> result;
  const auto& saved = values.at("groups").as_array().at(group).as_object();
  for (const auto& [key, value] : saved.at("hyperparameters").as_object()) {
    result.emplace_back(std::string(key), json_to_double(value, std::string(key)));
  }
  return result;
}

void fail_if_any(std::string_view where, const std::vector<std::string>& problems) {
  if (problems.empty()) return;
  std::string text;
  for (const auto& problem : problems) text += "\n  " + problem;
  fail<CheckpointError>(where, "this state does not fit, and nothing was changed:", text);
}

}  // namespace detail

std::vector<std::string> missing_hyperparameters(const Optimizer& optimizer,
                                                 const StateDict& state) {
  std::vector<std::string> problems;
  detail::check_groups(optimizer, state.values, problems);
  if (!problems.empty()) return {};
  std::vector<std::string> missing;
  for (std::size_t group = 0; group < optimizer.group_count(); ++group) {
    std::set<std::string> saved;
    for (const auto& [name, value] : detail::saved_hyperparameters(state.values, group))
      saved.insert(name);
    for (const auto& name : optimizer.hyperparameter_names(group)) {
      if (!saved.contains(name)) missing.push_back(detail::sentence(name, " of group ", group));
    }
  }
  return missing;
}

}  // namespace fulmen
