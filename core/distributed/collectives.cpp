#include "fulmen/core/distributed/collectives.h"

#include <torch/torch.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "core/distributed/collective_call.h"
#include "fulmen/core/support/error.h"

namespace fulmen {

using detail::check_peer;
using detail::check_root;
using detail::start;

namespace {

std::int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(tensor.nbytes());
}

std::int8_t number_of(ReduceOp op) {
  return static_cast<std::int8_t>(op);
}

// Of a contiguous tensor: bytes in one row, so that what only moves data takes any dtype.
at::Tensor raw(const at::Tensor& tensor) {
  return tensor.detach().view(-1).view(at::kByte);
}

// The same with numbers that the backend can reduce.
at::Tensor numbers(const at::Tensor& tensor) {
  const auto row = tensor.detach().view(-1);
  if (row.is_complex()) return at::view_as_real(row);
  return row.scalar_type() == at::kBool ? row.view(at::kByte) : row;
}

c10d::ReduceOp to_c10d(ReduceOp op, at::ScalarType dtype) {
  switch (op) {
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      break;  // A mean is divided afterwards.
  }
  // Two true values would make a byte of 2.
  return dtype == at::kBool ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
}

void check_op(const at::Tensor& tensor, ReduceOp op) {
  const bool complex = tensor.is_complex();
  if (op == ReduceOp::kMean && !tensor.is_floating_point() && !complex) {
    fail<ConfigError>("ReduceOp::kMean",
                      "needs floating point numbers, got ",
                      tensor.scalar_type(),
                      ". Convert the tensor, or use kSum.");
  }
  if (complex && (op == ReduceOp::kMin || op == ReduceOp::kMax)) {
    fail<ConfigError>("ReduceOp", "complex numbers have no order; use kSum or kMean.");
  }
}

void check_contiguous(const char* what, const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return;
  fail<ConfigError>(what,
                    "needs a contiguous tensor, got shape ",
                    tensor.sizes(),
                    " with strides ",
                    tensor.strides(),
                    ".");
}

void check_parts(const char* what, const at::Tensor& tensor, const ProcessGroup& group) {
  if (tensor.dim() > 0 && tensor.size(0) == group.size()) return;
  fail<ConfigError>(what,
                    "needs a first dim of ",
                    group.size(),
                    ", one part for each rank of the group ",
                    group.describe(),
                    "; got shape ",
                    tensor.sizes(),
                    ".");
}

void check_numel(const char* what,
                 const char* which,
                 const at::Tensor& tensor,
                 std::int64_t needed) {
  if (tensor.numel() == needed) return;
  fail<ConfigError>(
      what, "needs an ", which, " of ", needed, " elements, got ", tensor.numel(), ".");
}

std::function<void()> mean_of(const at::Tensor& tensor, ReduceOp op, const ProcessGroup& group) {
  if (op != ReduceOp::kMean) return {};
  return [tensor = tensor.detach(), size = group.size()]() mutable {
    const at::NoGradGuard no_grad;
    tensor.div_(size);
  };
}

void copy_row(const at::Tensor& from, const at::Tensor& to) {
  const at::NoGradGuard no_grad;
  to.detach().view(-1).copy_(from.detach().view(-1));
}

// In place on a tensor of any strides: through a contiguous copy where it is not contiguous.
template <class Collective>
void on_contiguous(at::Tensor& tensor, const Collective& collective) {
  const at::NoGradGuard no_grad;
  auto flat = tensor.detach().contiguous();
  collective(flat);
  if (!tensor.is_contiguous()) tensor.detach().copy_(flat);
}

}  // namespace

