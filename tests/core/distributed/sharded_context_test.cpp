#include "fulmen/core/distributed/sharded_context.h"

#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <thread>

#include "fulmen/core/distributed/device_mesh.h"
#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"

namespace fulmen {
namespace {

DeviceMesh mesh_of(const std::string& axis) {
  return DeviceMesh({{axis, 1}}, World::single());
}

TEST(ShardedContext, CurrentMeshOutsideSaysWhereItExists) {
  EXPECT_FALSE(in_sharded_context());
  testing::expect_parts(testing::error_text<ConfigError>([] { current_mesh(); }),
                        {"current_mesh", "configure_sharded_model()"});
}

TEST(ShardedContext, NestsAndRestoresTheOuterOne) {
  {
    const ShardedContext outer(
        mesh_of("data"));  // The mesh is a temporary: the context has a copy.
    EXPECT_TRUE(in_sharded_context());
    EXPECT_TRUE(current_mesh().has("data"));
    {
      const ShardedContext inner(mesh_of("model"));
      EXPECT_TRUE(current_mesh().has("model"));
    }
    EXPECT_TRUE(current_mesh().has("data"));
    EXPECT_TRUE(outer.mesh().has("data"));
  }
  EXPECT_FALSE(in_sharded_context());
}

TEST(ShardedContext, IsLeftWhenTheHookThrows) {
  EXPECT_THROW(
      {
        const ShardedContext context(mesh_of("data"));
        throw std::runtime_error("hook");
      },
      std::runtime_error);
  EXPECT_FALSE(in_sharded_context());
}

TEST(ShardedContext, IsOfItsThreadAlone) {
  const ShardedContext context(mesh_of("data"));
  bool inside = true;
  std::thread([&] { inside = in_sharded_context(); }).join();
  EXPECT_FALSE(inside);
}

TEST(ShardedContext, TheMeshOutlivesIt) {
  std::optional<DeviceMesh> kept;
  {
    const ShardedContext context(mesh_of("data"));
    kept.emplace(current_mesh());
  }
  EXPECT_EQ(kept->describe(), "data=1");
}

}  // namespace
}  // namespace fulmen
