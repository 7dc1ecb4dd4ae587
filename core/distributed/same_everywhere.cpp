#include "core/distributed/same_everywhere.h"

#include <torch/torch.h>

#include <algorithm>
#include <boost/json/value.hpp>
#include <functional>

namespace fulmen::detail {
namespace {

std::string describe_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kMost) text += " and " + std::to_string(ranks.size() - kMost) + " more";
  return text;
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 1469598103934665603ULL;  // FNV-1a: the same on every host.
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

}  // namespace

std::string list_versions(const std::vector<std::string>& versions, const std::vector<int>& ranks) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (std::size_t i = 0; i < versions.size(); ++i) {
    auto it = std::ranges::find(groups, versions[i], [](const auto& group) { return group.first; });
    if (it == groups.end()) it = groups.insert(it, {versions[i], {}});
    it->second.push_back(ranks[i]);
  }
  std::string text;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    text += i == 0 ? "" : (i + 1 == groups.size() ? " and " : ", ");
    text += groups[i].first + " on " + describe_ranks(groups[i].second);
  }
  return text;
}

bool are_equal(const std::vector<std::string>& list) {
  return std::ranges::adjacent_find(list, std::not_equal_to<>()) == list.end();
}

bool is_same_everywhere(std::string_view text, const ProcessGroup& group) {
  const auto value = static_cast<std::int64_t>(hash_of(text));
  // The complement turns the order round, so its maximum is that of the minimum.
  auto both = at::tensor({value, ~value}, at::kLong);
  all_reduce(both, ReduceOp::kMax, group);
  return both[0].item<std::int64_t>() == ~both[1].item<std::int64_t>();
}

std::string find_difference(const std::string& text, const ProcessGroup& group) {
  if (group.size() == 1 || is_same_everywhere(text, group)) return {};
  std::vector<std::string> versions;
  for (const auto& version : all_gather_object(boost::json::string(text), group))
    versions.emplace_back(version.as_string());
  return list_versions(versions, group.ranks());
}

}  // namespace fulmen::detail