Work all_reduce_async(at::Tensor& tensor,
                      ReduceOp op,
                      const ProcessGroup& group,
                      std::string_view label) {
  check_op(tensor, op);
  check_contiguous("all_reduce_async", tensor);
  return start(group,
               {.kind = CollectiveKind::kAllReduce,
                .bytes = bytes_of(tensor),
                .shown = tensor,
                .reduce_op = number_of(op),
                .label = label,
                .tensors = {tensor},
                .then = mean_of(tensor, op, group)},
               [tensor, op](c10d::ProcessGroup& c10d) {
                 std::vector<at::Tensor> list{numbers(tensor)};
                 return c10d.allreduce(list, {.reduceOp = to_c10d(op, tensor.scalar_type())});
               });
}

void all_reduce(at::Tensor& tensor,
                ReduceOp op,
                const ProcessGroup& group,
                std::string_view label) {
  check_op(tensor, op);
  if (group.size() == 1) return;
  on_contiguous(tensor, [&](at::Tensor& flat) { all_reduce_async(flat, op, group, label).wait(); });
}

Work all_gather_async(at::Tensor& output,
                      const at::Tensor& tensor,
                      const ProcessGroup& group,
                      std::string_view label) {
  check_contiguous("all_gather_async", output);
  check_contiguous("all_gather_async", tensor);
  check_numel("all_gather_async", "output", output, tensor.numel() * group.size());
  if (group.size() == 1) copy_row(tensor, output);
  return start(group,
               {.kind = CollectiveKind::kAllGather,
                .bytes = bytes_of(output),
                .shown = tensor,
                .label = label,
                .tensors = {output, tensor}},
               [output, tensor](c10d::ProcessGroup& c10d) {
                 auto out = raw(output);
                 auto in = raw(tensor);
                 return c10d.all_gather_single(out, in);
               });
}

at::Tensor all_gather(const at::Tensor& tensor, const ProcessGroup& group, std::string_view label) {
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> shape{group.size()};
  shape.insert(shape.end(), tensor.sizes().begin(), tensor.sizes().end());
  auto output = at::empty(shape, tensor.options());
  all_gather_async(output, tensor.detach().contiguous(), group, label).wait();
  return output;
}

at::Tensor all_gather_rows(const at::Tensor& tensor, const ProcessGroup& group) {
  if (tensor.dim() == 0) fail<ConfigError>("all_gather_rows", "needs a tensor with a first dim.");
  const at::NoGradGuard no_grad;
  if (group.size() == 1) return tensor.detach().clone(at::MemoryFormat::Contiguous);
  const auto options = tensor.options();
  const auto rows =
      all_gather(at::scalar_tensor(tensor.size(0), options.dtype(at::kLong)), group).cpu();
  auto shape = tensor.sizes().vec();
  shape[0] = rows.max().item<std::int64_t>();
  if (rows.min().item<std::int64_t>() == shape[0]) return all_gather(tensor, group).flatten(0, 1);
  auto padded = at::zeros(shape, options);
  padded.narrow(0, 0, tensor.size(0)).copy_(tensor.detach());
  const auto gathered = all_gather(padded, group);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < group.size(); ++rank)
    parts.push_back(gathered[rank].narrow(0, 0, rows[rank].item<std::int64_t>()));
  return at::cat(parts);
}

Work reduce_scatter_async(at::Tensor& output,
                          const at::Tensor& tensor,
                          ReduceOp op,
                          const ProcessGroup& group,
                          std::string_view label) {
  check_op(tensor, op);
  check_contiguous("reduce_scatter_async", output);
  check_contiguous("reduce_scatter_async", tensor);
  check_numel("reduce_scatter_async", "input", tensor, output.numel() * group.size());
  if (group.size() == 1) copy_row(tensor, output);
  return start(group,
               {.kind = CollectiveKind::kReduceScatter,
                .bytes = bytes_of(tensor),
                .shown = tensor,
                .reduce_op = number_of(op),
                .label = label,
                .tensors = {output, tensor},
                .then = mean_of(output, op, group)},
               [output, tensor, op](c10d::ProcessGroup& c10d) {
                 auto out = numbers(output);
                 auto in = numbers(tensor);
                 return c10d.reduce_scatter_single(
                     out, in, {.reduceOp = to_c10d(op, tensor.scalar_type())});
               });
}

