#include "core/distributed/mesh_axes.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <set>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

constexpr std::string_view kWhere = "DeviceMesh";
constexpr std::array<std::string_view, 3> kDataNames = {"data", "replicate", "shard"};
constexpr std::array<std::string_view, 5> kModelNames = {
    "model", "spatial", "tensor", "sequence", "pipeline"};

std::string describe(const std::vector<MeshAxis>& axes) {
  std::string text;
  for (const auto& axis : axes) {
    text += (text.empty() ? "" : ",") + axis.name + "=" +
            (axis.size == -1 ? std::string("?") : std::to_string(axis.size));
  }
  return text;
}

void check_name(const std::string& name, std::set<std::string>& seen) {
  const bool plain = !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  if (!plain) {
    fail<ConfigError>(
        kWhere, "the name of an axis has small letters, digits, _ and -, got \"", name, "\".");
  }
  if (!seen.insert(name).second) {
    fail<ConfigError>(kWhere, "the axis name \"", name, "\" is used twice. Rename one.");
  }
}

std::optional<AxisKind> kind_by_name(const std::string& name) {
  if (std::ranges::find(kDataNames, name) != kDataNames.end()) return AxisKind::kDataLike;
  if (std::ranges::find(kModelNames, name) != kModelNames.end()) return AxisKind::kModelLike;
  return std::nullopt;
}

void check_size(const MeshAxis& axis) {
  if (axis.size >= 1 || axis.size == -1) return;
  fail<ConfigError>(kWhere,
                    "the size of the axis \"",
                    axis.name,
                    "\" must be at least 1, or -1 for what is left; got ",
                    axis.size,
                    ".");
}

void check_default(const MeshAxis& axis) {
  if (*axis.kind != AxisKind::kDataLike) return;
  if (axis.default_placement.kind != Placement::Kind::kShared) return;
  fail<ConfigError>(kWhere,
                    "the axis \"",
                    axis.name,
                    "\" is data-like, where gradients are a mean: its default placement cannot be ",
                    "shared().");
}

/// The kind of an axis: what it says, else that of the axis it is a part of, else what its name
/// says, else that of its parts.
void settle_kind(MeshAxis& axis, const MeshAxis* whole) {
  if (whole != nullptr && whole->kind) {
    if (axis.kind && axis.kind != whole->kind) {
      fail<ConfigError>(kWhere,
                        "the axis \"",
                        axis.name,
                        "\" has another kind than \"",
                        whole->name,
                        "\", of which it is a part. Leave .kind out at one of them.");
    }
    axis.kind = whole->kind;
  }
  if (!axis.kind) axis.kind = kind_by_name(axis.name);
  if (axis.kind || !axis.parts.empty()) return;
  fail<ConfigError>(kWhere,
                    "whether the axis \"",
                    axis.name,
                    "\" is data-like (its ranks have different samples) or model-like (they share ",
                    "the work on a sample) cannot be told from its name. Set .kind.");
}

/// Fills in what an axis inherits from the one it is a part of, and what follows from its parts.
void settle(MeshAxis& axis, const MeshAxis* whole, std::set<std::string>& seen) {
  check_name(axis.name, seen);
  check_size(axis);
  settle_kind(axis, whole);
  if (whole != nullptr) {
    // So a split leaves what unmarked parameters mean as it was.
    if (axis.default_placement == replicated()) axis.default_placement = whole->default_placement;
    if (!axis.shares_random_streams) axis.shares_random_streams = whole->shares_random_streams;
  }
  for (auto& part : axis.parts) settle(part, &axis, seen);
  if (!axis.kind) {
    const auto same = [&](const MeshAxis& part) { return part.kind == axis.parts.front().kind; };
    if (std::ranges::all_of(axis.parts, same)) axis.kind = axis.parts.front().kind;
    return;  // Else it is only a name for parts of both kinds.
  }
  check_default(axis);
  if (!axis.shares_random_streams) {
    axis.shares_random_streams = *axis.kind == AxisKind::kModelLike;
  }
}

/// Saturates far above any number of ranks, and far below what overflows.
std::int64_t times(std::int64_t product, std::int64_t size) {
  constexpr std::int64_t kMost = std::int64_t{1} << 32;
  return std::min(product * size, kMost);
}

