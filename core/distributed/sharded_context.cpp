#include "fulmen/core/distributed/sharded_context.h"

#include <utility>

#include "fulmen/core/distributed/device_mesh.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

// The one scope that is found without being passed: layers made in configure_sharded_model() know
// no strategy. One for each thread, since ranks may be threads.
thread_local const ShardedContext* current = nullptr;

}  // namespace

ShardedContext::ShardedContext(const DeviceMesh& mesh)
    : mesh_(std::make_unique<DeviceMesh>(mesh)), outer_(std::exchange(current, this)) {}

ShardedContext::~ShardedContext() {
  current = outer_;
}

bool in_sharded_context() {
  return current != nullptr;
}

DeviceMesh current_mesh() {
  if (current == nullptr) {
    fail<ConfigError>("current_mesh",
                      "there is a mesh only inside configure_sharded_model(). Call it there, and ",
                      "keep the mesh as a member.");
  }
  return current->mesh();
}

}  // namespace fulmen
