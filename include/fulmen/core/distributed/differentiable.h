#pragma once

#include <ATen/core/Tensor.h>

#include "fulmen/core/distributed/world.h"

namespace fulmen {

// Collectives with a gradient, in pairs: what one does forward, the other does backward. The
// backward pass runs them in the reverse order of the forward, so all ranks of the group must build
// the same graph. Each name says both halves; which one is right depends on what follows: see
// docs/shared_weights.md. `dim` may be negative. The result must be used: a result that is thrown
// away reduces nothing. There is no second derivative; asking for one throws.

/// Identity; backward sums over the group. In front of what each rank computes a part of.
/// Throws ConfigError for a parameter that is marked as shared: its gradient would be summed twice.
[[nodiscard]] at::Tensor copy_to_group(const at::Tensor& tensor, const ProcessGroup& group);
/// Sums over the group; backward is the identity. Behind partial results, before a loss that every
/// rank of the group computes in whole.
[[nodiscard]] at::Tensor reduce_from_group(const at::Tensor& tensor, const ProcessGroup& group);
/// This rank's equal part along `dim`; backward gathers the parts' gradients.
[[nodiscard]] at::Tensor scatter_to_group(const at::Tensor& tensor,
                                          int64_t dim,
                                          const ProcessGroup& group);
/// Parts joined along `dim`; backward takes this rank's part. For a loss that every rank of the
/// group computes in whole.
[[nodiscard]] at::Tensor gather_from_group(const at::Tensor& tensor,
                                           int64_t dim,
                                           const ProcessGroup& group);
/// Parts joined along `dim`; backward sums the gradients of all ranks and takes this rank's part.
/// For a loss of which each rank has its own term.
[[nodiscard]] at::Tensor gather_to_group(const at::Tensor& tensor,
                                         int64_t dim,
                                         const ProcessGroup& group);
/// Sums over the group and keeps this rank's part along `dim`; backward gathers.
[[nodiscard]] at::Tensor reduce_scatter_from_group(const at::Tensor& tensor,
                                                   int64_t dim,
                                                   const ProcessGroup& group);
/// Sends `to_next` to the next rank of the group and gives what the previous one sent, zeros on the
/// first rank; backward goes the other way. Shapes are equal on all ranks.
[[nodiscard]] at::Tensor shift_to_next(const at::Tensor& to_next, const ProcessGroup& group);
/// The same toward the previous rank; zeros on the last.
[[nodiscard]] at::Tensor shift_to_previous(const at::Tensor& to_previous,
                                           const ProcessGroup& group);

}  // namespace fulmen
