// Runs that are resumed with another number of data ranks.
#include "run_state_elastic.h"

#include <torch/torch.h>

#include <algorithm>
#include <boost/json/array.hpp>

#include "core/data/random_key.h"
#include "fulmen/core/distributed/device_mesh.h"
#include "fulmen/core/support/error.h"
#include "run_state.h"
#include "session.h"

namespace fulmen::detail {
namespace {

std::string mesh_of(const CheckpointContents& contents) {
  const auto* saved = contents.trainer.if_contains("mesh");
  return saved != nullptr ? std::string(saved->as_string()) : "data=1";
}

bool is_data_like(const DeviceMesh& mesh, const MeshAxis& axis) {
  const auto it = std::ranges::find(mesh.axes(), axis.name, &MeshAxis::name);
  return it != mesh.axes().end() && it->kind == AxisKind::kDataLike;
}

/// The axes that are not data-like, but for those of size 1, as text.
std::string model_part(const DeviceMesh& mesh, const std::vector<MeshAxis>& axes) {
  std::string text;
  for (const auto& axis : axes) {
    if (axis.size > 1 && !is_data_like(mesh, axis))
      text += axis.name + "=" + std::to_string(axis.size) + ",";
  }
  return text;
}

/// The old ranks that had samples of their own: the first of each data coordinate. The last axis is
/// the fastest.
std::vector<int> data_ranks(const DeviceMesh& mesh, const std::vector<MeshAxis>& axes) {
  std::vector<int> ranks{0};
  int stride = 1;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    const auto before = ranks;
    for (int i = 1; i < axis->size && is_data_like(mesh, *axis); ++i) {
      for (const auto rank : before) ranks.push_back(rank + i * stride);
    }
    stride *= static_cast<int>(axis->size);
  }
  std::ranges::sort(ranks);
  return ranks;
}

StateDict metrics_of(const CheckpointContents& contents, const boost::json::object& parts) {
  StateDict state{.values = parts.at("metrics").as_object(), .tensors = {}};
  constexpr std::string_view kPrefix = "metrics/";
  for (const auto& [key, tensor] : contents.rank_state) {
    if (key.starts_with(kPrefix)) state.tensors[key.substr(kPrefix.size())] = tensor;
  }
  return state;
}

void take_over_metrics(Session& session, CheckpointContents& contents, const std::string& from) {
  const auto& mesh = session.strategy().mesh();
  auto state = metrics_of(contents, contents.trainer);
  if (session.topology().rank == 0) {
    std::vector<StateDict> states{state};
    for (const auto rank : data_ranks(mesh, parse_mesh(mesh_of(contents)))) {
      if (rank == 0) continue;
      const auto part = read_checkpoint(from, CheckpointParts::kRankOnly, rank);
      states.push_back(metrics_of(part, part.rank_values));
    }
    state = MetricStore::merge_open_sums(states);
  } else {
    state = MetricStore::without_open_sums(state);
  }
  std::erase_if(contents.rank_state,
                [](const auto& item) { return item.first.starts_with("metrics/"); });
  contents.trainer["metrics"] = state.values;
  for (const auto& [key, tensor] : state.tensors) contents.rank_state["metrics/" + key] = tensor;
}

/// None of the old ones: they belong to other shares of the samples. It depends on the seed and the
/// step, so that the same resume draws the same numbers.
at::Tensor new_random_stream(Session& session, std::int64_t step) {
  const auto stream = session.strategy().mesh().random_stream();
  seed_everything(random_key(RandomPurpose::kRank, session.loader_seed(), stream, step));
  return session.accelerator->random_state(session.strategy().root_device());
}

}  // namespace

bool has_other_data_ranks(Session& session,
                          const CheckpointContents& contents,
                          const std::string& from) {
  const auto& mesh = session.strategy().mesh();
  const auto saved = mesh_of(contents);
  if (saved == mesh.describe()) return false;
  const bool has_parts = saved.find('(') != saved.npos;
  if (!has_parts && model_part(mesh, parse_mesh(saved)) ==
                        model_part(mesh, {mesh.axes().begin(), mesh.axes().end()}))
    return true;
  fail<CheckpointError>(
      "Trainer",
      from,
      " was written on the mesh ",
      saved,
      ", and this run has ",
      mesh.describe(),
      ". Only the number of data ranks may differ. Use the same model-like axes, ",
      "or .restore = Restore::kWeights.");
}

void refuse_open_gradients(Session& session,
                           const CheckpointContents& contents,
                           const std::string& from) {
  bool open = require_int(contents.trainer.at("loop").as_object(), "micro_batches", from) > 0;
  const auto& strategy = contents.rank_values.at("strategy").as_object();
  for (const auto& [key, tensor] : contents.rank_state) {
    if (open || !key.starts_with("gradient/")) continue;
    const boost::json::string name(key.substr(std::string_view("gradient/").size()));
    const auto* reduced = strategy.if_contains("reduced");
    open = reduced == nullptr ||
           std::ranges::count(reduced->as_array(), boost::json::value(name)) == 0;
  }
  if (!open) return;
  fail<CheckpointError>("Trainer",
                        from,
                        " was written between the micro-batches of an optimizer step, when each of "
                        "its ranks (mesh ",
                        mesh_of(contents),
                        ") had gradients of its own, and this run has ",
                        session.topology().world_size,
                        " ranks. Use the same number, or a checkpoint between steps.");
}

void take_over(Session& session, CheckpointContents& contents, const std::string& from) {
  take_over_metrics(session, contents, from);
  contents.rank_state["random/device"] =
      new_random_stream(session, require_int(contents.trainer, "global_step", from));
  if (session.topology().rank != 0) return;
  session.log().info("Trainer: the checkpoint is of the mesh ",
                     mesh_of(contents),
                     " and this run has ",
                     session.strategy().mesh().describe(),
                     ": the order of samples goes on, random streams start anew.");
}

}  // namespace fulmen::detail
