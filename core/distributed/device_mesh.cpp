#include "fulmen/core/distributed/device_mesh.h"

#include <algorithm>
#include <charconv>

#include "core/distributed/mesh_axes.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

constexpr std::string_view kWhere = "DeviceMesh";

/// Puts `parts` into the axis of that name, wherever it stands. False: there is none.
bool put_parts(std::vector<MeshAxis>& axes, std::string_view name, std::vector<MeshAxis>& parts) {
  for (auto& axis : axes) {
    if (axis.name == name) {
      if (!axis.parts.empty()) {
        fail<ConfigError>(kWhere, "the axis \"", name, "\" has parts already; split one of them.");
      }
      axis.parts = std::move(parts);
      return true;
    }
    if (put_parts(axis.parts, name, parts)) return true;
  }
  return false;
}

/// Names of all axes, those with parts before their parts.
void add_names(const std::vector<MeshAxis>& axes, std::vector<std::string>& names) {
  for (const auto& axis : axes) {
    names.push_back(axis.name);
    add_names(axis.parts, names);
  }
}

std::string describe_axes(const std::vector<MeshAxis>& axes) {
  std::string text;
  for (const auto& axis : axes) {
    text += (text.empty() ? "" : ",") + axis.name + "=" + std::to_string(axis.size);
    if (!axis.parts.empty()) text += "(" + describe_axes(axis.parts) + ")";
  }
  return text;
}

}  // namespace

struct DeviceMesh::State {
  std::shared_ptr<World> world;
  std::vector<MeshAxis> axes;
  std::vector<MeshAxis> leaves;
  std::vector<int> place;  // Of this rank, for each leaf.

  std::vector<std::size_t> indices(std::string_view name) const {
    const auto names = detail::leaves_of(axes, name);
    if (names.empty()) {
      fail<ConfigError>(
          kWhere, "there is no axis \"", name, "\"; known are ", detail::known_names(axes), ".");
    }
    std::vector<std::size_t> result;
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      if (std::ranges::find(names, leaves[i].name) != names.end()) result.push_back(i);
    }
    return result;
  }

  ProcessGroup group(const std::vector<bool>& varies) const {
    std::string name;
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      if (varies[i]) name += (name.empty() ? "" : " x ") + leaves[i].name;
    }
    return world->group(detail::members(leaves, world->rank(), varies),
                        name.empty() ? "one rank" : name);
  }

  ProcessGroup group_of(AxisKind kind) const {
    std::vector<bool> varies;
    for (const auto& leaf : leaves) varies.push_back(*leaf.kind == kind);
    return group(varies);
  }
};

DeviceMesh::DeviceMesh(std::vector<MeshAxis> axes, std::shared_ptr<World> world)
    : state_(std::make_shared<State>()) {
  if (world == nullptr) fail<ConfigError>(kWhere, "needs a world, got a null pointer.");
  state_->axes = detail::resolve_axes(std::move(axes), world->size());
  state_->leaves = detail::leaf_axes(state_->axes);
  state_->place = detail::coordinates(state_->leaves, world->rank());
  state_->world = std::move(world);
  // All ranks make the usual groups here, in one order, so that they cannot meet in another one
  // later, nor in the middle of a step.
  state_->world->all();
  std::vector<std::string> names;
  add_names(state_->axes, names);
  for (const auto& name : names) group(name);
  data_group();
  model_group();
}

std::vector<MeshAxis> DeviceMesh::resolve(std::vector<MeshAxis> axes, int world_size) {
  return detail::resolve_axes(std::move(axes), world_size);
}

const std::shared_ptr<World>& DeviceMesh::world() const {
  return state_->world;
}
const std::vector<MeshAxis>& DeviceMesh::axes() const {
  return state_->leaves;
}

std::vector<std::string> DeviceMesh::leaves(std::string_view axis) const {
  return detail::leaves_of(state_->axes, axis);
}

bool DeviceMesh::has(std::string_view name) const {
  return !detail::leaves_of(state_->axes, name).empty();
}

AxisKind DeviceMesh::kind(std::string_view axis) const {
  const auto leaves = state_->indices(axis);
  const auto kind = *state_->leaves[leaves.front()].kind;
  for (const auto i : leaves) {
    if (*state_->leaves[i].kind == kind) continue;
    fail<ConfigError>(kWhere,
                      "the axis \"",
                      axis,
                      "\" has no kind: its parts are data-like and model-like. Ask for a part.");
  }
  return kind;
}

int DeviceMesh::size(std::string_view axis) const {
  int product = 1;
  for (const auto i : state_->indices(axis)) product *= state_->leaves[i].size;
  return product;
}

int DeviceMesh::coordinate(std::string_view axis) const {
  int index = 0;
  for (const auto i : state_->indices(axis)) {
    index = index * state_->leaves[i].size + state_->place[i];
  }
  return index;
}

ProcessGroup DeviceMesh::group(const std::vector<std::string>& axes) const {
  std::vector<bool> varies(state_->leaves.size(), false);
  for (const auto& axis : axes) {
    for (const auto i : state_->indices(axis)) varies[i] = true;
  }
  return state_->group(varies);
}

ProcessGroup DeviceMesh::group(std::initializer_list<std::string_view> axes) const {
  return group(std::vector<std::string>(axes.begin(), axes.end()));
}

ProcessGroup DeviceMesh::group(std::string_view axis) const {
  return group(std::vector<std::string>{std::string(axis)});
}

ProcessGroup DeviceMesh::data_group() const {
  return state_->group_of(AxisKind::kDataLike);
}
ProcessGroup DeviceMesh::model_group() const {
  return state_->group_of(AxisKind::kModelLike);
}

int DeviceMesh::random_stream() const {
  int index = 0;
  for (std::size_t i = 0; i < state_->leaves.size(); ++i) {
    const auto& leaf = state_->leaves[i];
    if (!*leaf.shares_random_streams) index = index * leaf.size + state_->place[i];
  }
  return index;
}

DeviceMesh DeviceMesh::split(std::string_view axis, std::vector<MeshAxis> parts) const {
  if (parts.empty()) fail<ConfigError>(kWhere, "split(\"", axis, "\") got no parts.");
  auto axes = state_->axes;
  if (!put_parts(axes, axis, parts)) state_->indices(axis);  // Throws.
  return DeviceMesh(std::move(axes), state_->world);
}

std::string DeviceMesh::describe() const {
  return describe_axes(state_->axes);
}

std::vector<MeshAxis> parse_mesh(std::string_view text) {
  std::vector<MeshAxis> axes;
  while (true) {
    const auto end = std::min(text.find(','), text.size());
    const auto entry = text.substr(0, end);
    const auto equals = entry.find('=');
    const auto digits = equals == entry.npos ? std::string_view() : entry.substr(equals + 1);
    MeshAxis axis{.name = std::string(entry.substr(0, equals))};
    const auto [rest, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), axis.size);
    if (digits.empty() || error != std::errc() || rest != digits.data() + digits.size()) {
      fail<ConfigError>(
          "parse_mesh",
          "expected names with sizes like \"data=2,model=2\" (-1: what is left), got \"",
          text,
          "\".");
    }
    axes.push_back(std::move(axis));
    if (end == text.size()) return axes;
    text.remove_prefix(end + 1);
  }
}

}  // namespace fulmen
