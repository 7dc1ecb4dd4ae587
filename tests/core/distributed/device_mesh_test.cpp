#include "fulmen/core/distributed/device_mesh.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "core/distributed/mesh_axes.h"
#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"

namespace fulmen {
namespace {

using testing::error_text;
using testing::expect_parts;
using Ranks = std::vector<int>;

std::string resolve_error(const std::vector<MeshAxis>& axes, int world) {
  return error_text<ConfigError>([&] { DeviceMesh::resolve(axes, world); });
}

/// Members of the group of `rank` along the leaves of the named axes.
Ranks members_of(const std::vector<MeshAxis>& axes,
                 int rank,
                 const std::vector<std::string>& names) {
  const auto leaves = detail::leaf_axes(axes);
  std::vector<bool> varies(leaves.size(), false);
  for (const auto& name : names) {
    for (const auto& leaf : detail::leaves_of(axes, name)) {
      for (std::size_t i = 0; i < leaves.size(); ++i)
        varies[i] = varies[i] || leaves[i].name == leaf;
    }
  }
  return detail::members(leaves, rank, varies);
}

TEST(MeshAxes, LastAxisIsFastest) {
  const auto axes = DeviceMesh::resolve({{"data", 2}, {"model", 3}}, 6);
  EXPECT_EQ(detail::coordinates(axes, 4), (Ranks{1, 1}));
  EXPECT_EQ(detail::coordinates(axes, 5), (Ranks{1, 2}));
  EXPECT_EQ(members_of(axes, 4, {"model"}), (Ranks{3, 4, 5}));
  EXPECT_EQ(members_of(axes, 4, {"data"}), (Ranks{1, 4}));
  EXPECT_EQ(members_of(axes, 4, {}), (Ranks{4}));
  EXPECT_EQ(members_of(axes, 4, {"data", "model"}), (Ranks{0, 1, 2, 3, 4, 5}));
}

std::vector<MeshAxis> group_tree() {
  return {
      {.name = "world",
       .parts = {{.name = "data", .parts = {{"ensemble", 2}, {"batch", 2}}},
                 {.name = "model",
                  .parts = {{.name = "spatial", .parts = {{"h", 2}, {"w", 2}}}, {"matmul", 2}}}}}};
}

TEST(MeshAxes, TreeOfNamedGroupsOn32Ranks) {
  const auto axes = DeviceMesh::resolve(group_tree(), 32);
  // Rank 13 = ensemble 0, batch 1, h 1, w 0, matmul 1: strides 16, 8, 4, 2, 1.
  EXPECT_EQ(detail::coordinates(detail::leaf_axes(axes), 13), (Ranks{0, 1, 1, 0, 1}));
  EXPECT_EQ(members_of(axes, 13, {"matmul"}), (Ranks{12, 13}));
  EXPECT_EQ(members_of(axes, 13, {"w"}), (Ranks{13, 15}));
  EXPECT_EQ(members_of(axes, 13, {"h"}), (Ranks{9, 13}));
  EXPECT_EQ(members_of(axes, 13, {"spatial"}), (Ranks{9, 11, 13, 15}));
  EXPECT_EQ(members_of(axes, 13, {"model"}), (Ranks{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(members_of(axes, 13, {"ensemble"}), (Ranks{13, 29}));
  EXPECT_EQ(members_of(axes, 13, {"data"}), (Ranks{5, 13, 21, 29}));
  EXPECT_EQ(members_of(axes, 13, {"batch", "w"}), (Ranks{5, 7, 13, 15}));
  EXPECT_EQ(members_of(axes, 13, {"world"}).size(), 32U);
}

TEST(MeshAxes, GroupsOfAnAxisPartTheWorld) {
  const auto axes = DeviceMesh::resolve(group_tree(), 32);
  for (const auto* name : {"data", "model", "spatial", "matmul", "ensemble", "batch", "h", "w"}) {
    std::vector<int> times(32, 0);
    for (int rank = 0; rank < 32; ++rank) {
      const auto group = members_of(axes, rank, {name});
      for (const auto other : group) EXPECT_EQ(members_of(axes, other, {name}), group) << name;
      if (group.front() != rank) continue;
      for (const auto other : group) ++times[static_cast<std::size_t>(other)];
    }
    EXPECT_EQ(times, std::vector<int>(32, 1)) << name;
  }
}

TEST(MeshAxes, PartsInheritWhatTheyLeaveOut) {
  const auto axes = DeviceMesh::resolve({{.name = "data", .size = -1},
                                         {.name = "domain",
                                          .kind = AxisKind::kModelLike,
                                          .default_placement = shared(),
                                          .shares_random_streams = false,
                                          .parts = {{"h", 2},
                                                    {.name = "w",
                                                     .size = 2,
                                                     .default_placement = local(),
                                                     .shares_random_streams = true}}}},
                                        8);
  EXPECT_EQ(axes[0].size, 2);
  EXPECT_EQ(axes[0].shares_random_streams, false);
  EXPECT_EQ(axes[1].size, 4);
  const auto& h = axes[1].parts[0];
  EXPECT_EQ(h.kind, AxisKind::kModelLike);
  EXPECT_EQ(h.default_placement, shared());
  EXPECT_EQ(h.shares_random_streams, false);
  const auto& w = axes[1].parts[1];
  EXPECT_EQ(w.default_placement, local());
  EXPECT_EQ(w.shares_random_streams, true);
  // A name that is data-like elsewhere.
  EXPECT_EQ(DeviceMesh::resolve({{.name = "model", .parts = {{"shard", 2}}}}, 2)[0].parts[0].kind,
            AxisKind::kModelLike);
}

TEST(MeshAxes, OpenSizeIsWhatIsLeft) {
  EXPECT_EQ(DeviceMesh::resolve({{"data"}, {"model", 3}}, 12)[0].size, 4);
  EXPECT_EQ(DeviceMesh::resolve({{"data", 4}, {"model"}}, 4)[1].size, 1);
  // Of an axis with a size, a part may be open too; of one without, what is left goes to the part.
  const auto split = DeviceMesh::resolve(
      {{"data", 2}, {.name = "model", .size = 6, .parts = {{"h"}, {"w", 3}}}}, 12);
  EXPECT_EQ(split[1].parts[0].size, 2);
  const auto open =
      DeviceMesh::resolve({{"data", 2}, {.name = "model", .parts = {{"h"}, {"w", 3}}}}, 12);
  EXPECT_EQ(open[1].size, 6);
  EXPECT_EQ(open[1].parts[0].size, 2);
}

TEST(MeshAxes, SizesThatDoNotFitNameSizesProductAndWorld) {
  expect_parts(resolve_error({{"data", 2}, {"model", 3}}, 4),
               {"data=2,model=3", "multiply to 6", "the 4 ranks of the world"});
  expect_parts(resolve_error({{"data"}, {"model", 3}}, 4),
               {"data=?,model=3", "multiply to 3", "does not divide", "the 4 ranks"});
  expect_parts(resolve_error({{"data"}, {"model"}}, 4), {"\"data\"", "\"model\"", "At most one"});
  expect_parts(resolve_error({{.name = "model", .size = 4, .parts = {{"h", 3}, {"w", 2}}}}, 4),
               {"\"model\"", "h=3,w=2", "multiply to 6", "size is 4"});
  expect_parts(resolve_error({{.name = "model", .size = 4, .parts = {{"h"}, {"w", 3}}}}, 4),
               {"h=?,w=3", "does not divide", "the axis \"model\""});
  expect_parts(resolve_error({{"data", 0}}, 4), {"\"data\"", "at least 1", "got 0"});
  expect_parts(resolve_error({{"data", -2}}, 4), {"got -2"});
  expect_parts(resolve_error({}, 1), {"at least one axis"});
  // No overflow to a product that happens to fit.
  expect_parts(resolve_error({{"data", 1 << 30}, {"model", 1 << 30}, {"tensor", 16}}, 4),
               {"multiply to", "the 4 ranks"});
}

TEST(MeshAxes, NamesKindsAndDefaultsThatCannotBeAreRefused) {
  expect_parts(resolve_error({{"", 1}}, 1), {"small letters", "got \"\""});
  expect_parts(resolve_error({{"Data", 1}}, 1), {"small letters", "\"Data\""});
  expect_parts(resolve_error({{"da ta", 1}}, 1), {"\"da ta\""});
  expect_parts(resolve_error({{"data", 1}, {"data", 1}}, 1), {"\"data\" is used twice"});
  expect_parts(resolve_error({{.name = "model", .parts = {{"model", 1}}}}, 1), {"used twice"});
  expect_parts(resolve_error({{"depth", 1}}, 1), {"\"depth\"", "data-like", "Set .kind"});
  expect_parts(resolve_error({{.name = "data", .size = 1, .default_placement = shared()}}, 1),
               {"\"data\"", "data-like", "shared()"});
  expect_parts(
      resolve_error(
          {{.name = "all", .default_placement = shared(), .parts = {{"data", 1}, {"model", 1}}}},
          1),
      {"\"data\"", "shared()"});
  expect_parts(
      resolve_error(
          {{.name = "model", .parts = {{.name = "h", .size = 1, .kind = AxisKind::kDataLike}}}}, 1),
      {"\"h\"", "another kind", "\"model\""});
  EXPECT_NO_THROW(DeviceMesh::resolve({{"a-b_1", 1, AxisKind::kDataLike}}, 1));
}

TEST(ParseMesh, ReadsNamesAndSizes) {
  const auto axes = parse_mesh("data=-1,model=2");
  ASSERT_EQ(axes.size(), 2U);
  EXPECT_EQ(axes[0].name, "data");
  EXPECT_EQ(axes[0].size, -1);
  EXPECT_EQ(axes[1].name, "model");
  EXPECT_EQ(axes[1].size, 2);
  for (const auto* text : {"", "data", "data=", "data=2,", "data=2x", "data=2,model", "data= 2"}) {
    expect_parts(error_text<ConfigError>([&] { parse_mesh(text); }), {"data=2,model=2", text});
  }
}

TEST(DeviceMesh, OfOneRankHasGroupsOfThisRankAlone) {
  const DeviceMesh mesh({{"data"}, {"model", 1}}, World::single());
  EXPECT_EQ(mesh.describe(), "data=1,model=1");
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_EQ(mesh.coordinate("model"), 0);
  EXPECT_EQ(mesh.group({"data", "model"}).ranks(), (Ranks{0}));
  EXPECT_EQ(mesh.data_rank(), 0);
  EXPECT_EQ(mesh.data_size(), 1);
  EXPECT_EQ(mesh.random_stream(), 0);
}

TEST(DeviceMesh, UnknownNamesListThoseThatAreKnown) {
  const DeviceMesh mesh({{"data", 1}, {.name = "model", .parts = {{"h", 1}, {"w", 1}}}},
                        World::single());
  EXPECT_TRUE(mesh.has("model"));
  EXPECT_TRUE(mesh.has("h"));
  EXPECT_FALSE(mesh.has("modle"));
  EXPECT_TRUE(mesh.leaves("modle").empty());
  EXPECT_EQ(mesh.leaves("model"), (std::vector<std::string>{"h", "w"}));
  const auto expect_names = [](const auto& body) {
    expect_parts(error_text<ConfigError>(body), {"\"modle\"", "\"data\", \"model\", \"h\", \"w\""});
  };
  expect_names([&] { mesh.size("modle"); });
  expect_names([&] { mesh.coordinate("modle"); });
  expect_names([&] { mesh.kind("modle"); });
  expect_names([&] { mesh.group("modle"); });
  expect_names([&] { mesh.group({"data", "modle"}); });
  expect_names([&] { mesh.split("modle", {{"a", 1}}); });
  expect_parts(error_text<ConfigError>([&] {
                 mesh.split("model", {{"a", 1}});
               }),
               {"\"model\" has parts already"});
  expect_parts(error_text<ConfigError>([&] { mesh.split("h", {}); }), {"\"h\"", "no parts"});
  expect_parts(error_text<ConfigError>([] { DeviceMesh({{"data", 1}}, nullptr); }), {"world"});
}

TEST(DeviceMesh, KindOfAnAxisWithPartsOfBothIsAnError) {
  const DeviceMesh mesh({{.name = "all", .parts = {{"data", 1}, {"model", 1}}}}, World::single());
  EXPECT_EQ(mesh.kind("data"), AxisKind::kDataLike);
  EXPECT_EQ(mesh.kind("model"), AxisKind::kModelLike);
  expect_parts(error_text<ConfigError>([&] { mesh.kind("all"); }), {"\"all\" has no kind"});
}

TEST(DeviceMesh, GroupsOf2x2TalkToTheirMembersOnly) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh({{"data", 2}, {"model", -1}}, world);
    const int rank = world->rank();
    EXPECT_EQ(mesh.coordinate("data"), rank / 2);
    EXPECT_EQ(mesh.coordinate("model"), rank % 2);
    const auto sum = [&](const ProcessGroup& group) {
      auto value = torch::tensor(static_cast<std::int64_t>(1) << rank);
      all_reduce(value, ReduceOp::kSum, group);
      return value.item<std::int64_t>();
    };
    EXPECT_EQ(sum(mesh.group("model")), rank < 2 ? 0b0011 : 0b1100);
    EXPECT_EQ(sum(mesh.group("data")), rank % 2 == 0 ? 0b0101 : 0b1010);
    EXPECT_EQ(sum(mesh.group({"model", "data"})), 0b1111);
    EXPECT_EQ(sum(mesh.group(std::vector<std::string>{})), 1 << rank);
    // The same ranks are the same group.
    EXPECT_EQ(mesh.group({"data", "model"}), world->all());
    EXPECT_EQ(mesh.group("data"), mesh.data_group());
    EXPECT_EQ(mesh.group("model"), mesh.model_group());
    EXPECT_EQ(mesh.data_rank(), rank / 2);
    EXPECT_EQ(mesh.data_size(), 2);
    // Ranks of one sample draw alike, so there is one stream for each data coordinate.
    EXPECT_EQ(mesh.random_stream(), rank / 2);
  });
}

TEST(DeviceMesh, RandomStreamsAreCountedAlongAxesThatDoNotShareThem) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh(
        {{.name = "data", .size = 2}, {.name = "model", .size = 2, .shares_random_streams = false}},
        world);
    EXPECT_EQ(mesh.random_stream(), world->rank());
    const DeviceMesh alike(
        {{.name = "data", .size = 2, .shares_random_streams = true}, {.name = "model", .size = 2}},
        world);
    EXPECT_EQ(alike.random_stream(), 0);
  });
}

