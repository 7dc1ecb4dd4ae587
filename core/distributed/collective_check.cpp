#include "core/distributed/collective_check.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/distributed/same_everywhere.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

// What a rank sends: a hash of the whole text, then as much of the text as there is place for.
constexpr std::int64_t kHashBytes = 8;
constexpr std::int64_t kTextBytes = 504;
constexpr std::int64_t kBytes = kHashBytes + kTextBytes;

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 1469598103934665603ULL;  // FNV-1a: the same on every host.
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return hash;
}

}  // namespace

CollectiveCheck::CollectiveCheck(c10::intrusive_ptr<c10d::ProcessGroup> c10d,
                                 std::vector<int> ranks,
                                 std::string group)
    : c10d_(std::move(c10d)), ranks_(std::move(ranks)), group_(std::move(group)) {}

CollectiveCheck::Exchange CollectiveCheck::begin(std::int64_t sequence, const std::string& call) {
  if (!mismatch_.empty()) throw DistributedError(mismatch_);
  if (c10d_ == nullptr) fail<DistributedError>(group_, "was closed on this rank.");
  Exchange exchange{.work = {},
                    .mine = at::zeros({kBytes}, at::kByte),
                    .all = at::empty({kBytes * std::ssize(ranks_)}, at::kByte),
                    .sequence = sequence};
  auto* bytes = static_cast<char*>(exchange.mine.data_ptr());
  const auto hash = hash_of(call);
  std::memcpy(bytes, &hash, sizeof hash);
  std::memcpy(bytes + kHashBytes,
              call.data(),
              std::min(call.size(), static_cast<std::size_t>(kTextBytes - 1)));
  exchange.work = c10d_->all_gather_single(exchange.all, exchange.mine);
  return exchange;
}

void CollectiveCheck::end(Exchange& exchange) {
  if (!mismatch_.empty()) throw DistributedError(mismatch_);
  exchange.work->wait();
  const auto rows = exchange.all.view({-1, kBytes});
  if (rows.narrow(1, 0, kHashBytes).eq(rows[0].narrow(0, 0, kHashBytes)).all().item<bool>()) return;
  std::vector<std::string> calls;
  for (std::int64_t i = 0; i < rows.size(0); ++i)
    calls.emplace_back(static_cast<const char*>(rows[i].data_ptr()) + kHashBytes);
  mismatch_ = "Ranks call different collectives: collective " + std::to_string(exchange.sequence) +
              " on " + group_ + ": " + list_versions(calls, ranks_) + ".";
  throw DistributedError(mismatch_);
}

}  // namespace fulmen::detail
