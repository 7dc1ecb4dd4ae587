#pragma once

#include <cstdint>
#include <typeinfo>

namespace fulmen::detail {

// What sources throw. DataError:
[[noreturn]] void fail_epoch_open(std::int64_t epoch);
[[noreturn]] void fail_range_skip();
[[noreturn]] void fail_range_skip(std::int64_t batches, std::int64_t size);
[[noreturn]] void fail_single_pass(std::int64_t epoch);
[[noreturn]] void fail_stream_skip();
// ConfigError:
[[noreturn]] void fail_batch_type(const std::type_info& yielded, const std::type_info& expected);
[[noreturn]] void fail_null_loader();
[[noreturn]] void fail_stream_size(std::int64_t size);
[[noreturn]] void fail_stream_takes_no_start();

}  // namespace fulmen::detail
