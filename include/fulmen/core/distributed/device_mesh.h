#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/core/distributed/placement.h"
#include "fulmen/core/distributed/world.h"

namespace fulmen {

/// What the ranks along an axis divide among them.
enum class AxisKind {
  kDataLike,   ///< The samples: gradients are a weighted mean.
  kModelLike,  ///< One sample's work: gradients of shared parameters are a sum.
};

/// An axis of a mesh. `{"data", 2}` and `{"model", 2}` are enough for the usual names: "data",
/// "replicate" and "shard" are data-like, "model", "spatial", "tensor", "sequence" and "pipeline"
/// model-like. Other names say their kind.
struct MeshAxis {
  std::string name;
  int size = -1;  ///< -1: what is left of the world; at most one axis may say so.
  std::optional<AxisKind> kind = {};
  /// Of parameters that nobody marked.
  Placement default_placement = replicated();
  /// Whether the ranks along the axis draw the same random numbers. Unset: model-like ones do.
  std::optional<bool> shares_random_streams = {};
  /// The axis as a product of smaller ones, the last fastest; `size` may be left open then. Parts
  /// inherit what they leave out: kind, default placement, random streams. A tree of named groups
  /// is axes with parts that have parts; one whose parts are of both kinds has no kind itself.
  std::vector<MeshAxis> parts = {};
};

/// The ranks of a world as a grid with named axes, the last axis fastest: neighbours along it are
/// neighbours in rank. A small value; copies share the groups. Names may be axes, their parts, or
/// axes that were split.
class DeviceMesh {
 public:
  /// Collective: makes the groups of all named axes, data_group() and model_group(). Throws
  /// ConfigError: sizes that do not multiply to the size of the world, two open sizes, an empty or
  /// duplicate name, a size below 1, a kind that cannot be told from the name.
  DeviceMesh(std::vector<MeshAxis> axes, std::shared_ptr<World> world);
  /// Checks the same without a world, for example before ranks are started; returns the axes with
  /// sizes and kinds filled in. With parts resolved, and default placements that fit the kind.
  static std::vector<MeshAxis> resolve(std::vector<MeshAxis> axes, int world_size);

  const std::shared_ptr<World>& world() const;
  int size() const { return world()->size(); }

  /// Axes that have no parts, in order.
  const std::vector<MeshAxis>& axes() const;
  /// Names of the axes without parts that make up an axis: itself, or its parts. Empty for an
  /// unknown name.
  std::vector<std::string> leaves(std::string_view axis) const;
  bool has(std::string_view name) const;
  /// Throws ConfigError for an axis with parts of both kinds.
  AxisKind kind(std::string_view axis) const;
  /// Ranks along it; of an axis with parts, their product.
  int size(std::string_view axis) const;
  /// Where this rank is along it, from 0; of an axis with parts, its row-major index.
  int coordinate(std::string_view axis) const;

  /// The ranks that differ from this one only along these axes: made once, all members in the same
  /// order. No axes: this rank alone. Throws ConfigError for an unknown name, and lists those that
  /// are known.
  ProcessGroup group(const std::vector<std::string>& axes) const;
  ProcessGroup group(std::initializer_list<std::string_view> axes) const;
  ProcessGroup group(std::string_view axis) const;
  /// Over all data-like axes, and over all model-like ones.
  ProcessGroup data_group() const;
  ProcessGroup model_group() const;
  /// The index of this rank among the data coordinates: which share of the samples it has.
  int data_rank() const { return data_group().rank(); }
  int data_size() const { return data_group().size(); }
  /// Index among the random streams that differ.
  int random_stream() const;

  /// The same mesh with one axis as a product of parts; the old name stays known. Collective.
  DeviceMesh split(std::string_view axis, std::vector<MeshAxis> parts) const;
  /// "data=2,model=4(h=2,w=2)"
  std::string describe() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// "data=2,model=2" as axes, -1 for what is left; for command lines. Throws ConfigError.
std::vector<MeshAxis> parse_mesh(std::string_view text);

}  // namespace fulmen
