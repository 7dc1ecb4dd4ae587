#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <string_view>

#include "fulmen/core/checkpoint/safetensors.h"

namespace fulmen::detail {

/// What pack_rank_state() made, apart again. `tensors` is a view of the packed bytes.
struct RankPart {
  std::string_view tensors;
  SafetensorsChecksums sums;
  boost::json::object values;
};

/// Throws CheckpointError for bytes that are torn: all sizes are checked.
RankPart unpack_rank_state(std::string_view packed);

}  // namespace fulmen::detail
