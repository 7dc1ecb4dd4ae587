#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

namespace c10d {
class Store;
}

namespace fulmen::detail {

/// Why a store that has a server cannot be used any more; empty if it can, or has none. To be asked
/// before it is used where its end is nothing unusual: c10d prints stack traces then.
std::string find_store_failure(const c10::intrusive_ptr<c10d::Store>& store,
                               std::chrono::milliseconds limit);

/// Whether it is memory of this process: nothing about it can fail or take long.
bool is_in_process(const c10::intrusive_ptr<c10d::Store>& store);

}  // namespace fulmen::detail
