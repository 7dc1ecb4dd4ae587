#pragma once

#include <cstdint>
#include <vector>

#include "fulmen/core/data/batch.h"
#include "fulmen/core/distributed/device_mesh.h"

namespace fulmen::detail {

/// What rank 0 holds beside the result, and what travels in one piece.
struct PredictGatherOptions {
  std::int64_t chunk_bytes = std::int64_t{64} << 20;
  std::int64_t piece_bytes = std::int64_t{256} << 20;
};

/// Collective: throws the ConfigError on all ranks if the prediction of one of them cannot travel
/// whole. Ranks without a prediction give none.
void check_predictions_travel(BatchView prediction, const DeviceMesh& mesh);

/// Collective: the predictions of each loader on rank 0, in the order of the data: of each joint
/// batch those of the first data rank, of the second, and so on. Of ranks that share samples the
/// first counts. Empty on other ranks.
std::vector<AnyBatch> gather_predictions(std::vector<std::vector<AnyBatch>> loaders,
                                         const DeviceMesh& mesh,
                                         const PredictGatherOptions& options = {});

}  // namespace fulmen::detail
