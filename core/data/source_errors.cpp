#include "fulmen/core/data/source_errors.h"

#include <c10/util/Type.h>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {

void fail_epoch_open(std::int64_t epoch) {
  fail<DataError>("Loader",
                  "epoch ",
                  epoch,
                  " of this loader is still open, so no other can start. If one Loader is ",
                  "used for two things at a time (training and validation), make one for each.");
}

void fail_range_skip() {
  fail<DataError>(
      "Loader",
      "this range of batches has no state and no random access, so a run cannot be resumed ",
      "inside one of its epochs. Use a fulmen::DataLoader, a std::vector of batches or a ",
      "fulmen::stream_loader that can skip, or resume from a checkpoint at the end of an epoch.");
}

void fail_range_skip(std::int64_t batches, std::int64_t size) {
  fail<DataError>("Loader",
                  "cannot skip ",
                  batches,
                  " batches of a range that has ",
                  size,
                  ". It holds fewer than when the checkpoint was written.");
}

void fail_single_pass(std::int64_t epoch) {
  fail<DataError>("Loader",
                  "the range of batches is empty in epoch ",
                  epoch,
                  ", but it had batches in an earlier ",
                  "epoch: it can be iterated only once. Use fulmen::stream_loader, which makes a "
                  "new stream for ",
                  "each epoch.");
}

void fail_stream_skip() {
  fail<DataError>("stream_loader",
                  "this stream cannot skip batches, so a run cannot be resumed inside one of its ",
                  "epochs. Let its function take fulmen::EpochStart, begin after batches_to_skip, "
                  "and set can_skip; ",
                  "or resume from a checkpoint at the end of an epoch.");
}

void fail_batch_type(const std::type_info& yielded, const std::type_info& expected) {
  fail<ConfigError>("Loader",
                    "this BatchSource yields ",
                    c10::demangle(yielded.name()),
                    ", but ",
                    c10::demangle(expected.name()),
                    " is wanted, which is what the module's step takes.");
}

void fail_null_loader() {
  fail<ConfigError>("Loader",
                    "the pointer to the loader is null. For no loader use an empty one: {}.");
}

void fail_stream_size(std::int64_t size) {
  fail<ConfigError>("stream_loader",
                    "size must be greater than or equal to 0, or unset if it is unknown, got ",
                    size,
                    ".");
}

void fail_stream_takes_no_start() {
  fail<ConfigError>("stream_loader",
                    "can_skip is set, but the function that makes the stream does not take ",
                    "fulmen::EpochStart, which tells how many batches to skip.");
}

}  // namespace fulmen::detail
