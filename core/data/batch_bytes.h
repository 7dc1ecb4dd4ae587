#pragma once

#include <string>
#include <string_view>

#include "fulmen/core/data/batch.h"

namespace fulmen::detail {

/// How many bytes append_bytes() would add. Throws ConfigError if the batch cannot travel.
std::size_t count_bytes(BatchView batch);
/// All parts of a batch: numbers and strings as they are in memory, tensors dense, on the CPU.
void append_bytes(BatchView batch, std::string& bytes);
/// Puts a batch of the same type together from the begin of `bytes`, which it takes off. Throws
/// DistributedError if they are not those of such a batch.
void take_bytes(std::string_view& bytes, BatchView batch);

}  // namespace fulmen::detail
