#include "predict_gather.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/value_to.hpp>

#include "core/data/batch_bytes.h"
#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

namespace json = boost::json;

/// Of the predictions of one loader on one rank.
struct Share {
  std::int64_t count = 0;
  std::int64_t most_bytes = 0;
};

/// What `describe` returns, of all ranks of the world. A ConfigError on one of them is thrown on
/// all.
template <class Describe>
std::vector<json::value> describe_jointly(const DeviceMesh& mesh, const Describe& describe) {
  json::object mine;
  try {
    mine["value"] = describe();
  } catch (const ConfigError& error) {
    mine["problem"] = error.what();
  }
  std::vector<json::value> values;
  for (auto& of_rank : all_gather_object(mine, mesh.world()->all())) {
    auto& object = of_rank.as_object();
    if (const auto* problem = object.if_contains("problem"))
      throw ConfigError(json::value_to<std::string>(*problem));
    values.push_back(std::move(object.at("value")));
  }
  return values;
}

json::value describe_shares(const std::vector<std::vector<AnyBatch>>& loaders) {
  json::array shares;
  for (const auto& predictions : loaders) {
    Share share{.count = std::ssize(predictions)};
    for (const auto& prediction : predictions) {
      const auto bytes = static_cast<std::int64_t>(count_bytes(prediction.view()));
      share.most_bytes = std::max(share.most_bytes, bytes);
    }
    shares.push_back(json::array{share.count, share.most_bytes});
  }
  return shares;
}

/// One loader, in rounds of so many predictions of each rank as make up a chunk.
class LoaderGather {
 public:
  LoaderGather(std::vector<AnyBatch>& own,
               std::vector<Share> shares,
               const ProcessGroup& group,
               const PredictGatherOptions& options)
      : own_(own), shares_(std::move(shares)), group_(group), options_(options) {
    for (const auto& share : shares_) {
      most_ = std::max(most_, share.count);
      most_bytes_ = std::max(most_bytes_, share.most_bytes);
    }
    const auto bytes_of_all = std::max<std::int64_t>(most_bytes_, 1) * group_.size();
    per_round_ = std::max<std::int64_t>(1, options_.chunk_bytes / bytes_of_all);
  }

  /// `prototype` is of the type of all predictions.
  void run(const AnyBatch& prototype, std::vector<AnyBatch>& result) {
    const bool receives = group_.rank() == 0;
    for (std::int64_t begin = 0; begin < most_; begin += per_round_) {
      const auto end = std::min(begin + per_round_, most_);
      const auto parts = exchange(receives ? std::string() : pack(begin, end), end - begin);
      if (receives) unpack(parts, begin, end, prototype, result);
    }
  }

 private:
  /// A round's predictions of this rank, which gives them up.
  std::string pack(std::int64_t begin, std::int64_t end) {
    std::string bytes;
    for (auto i = begin; i < std::min(end, std::ssize(own_)); ++i) {
      auto& prediction = own_[static_cast<std::size_t>(i)];
      append_bytes(prediction.view(), bytes);
      prediction.reset();
    }
    return bytes;
  }

  /// The bytes of each rank on the first. As many pieces as any rank may need.
  std::vector<std::string> exchange(std::string_view bytes, std::int64_t predictions) const {
    std::vector<std::string> parts(shares_.size());
    const auto size = static_cast<std::size_t>(options_.piece_bytes);
    for (std::int64_t i = 0; i * options_.piece_bytes < most_bytes_ * predictions; ++i) {
      const auto pieces = gather_bytes(bytes.substr(0, size), 0, group_);
      bytes.remove_prefix(std::min(size, bytes.size()));
      for (std::size_t rank = 0; rank < pieces.size(); ++rank) parts[rank] += pieces[rank];
    }
    return parts;
  }

  void unpack(const std::vector<std::string>& parts,
              std::int64_t begin,
              std::int64_t end,
              const AnyBatch& prototype,
              std::vector<AnyBatch>& result) {
    std::vector<std::string_view> left(parts.begin(), parts.end());
    for (auto i = begin; i < end; ++i) {
      for (std::size_t rank = 0; rank < shares_.size(); ++rank) {
        if (i >= shares_[rank].count) continue;
        if (rank == 0) {
          result.push_back(std::move(own_[static_cast<std::size_t>(i)]));
        } else {
          result.push_back(prototype.another());
          take_bytes(left[rank], result.back().view());
        }
      }
    }
  }

  std::vector<AnyBatch>& own_;
  std::vector<Share> shares_;
  const ProcessGroup& group_;
  const PredictGatherOptions& options_;
  std::int64_t most_ = 0;  ///< Predictions that a rank has.
  std::int64_t most_bytes_ = 0;
  std::int64_t per_round_ = 1;
};

/// Of all data ranks, in their order, for each loader.
std::vector<std::vector<Share>> shares_of(const std::vector<std::vector<AnyBatch>>& loaders,
                                          const DeviceMesh& mesh) {
  const auto values = describe_jointly(mesh, [&] { return describe_shares(loaders); });
  std::vector<std::vector<Share>> shares(loaders.size());
  for (const int rank : mesh.data_group().ranks()) {
    const auto& of_rank = values[static_cast<std::size_t>(rank)].as_array();
    if (of_rank.size() != loaders.size()) {
      fail<DistributedError>("predict",
                             "rank ",
                             rank,
                             " has ",
                             of_rank.size(),
                             " loaders and this rank ",
                             loaders.size(),
                             ". Give all ranks the same.");
    }
    for (std::size_t i = 0; i < loaders.size(); ++i) {
      const auto& share = of_rank[i].as_array();
      shares[i].push_back({share[0].to_number<std::int64_t>(), share[1].to_number<std::int64_t>()});
    }
  }
  return shares;
}

/// An empty prediction; only rank 0 needs it. All ranks throw if it has none to tell the type.
AnyBatch prototype_of(const std::vector<std::vector<AnyBatch>>& loaders,
                      const std::vector<std::vector<Share>>& shares) {
  std::int64_t of_first = 0;
  std::int64_t of_all = 0;
  for (const auto& of_loader : shares) {
    of_first += of_loader[0].count;
    for (const auto& share : of_loader) of_all += share.count;
  }
  if (of_first == 0 && of_all > 0) {
    fail<ConfigError>("predict",
                      "rank 0, which takes the predictions of all ranks, had no batch of its own. ",
                      "Give it data.");
  }
  for (const auto& predictions : loaders) {
    if (!predictions.empty()) return predictions[0].another();
  }
  return {};
}

}  // namespace

void check_predictions_travel(BatchView prediction, const DeviceMesh& mesh) {
  if (mesh.data_size() == 1) return;
  describe_jointly(mesh, [&] { return static_cast<std::int64_t>(count_bytes(prediction)); });
}

std::vector<AnyBatch> gather_predictions(std::vector<std::vector<AnyBatch>> loaders,
                                         const DeviceMesh& mesh,
                                         const PredictGatherOptions& options) {
  std::vector<AnyBatch> result;
  const bool counts = mesh.model_group().rank() == 0;
  if (mesh.data_size() == 1) {
    for (auto& predictions : loaders) {
      for (auto& prediction : predictions) {
        if (counts) result.push_back(std::move(prediction));
      }
    }
    return result;
  }
  const auto shares = shares_of(loaders, mesh);
  const auto prototype = prototype_of(loaders, shares);
  if (!counts) return {};
  const auto group = mesh.data_group();
  for (std::size_t i = 0; i < loaders.size(); ++i)
    LoaderGather(loaders[i], shares[i], group, options).run(prototype, result);
  return result;
}

}  // namespace fulmen::detail
