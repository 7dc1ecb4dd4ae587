#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "fulmen/core/optim/optimizer.h"
#include "fulmen/core/support/state_dict.h"

namespace fulmen {

struct GradScalerOptions {
  double init_scale = 65536.0;
  double growth_factor = 2.0;   ///< Above 1.
  double backoff_factor = 0.5;  ///< In (0, 1).
  std::int64_t growth_interval = 2000;
  bool enabled = true;  ///< If not, every call leaves things as they are.
};

/// Keeps float16 gradients in range: the loss is multiplied by a scale that halves when a gradient
/// overflows and grows when none did for a while. The order in one window:
///   scale(loss).backward(); unscale(optimizer); clip...; step(optimizer); update();
/// Not thread-safe. The state of a window (what was unscaled, what was found) ends with update() or
/// new_window().
class GradScaler {
 public:
  /// Throws ConfigError for a value out of range.
  static std::shared_ptr<GradScaler> make(GradScalerOptions options = {});

  /// The loss times the scale, on the device of the loss.
  at::Tensor scale(const at::Tensor& loss);
  /// Divides the gradients of the optimizer's parameters by the scale and notes whether any is not
  /// finite. At most once for an optimizer in a window: throws ConfigError otherwise.
  void unscale(const Optimizer& optimizer);
  /// The note of unscale(): a float32 scalar, 0 or 1, that other ranks may be joined into before
  /// step(). Undefined if the optimizer was not unscaled in this window.
  at::Tensor found_inf(const Optimizer& optimizer) const;
  /// Unscales if that was not done, then steps unless a gradient is not finite. Returns whether it
  /// stepped. Reads found_inf once. Closures are not supported, since they make new gradients.
  bool step(Optimizer& optimizer);
  /// Lets an optimizer that was stepped be unscaled and stepped again in this window, for new
  /// gradients of the same scale. What was found stays noted for update().
  void reopen(const Optimizer& optimizer);
  /// Adapts the scale to what was found, and ends the window.
  void update();
  /// Ends a window in which no step was taken; the scale stays.
  void new_window();

  bool enabled() const { return options_.enabled; }
  /// Reads the scale: waits for the device. 1 if not enabled.
  double current_scale() const;

  StateDict state_dict() const;
  /// Restores the scale and its growth count; options come from the constructor. Throws
  /// CheckpointError.
  void load_state_dict(const StateDict& state);

 private:
  explicit GradScaler(GradScalerOptions options);
  void place_on(at::Device device);
  at::Tensor unscale_gradients(std::span<const at::Tensor> gradients);

  GradScalerOptions options_;
  at::Tensor scale_;           // float32 scalar
  at::Tensor growth_tracker_;  // int32 scalar: updates without overflow since the last growth
  std::unordered_map<const Optimizer*, at::Tensor> found_;
  std::vector<at::Tensor> found_before_;  // Of steps that were reopened.
};

}  // namespace fulmen