/// Sizes of axes that have parts, as far as the parts say them.
void multiply_parts(MeshAxis& axis) {
  if (axis.parts.empty()) return;
  std::int64_t product = 1;
  bool open = false;
  for (auto& part : axis.parts) {
    multiply_parts(part);
    open |= part.size == -1;
    product = times(product, part.size == -1 ? 1 : part.size);
  }
  if (open) return;
  if (axis.size == -1 && product <= std::numeric_limits<int>::max()) {
    axis.size = static_cast<int>(product);
  }
  if (axis.size == product) return;
  fail<ConfigError>(kWhere,
                    "the parts of the axis \"",
                    axis.name,
                    "\" (",
                    describe(axis.parts),
                    ") multiply to ",
                    product,
                    ", but its size is ",
                    axis.size,
                    ".");
}

/// Gives the one open axis of the list what is left of `total`.
void fill_open(std::vector<MeshAxis>& axes, std::int64_t total, const std::string& of) {
  std::int64_t product = 1;
  MeshAxis* open = nullptr;
  for (auto& axis : axes) {
    if (axis.size != -1) {
      product = times(product, axis.size);
    } else if (open != nullptr) {
      fail<ConfigError>(kWhere,
                        "the axes \"",
                        open->name,
                        "\" and \"",
                        axis.name,
                        "\" both have no size. At most one may be left open.");
    } else {
      open = &axis;
    }
  }
  if (open != nullptr && total % product == 0) {
    open->size = static_cast<int>(total / product);
  } else if (open != nullptr || product != total) {
    fail<ConfigError>(kWhere,
                      "the sizes of ",
                      describe(axes),
                      " multiply to ",
                      product,
                      ", which ",
                      open != nullptr ? "does not divide" : "is not",
                      " the ",
                      total,
                      " ranks of ",
                      of,
                      ". Change the mesh, or the number of devices.");
  }
  for (auto& axis : axes) {
    if (!axis.parts.empty()) fill_open(axis.parts, axis.size, "the axis \"" + axis.name + "\"");
  }
}

void add_leaves(const std::vector<MeshAxis>& axes, std::vector<MeshAxis>& leaves) {
  for (const auto& axis : axes) {
    if (axis.parts.empty()) {
      leaves.push_back(axis);
    } else {
      add_leaves(axis.parts, leaves);
    }
  }
}

const MeshAxis* find(const std::vector<MeshAxis>& axes, std::string_view name) {
  for (const auto& axis : axes) {
    if (axis.name == name) return &axis;
    if (const auto* part = find(axis.parts, name)) return part;
  }
  return nullptr;
}

}  // namespace

std::vector<MeshAxis> resolve_axes(std::vector<MeshAxis> axes, int world_size) {
  if (axes.empty()) fail<ConfigError>(kWhere, "needs at least one axis.");
  std::set<std::string> seen;
  for (auto& axis : axes) settle(axis, nullptr, seen);
  for (auto& axis : axes) multiply_parts(axis);
  fill_open(axes, world_size, "the world");
  return axes;
}

std::vector<MeshAxis> leaf_axes(const std::vector<MeshAxis>& axes) {
  std::vector<MeshAxis> leaves;
  add_leaves(axes, leaves);
  return leaves;
}

std::vector<std::string> leaves_of(const std::vector<MeshAxis>& axes, std::string_view name) {
  const auto* axis = find(axes, name);
  if (axis == nullptr) return {};
  std::vector<std::string> names;
  for (const auto& leaf : leaf_axes({*axis})) names.push_back(leaf.name);
  return names;
}

std::string known_names(const std::vector<MeshAxis>& axes) {
  std::string text;
  for (const auto& axis : axes) {
    text += (text.empty() ? "\"" : ", \"") + axis.name + "\"";
    if (!axis.parts.empty()) text += ", " + known_names(axis.parts);
  }
  return text;
}

std::vector<int> coordinates(const std::vector<MeshAxis>& leaves, int rank) {
  std::vector<int> result(leaves.size());
  for (std::size_t i = leaves.size(); i-- > 0;) {
    result[i] = rank % leaves[i].size;
    rank /= leaves[i].size;
  }
  return result;
}

std::vector<int> members(const std::vector<MeshAxis>& leaves,
                         int rank,
                         const std::vector<bool>& varies) {
  const auto own = coordinates(leaves, rank);
  int world = 1;
  for (const auto& leaf : leaves) world *= leaf.size;
  std::vector<int> result;
  for (int other = 0; other < world; ++other) {
    const auto place = coordinates(leaves, other);
    bool member = true;
    for (std::size_t i = 0; i < leaves.size(); ++i) member &= varies[i] || place[i] == own[i];
    if (member) result.push_back(other);
  }
  return result;
}

}  // namespace fulmen::detail