TEST(DeviceMesh, SplitKeepsTheOldNameAndItsGroup) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh({{"data", 1}, {.name = "model", .default_placement = shared()}}, world);
    const auto finer = mesh.split("model", {{"kv", -1}, {"rep", 2}});
    EXPECT_EQ(mesh.describe(), "data=1,model=4");
    EXPECT_EQ(finer.describe(), "data=1,model=4(kv=2,rep=2)");
    EXPECT_EQ(finer.group("model"), mesh.group("model"));
    EXPECT_EQ(finer.size("model"), 4);
    EXPECT_EQ(finer.coordinate("model"), world->rank());
    EXPECT_EQ(finer.coordinate("kv"), world->rank() / 2);
    EXPECT_EQ(finer.coordinate("rep"), world->rank() % 2);
    EXPECT_EQ(finer.kind("model"), AxisKind::kModelLike);
    EXPECT_EQ(finer.group("rep").ranks(), world->rank() < 2 ? (Ranks{0, 1}) : (Ranks{2, 3}));
    ASSERT_EQ(finer.axes().size(), 3U);
    EXPECT_EQ(finer.axes()[2].default_placement, shared());
  });
}

TEST(DeviceMesh, NamedGroupsAreMadeAtConstruction) {
  const auto body = [](const std::shared_ptr<World>& world) {
    const DeviceMesh mesh({{.name = "model", .parts = {{"h", 2}, {"w", 2}}}}, world);
    // Were these made here, the ranks would wait for each other in a circle.
    const bool h_first = world->rank() == 0 || world->rank() == 3;
    mesh.group(h_first ? "h" : "w");
    mesh.group(h_first ? "w" : "h");
  };
  EXPECT_NO_THROW(run_thread_ranks(4, body, {.timeout = std::chrono::seconds(5)}));
}

TEST(DeviceMesh, SizesThatDoNotFitFailOnAllRanksBeforeAnyGroupIsMade) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    expect_parts(error_text<ConfigError>([&] {
                   DeviceMesh({{"data", 2}, {"model", 2}}, world);
                 }),
                 {"multiply to 4", "the 2 ranks"});
  });
}

}  // namespace
}  // namespace fulmen
