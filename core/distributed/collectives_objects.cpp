#include <torch/torch.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstring>
#include <map>
#include <utility>

#include "core/distributed/collective_call.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

namespace json = boost::json;

// Of what one rank announces, before memory is taken for it.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;
// Of what is copied into one tensor for a joint broadcast.
constexpr std::int64_t kJointBytes = std::int64_t{64} << 20;
// Of each rank in the first collective of an all-gather: its size, and room for the object.
constexpr std::int64_t kFirstBytes = 4096;
constexpr std::int64_t kRoom = kFirstBytes - static_cast<std::int64_t>(sizeof(std::int64_t));

at::Tensor to_tensor(std::string_view bytes) {
  auto tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string to_string(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.data_ptr()), static_cast<std::size_t>(bytes.numel())};
}

// Every rank sees every announcement, so all of them throw.
void check_sizes(std::string_view what, const std::vector<std::int64_t>& sizes) {
  for (const auto bytes : sizes) {
    if (bytes >= 0 && bytes <= kMostBytes) continue;
    fail<DistributedError>(
        what, "a rank announced ", bytes, " bytes; at most ", kMostBytes, " are taken.");
  }
}

std::vector<std::int64_t> to_vector(const at::Tensor& sizes) {
  const auto* begin = sizes.const_data_ptr<std::int64_t>();
  return {begin, begin + sizes.numel()};
}

std::vector<std::int64_t> sizes_of_all(std::string_view what,
                                       std::size_t mine,
                                       const ProcessGroup& group) {
  const auto sizes =
      to_vector(all_gather(at::full({}, static_cast<std::int64_t>(mine), at::kLong), group, what));
  check_sizes(what, sizes);
  return sizes;
}

// The first collective carries the sizes and what fits beside them, so that small objects, such as
// the metrics of an epoch, cost one.
std::vector<std::string> all_gather_bytes(std::string_view what,
                                          std::string_view bytes,
                                          const ProcessGroup& group) {
  if (group.size() == 1) return {std::string(bytes)};
  const auto rows = [&](std::string_view part, const at::Tensor& row, std::int64_t begin) {
    if (!part.empty())
      std::memcpy(row.mutable_data_ptr<std::uint8_t>() + begin, part.data(), part.size());
    return all_gather(row, group, what);
  };
  const auto mine = std::ssize(bytes);
  auto head = at::zeros({kFirstBytes}, at::kByte);
  std::memcpy(head.mutable_data_ptr(), &mine, sizeof mine);
  const auto first = rows(bytes.substr(0, kRoom), head, sizeof mine);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(group.size()));
  for (int rank = 0; rank < group.size(); ++rank)
    std::memcpy(&sizes[static_cast<std::size_t>(rank)], first[rank].const_data_ptr(), sizeof mine);
  check_sizes(what, sizes);
  const auto largest = *std::max_element(sizes.begin(), sizes.end());
  at::Tensor second;
  if (largest > kRoom)
    second =
        rows(mine > kRoom ? bytes.substr(kRoom) : "", at::zeros({largest - kRoom}, at::kByte), 0);
  std::vector<std::string> result;
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto size = sizes[static_cast<std::size_t>(rank)];
    result.push_back(to_string(first[rank].narrow(0, sizeof mine, std::min(size, kRoom))));
    if (size > kRoom) result.back() += to_string(second[rank].narrow(0, 0, size - kRoom));
  }
  return result;
}

json::value parse(std::string_view what, const std::string& text) {
  boost::system::error_code error;
  auto value = json::parse(text, error);
  if (error) {
    fail<DistributedError>(what, "a rank sent what is not JSON: ", error.message(), ".");
  }
  return value;
}

std::string list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

std::vector<std::string> gather_bytes(std::string_view bytes, int root, const ProcessGroup& group) {
  detail::check_root("gather_bytes", root, group);
  if (group.size() == 1) return {std::string(bytes)};
  const auto sizes = sizes_of_all("gather_bytes", bytes.size(), group);
  if (group.rank() != root) {
    if (!bytes.empty()) send(to_tensor(bytes), root, group);
    return {};
  }
  std::vector<std::string> result(sizes.size());
  for (int rank = 0; rank < group.size(); ++rank) {
    auto& part = result[static_cast<std::size_t>(rank)];
    const auto size = sizes[static_cast<std::size_t>(rank)];
    if (rank == root) {
      part = bytes;
    } else if (size > 0) {
      auto data = at::empty({size}, at::kByte);
      receive(data, rank, group);
      part = to_string(data);
    }
  }
  return result;
}