at::Tensor reduce_scatter(const at::Tensor& tensor,
                          ReduceOp op,
                          const ProcessGroup& group,
                          std::string_view label) {
  check_parts("reduce_scatter", tensor, group);
  const at::NoGradGuard no_grad;
  auto output = at::empty(tensor.sizes().slice(1), tensor.options());
  reduce_scatter_async(output, tensor.detach().contiguous(), op, group, label).wait();
  return output;
}

at::Tensor all_to_all(const at::Tensor& tensor, const ProcessGroup& group, std::string_view label) {
  check_parts("all_to_all", tensor, group);
  const at::NoGradGuard no_grad;
  const auto input = tensor.detach().contiguous();
  if (group.size() == 1) return input.clone();
  auto output = at::empty_like(input);
  start(group,
        {.kind = CollectiveKind::kAllToAll,
         .bytes = bytes_of(input),
         .shown = input,
         .label = label,
         .tensors = {output, input}},
        [output, input](c10d::ProcessGroup& c10d) {
          std::vector<std::int64_t> equal;
          auto out = raw(output);
          auto in = raw(input);
          return c10d.all_to_all_single(out, in, equal, equal);
        })
      .wait();
  return output;
}

Work broadcast_async(at::Tensor& tensor,
                     int root,
                     const ProcessGroup& group,
                     std::string_view label) {
  check_root("broadcast", root, group);
  check_contiguous("broadcast_async", tensor);
  return start(group,
               {.kind = CollectiveKind::kBroadcast,
                .bytes = bytes_of(tensor),
                .shown = tensor,
                .root = root,
                .label = label,
                .tensors = {tensor}},
               [tensor, root](c10d::ProcessGroup& c10d) {
                 std::vector<at::Tensor> list{raw(tensor)};
                 return c10d.broadcast(list, {.rootRank = root});
               });
}

void broadcast(at::Tensor& tensor, int root, const ProcessGroup& group, std::string_view label) {
  check_root("broadcast", root, group);
  if (group.size() == 1) return;
  on_contiguous(tensor,
                [&](at::Tensor& flat) { broadcast_async(flat, root, group, label).wait(); });
}

Work send_async(at::Tensor tensor, int peer, const ProcessGroup& group, int tag) {
  check_peer("send", peer, group);
  const at::NoGradGuard no_grad;
  const auto flat = tensor.detach().contiguous();
  return start(group,
               {.kind = CollectiveKind::kSend,
                .bytes = bytes_of(flat),
                .shown = flat,
                .root = peer,
                .tensors = {flat}},
               [flat, peer, tag](c10d::ProcessGroup& c10d) {
                 std::vector<at::Tensor> list{raw(flat)};
                 return c10d.send(list, peer, tag);
               });
}

Work receive_async(at::Tensor& tensor, int peer, const ProcessGroup& group, int tag) {
  check_peer("receive", peer, group);
  check_contiguous("receive_async", tensor);
  return start(group,
               {.kind = CollectiveKind::kReceive,
                .bytes = bytes_of(tensor),
                .shown = tensor,
                .root = peer,
                .tensors = {tensor}},
               [tensor, peer, tag](c10d::ProcessGroup& c10d) {
                 std::vector<at::Tensor> list{raw(tensor)};
                 return c10d.recv(list, peer, tag);
               });
}

void send(const at::Tensor& tensor, int peer, const ProcessGroup& group, int tag) {
  send_async(tensor, peer, group, tag).wait();
}

void receive(at::Tensor& tensor, int peer, const ProcessGroup& group, int tag) {
  on_contiguous(tensor, [&](at::Tensor& flat) { receive_async(flat, peer, group, tag).wait(); });
}

void barrier(std::string_view name, const ProcessGroup& group) {
  start(group, {.kind = CollectiveKind::kBarrier, .label = name}, [](c10d::ProcessGroup& c10d) {
    return c10d.barrier();
  }).wait();
}

}  // namespace fulmen
