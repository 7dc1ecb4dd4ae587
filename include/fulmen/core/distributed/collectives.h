#pragma once

#include <ATen/core/Tensor.h>

#include <boost/json/value.hpp>
#include <memory>
#include <string_view>
#include <vector>

#include "fulmen/core/distributed/world.h"

namespace fulmen {

enum class ReduceOp { kSum, kMean, kMin, kMax };

/// A collective that was started. wait() it before its tensors are read, written or freed; the
/// handle keeps them alive. Errors of the collective are thrown by wait().
class Work {
 public:
  Work() = default;  ///< Of a collective that was done at once.
  /// Throws DistributedError that names the collective, the group and the time limit.
  void wait();

  struct State;  ///< Private to core/distributed.
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<State> state_;
};

// All of these are collective: every member of the group calls them, in the same order, with
// tensors of the same dtype on the same kind of device, and of the same shape unless said
// otherwise. On a group of one rank they copy or do nothing. Tensors are dense; one that is not
// contiguous is copied. They record no graph: see differentiable.h. Errors are DistributedError,
// which names the ranks that did not come, or ended (docs/distributed.md). `label` is for these
// messages, and the same on all ranks: for example the name of a parameter.

/// In place. kMean divides by the size of the group; integers cannot have it. A sum of bool is
/// logical or.
void all_reduce(at::Tensor& tensor,
                ReduceOp op,
                const ProcessGroup& group,
                std::string_view label = {});
/// `tensor` must be contiguous, and is not touched until wait().
[[nodiscard]] Work all_reduce_async(at::Tensor& tensor,
                                    ReduceOp op,
                                    const ProcessGroup& group,
                                    std::string_view label = {});

/// (S...) of each rank to (size, S...) on all, in order of rank.
at::Tensor all_gather(const at::Tensor& tensor,
                      const ProcessGroup& group,
                      std::string_view label = {});
/// The same into `output`, contiguous, of size * numel elements.
[[nodiscard]] Work all_gather_async(at::Tensor& output,
                                    const at::Tensor& tensor,
                                    const ProcessGroup& group,
                                    std::string_view label = {});
/// Tensors whose first dims may differ, joined along it in order of rank. Two collectives: sizes,
/// then data.
at::Tensor all_gather_rows(const at::Tensor& tensor, const ProcessGroup& group);

/// (size, S...) of each rank, reduced; rank i gets part i, (S...).
at::Tensor reduce_scatter(const at::Tensor& tensor,
                          ReduceOp op,
                          const ProcessGroup& group,
                          std::string_view label = {});
[[nodiscard]] Work reduce_scatter_async(at::Tensor& output,
                                        const at::Tensor& tensor,
                                        ReduceOp op,
                                        const ProcessGroup& group,
                                        std::string_view label = {});

/// (size, S...): rank i gets part i of every rank, in order of rank.
at::Tensor all_to_all(const at::Tensor& tensor,
                      const ProcessGroup& group,
                      std::string_view label = {});

/// In place, from the member with rank `root` of the group.
void broadcast(at::Tensor& tensor,
               int root,
               const ProcessGroup& group,
               std::string_view label = {});
[[nodiscard]] Work broadcast_async(at::Tensor& tensor,
                                   int root,
                                   const ProcessGroup& group,
                                   std::string_view label = {});
/// Many tensors of any dtypes with few collectives. In place; contiguous or not.
void broadcast_all(std::vector<at::Tensor> tensors, int root, const ProcessGroup& group);

/// Point to point; `peer` is a rank of the group. Receives in place.
void send(const at::Tensor& tensor, int peer, const ProcessGroup& group, int tag = 0);
void receive(at::Tensor& tensor, int peer, const ProcessGroup& group, int tag = 0);
[[nodiscard]] Work send_async(at::Tensor tensor, int peer, const ProcessGroup& group, int tag = 0);
[[nodiscard]] Work receive_async(at::Tensor& tensor,
                                 int peer,
                                 const ProcessGroup& group,
                                 int tag = 0);

/// Returns when all have called it. `name` is what the error of a late rank says.
void barrier(std::string_view name, const ProcessGroup& group);

/// A JSON value of each rank, in order of rank. Sizes may differ; what is not JSON is an error,
/// never code. Boost.JSON rounds some doubles in parsing: double_to_json() keeps them exact.
std::vector<boost::json::value> all_gather_object(const boost::json::value& value,
                                                  const ProcessGroup& group);
boost::json::value broadcast_object(const boost::json::value& value,
                                    int root,
                                    const ProcessGroup& group);
/// Bytes of each rank on `root`, in order of rank; empty elsewhere.
std::vector<std::string> gather_bytes(std::string_view bytes, int root, const ProcessGroup& group);
/// Part i for rank i; only `root` gives parts.
std::string scatter_bytes(const std::vector<std::string>& parts,
                          int root,
                          const ProcessGroup& group);

/// Throws the same DistributedError on every rank if `problem` is not empty on any of them: it
/// lists ranks and problems. For checks that must fail together.
void agree_or_fail(std::string_view where, std::string_view problem, const ProcessGroup& group);

}  // namespace fulmen