std::string scatter_bytes(const std::vector<std::string>& parts,
                          int root,
                          const ProcessGroup& group) {
  detail::check_root("scatter_bytes", root, group);
  const bool sends = group.rank() == root;
  const bool wrong = sends && std::ssize(parts) != group.size();
  // Sizes that none can have, so that a root with the wrong number of parts is not waited for.
  auto sizes = at::full({group.size()}, -1, at::kLong);
  if (sends && !wrong) {
    for (int rank = 0; rank < group.size(); ++rank)
      sizes[rank] = std::ssize(parts[static_cast<std::size_t>(rank)]);
  }
  broadcast(sizes, root, group, "scatter_bytes");
  if (wrong) {
    fail<ConfigError>("scatter_bytes",
                      "needs ",
                      group.size(),
                      " parts, one for each rank of the group ",
                      group.describe(),
                      "; got ",
                      parts.size(),
                      ".");
  }
  check_sizes("scatter_bytes", to_vector(sizes));
  if (sends) {
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto& part = parts[static_cast<std::size_t>(rank)];
      if (rank != root && !part.empty()) send(to_tensor(part), rank, group);
    }
    return parts[static_cast<std::size_t>(root)];
  }
  auto data = at::empty({sizes[group.rank()].item<std::int64_t>()}, at::kByte);
  if (data.numel() > 0) receive(data, root, group);
  return to_string(data);
}

std::vector<json::value> all_gather_object(const json::value& value, const ProcessGroup& group) {
  if (group.size() == 1) return {value};
  std::vector<json::value> values;
  for (const auto& text : all_gather_bytes("all_gather_object", json::serialize(value), group))
    values.push_back(parse("all_gather_object", text));
  return values;
}

json::value broadcast_object(const json::value& value, int root, const ProcessGroup& group) {
  detail::check_root("broadcast_object", root, group);
  if (group.size() == 1) return value;
  const bool sends = group.rank() == root;
  const auto text = sends ? json::serialize(value) : std::string();
  auto size = at::full({1}, std::ssize(text), at::kLong);
  broadcast(size, root, group, "broadcast_object");
  check_sizes("broadcast_object", to_vector(size));
  auto data = sends ? to_tensor(text) : at::empty({size.item<std::int64_t>()}, at::kByte);
  broadcast(data, root, group, "broadcast_object");
  return parse("broadcast_object", to_string(data));
}

void broadcast_all(std::vector<at::Tensor> tensors, int root, const ProcessGroup& group) {
  detail::check_root("broadcast_all", root, group);
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::map<std::pair<at::ScalarType, at::DeviceType>, std::vector<at::Tensor>> kinds;
  for (const auto& tensor : tensors)
    kinds[{tensor.scalar_type(), tensor.device().type()}].push_back(tensor.detach());
  const auto send_joint = [&](const std::vector<at::Tensor>& part) {
    std::vector<at::Tensor> rows;
    for (const auto& tensor : part) rows.push_back(tensor.reshape(-1));
    auto joint = at::cat(rows);
    broadcast(joint, root, group, "broadcast_all");
    if (group.rank() == root) return;
    std::int64_t begin = 0;
    for (const auto& tensor : part) {
      tensor.copy_(joint.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  };
  for (const auto& [kind, list_of_kind] : kinds) {
    std::vector<at::Tensor> part;
    std::int64_t bytes = 0;
    for (const auto& tensor : list_of_kind) {
      const auto more = static_cast<std::int64_t>(tensor.nbytes());
      if (!part.empty() && bytes + more > kJointBytes) {
        send_joint(std::exchange(part, {}));
        bytes = 0;
      }
      part.push_back(tensor);
      bytes += more;
    }
    send_joint(part);
  }
}

void agree_or_fail(std::string_view where, std::string_view problem, const ProcessGroup& group) {
  auto any = at::full({}, problem.empty() ? 0 : 1, at::kLong);
  all_reduce(any, ReduceOp::kMax, group, where);
  if (any.item<std::int64_t>() == 0) return;
  const auto problems = all_gather_bytes(where, problem, group);
  // In order of the first rank that has the problem.
  std::vector<std::pair<std::string_view, std::vector<int>>> found;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::string_view text = problems[static_cast<std::size_t>(rank)];
    if (text.empty()) continue;
    auto same = std::find_if(
        found.begin(), found.end(), [&](const auto& other) { return other.first == text; });
    if (same == found.end()) same = found.insert(found.end(), {text, {}});
    same->second.push_back(group.ranks()[static_cast<std::size_t>(rank)]);
  }
  std::string message;
  for (const auto& [text, ranks] : found) {
    if (!message.empty()) message += "; ";
    if (group.size() > 1) message += list(ranks) + ": ";
    message += text;
  }
  fail<DistributedError>(where, message);
}

}  // namespace fulmen
