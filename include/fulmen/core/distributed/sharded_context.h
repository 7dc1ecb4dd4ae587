#pragma once

#include <memory>

namespace fulmen {

class DeviceMesh;

/// The scope of model_sharded_context(): while it lives, current_mesh() on this thread is the
/// strategy's. Entered and left once, also when configure_sharded_model() throws.
class ShardedContext {
 public:
  explicit ShardedContext(const DeviceMesh& mesh);
  virtual ~ShardedContext();
  ShardedContext(const ShardedContext&) = delete;
  ShardedContext& operator=(const ShardedContext&) = delete;
  const DeviceMesh& mesh() const { return *mesh_; }

 private:
  std::unique_ptr<DeviceMesh> mesh_;
  const ShardedContext* outer_;
};

/// Whether this thread is inside a strategy's context.
bool in_sharded_context();
/// The mesh that the model is built for. Keep the copy: nothing looks it up later. Throws
/// ConfigError outside configure_sharded_model(), and says so.
DeviceMesh current_mesh();

}  // namespace fulmen
