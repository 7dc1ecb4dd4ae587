#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/data/epoch_order.h"
#include "core/data/ordered_workers.h"
#include "fulmen/core/data/batch_request.h"
#include "fulmen/core/data/data_loader_options.h"
#include "fulmen/core/data/source_errors.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

constexpr auto kName = "DataLoader";

std::string_view word(bool value) {
  return value ? "true" : "false";
}

// What a checkpoint says about the epoch that was open.
struct SavedEpoch {
  std::int64_t epoch = 0;
  std::int64_t dataset_size = 0;
  std::int64_t batch_size = 0;
  std::int64_t seed = 0;
  std::int64_t order = 0;
  std::int64_t ranks = 1;
  std::int64_t position = 0;  // Batches that were given.
  EpochOrigin origin = {};
  bool shuffle = false;
  bool drop_last = false;

  // Where a loader goes on that divides the rest otherwise.
  EpochOrigin origin_after(std::int64_t batches) const {
    return {.batches = batches,
            .samples = origin.samples + (batches - origin.batches) * batch_size * ranks};
  }
};

class LoaderSource final : public BatchSource {
 public:
  LoaderSource(std::shared_ptr<const BatchMaker> maker, const DataLoaderOptions& options)
      : maker_(std::move(maker)), options_(options) {}

  const std::type_info& batch_type() const override { return maker_->batch_type(); }
  std::optional<std::int64_t> size() const override;
  void start_epoch(const EpochStart& start) override;
  bool next(AnyBatch& batch) override;
  void stop_epoch() noexcept override;
  bool can_skip() const override { return true; }
  void set_default_seed(std::uint64_t seed) override { default_seed_ = seed; }
  bool set_share(const DataShare& share) override {
    share_ = share;
    return true;
  }
  std::string order() const override;
  double weight() const override {
    return open_ != nullptr && open_->position > 0 ? open_->order.weight_of(open_->position - 1)
                                                   : 1;
  }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  struct OpenEpoch {
    OpenEpoch(const DataLoaderOptions& options,
              const SampleOrder& asked,
              const DataShare& share,
              const EpochOrigin& begins_at)
        : order(options, asked, share, begins_at),
          origin(begins_at),
          sample_order(asked),
          request(asked.seed, asked.epoch, cancelled) {}

    EpochOrder order;
    EpochOrigin origin;
    SampleOrder sample_order;
    std::int64_t position = 0;
    std::atomic<bool> cancelled{false};
    BatchRequest request;                     // Of the calling thread.
    std::unique_ptr<OrderedWorkers> workers;  // Last: its threads use what is above.
  };

  std::uint64_t seed() const { return options_.seed.value_or(saved_seed_.value_or(default_seed_)); }
  AnyBatch make(const EpochOrder& order, std::int64_t batch_idx, BatchRequest& request) const;
  std::unique_ptr<OrderedWorkers> start_workers(const OpenEpoch& epoch) const;
  void check_resume(const EpochStart& start, std::int64_t dataset_size) const;
  bool is_divided_as_saved() const {
    return saved_epoch_->ranks == share_.count && saved_epoch_->batch_size == options_.batch_size;
  }
  // Of the epoch that was open, resumed after so many batches.
  EpochOrigin resumed_origin(std::int64_t batches) const {
    return is_divided_as_saved() ? saved_epoch_->origin : saved_epoch_->origin_after(batches);
  }
  SavedEpoch describe(const OpenEpoch& epoch) const;

  std::shared_ptr<const BatchMaker> maker_;
  DataLoaderOptions options_;
  std::uint64_t default_seed_ = 0;
  DataShare share_;
  std::optional<std::uint64_t> saved_seed_;
  std::optional<SavedEpoch> saved_epoch_;
  std::unique_ptr<OpenEpoch> open_;
};

std::optional<std::int64_t> LoaderSource::size() const {
  if (open_ != nullptr) return open_->order.batches();
  auto samples = std::optional(maker_->size());
  if (options_.sampler != nullptr) samples = options_.sampler->size(*samples);
  if (!samples) return {};
  // If anything is left of the epoch that was open, that one is next.
  EpochOrigin origin;
  if (saved_epoch_) {
    const auto position = saved_epoch_->position;
    if (saved_epoch_->origin_after(position).samples < *samples) origin = resumed_origin(position);
  }
  return EpochOrder::count_batches(options_, *samples, share_, origin);
}

void LoaderSource::start_epoch(const EpochStart& start) {
  if (open_ != nullptr && open_->position < open_->order.batches())
    fail_epoch_open(open_->sample_order.epoch);
  stop_epoch();
  auto size = maker_->size();
  const bool resumes = start.batches_to_skip > 0 && saved_epoch_;
  EpochOrigin origin;
  if (resumes) {
    check_resume(start, size);
    size = saved_epoch_->dataset_size;
    origin = resumed_origin(start.batches_to_skip);
  }
  auto epoch = std::make_unique<OpenEpoch>(
      options_,
      SampleOrder{.seed = seed(), .epoch = start.epoch, .dataset_size = size},
      share_,
      origin);
  if (start.batches_to_skip < 0 || start.batches_to_skip > epoch->order.batches()) {
    fail<DataError>(kName,
                    "cannot skip ",
                    start.batches_to_skip,
                    " batches of epoch ",
                    start.epoch,
                    ", which has ",
                    epoch->order.batches(),
                    ".");
  }
  if (resumes && epoch->order.fingerprint() != saved_epoch_->order) {
    fail<DataError>(kName,
                    "the sampler gives another order for epoch ",
                    start.epoch,
                    " than before the checkpoint. It must depend on its arguments alone.");
  }
  epoch->position = start.batches_to_skip;
  epoch->workers = start_workers(*epoch);
  open_ = std::move(epoch);
}

// An epoch left early can still be saved and resumed.
void LoaderSource::stop_epoch() noexcept {
  if (open_ == nullptr) return;
  if (open_->position < open_->order.batches()) {
    saved_epoch_ = describe(*open_);
  } else if (saved_epoch_ && saved_epoch_->epoch <= open_->sample_order.epoch) {
    saved_epoch_.reset();
  }
  open_.reset();
}

std::unique_ptr<OrderedWorkers> LoaderSource::start_workers(const OpenEpoch& epoch) const {
  const auto left = epoch.order.batches() - epoch.position;
  if (options_.num_workers == 0 || left == 0) return nullptr;
  const auto ahead = std::int64_t{options_.num_workers} * options_.prefetch_factor;
  return std::make_unique<OrderedWorkers>(
      OrderedWorkers::Range{.first = epoch.position, .end = epoch.order.batches()},
      options_.num_workers,
      std::min(ahead, left),
      [this, &order = epoch.order](std::int64_t batch_idx, BatchRequest& request) {
        return make(order, batch_idx, request);
      },
      [order = epoch.sample_order](const std::atomic<bool>& cancelled) {
        return BatchRequest(order.seed, order.epoch, cancelled);
      });
}

AnyBatch LoaderSource::make(const EpochOrder& order,
                            std::int64_t batch_idx,
                            BatchRequest& request) const {
  order.indices_of(batch_idx, request.mutable_indices());
  request.set_batch(batch_idx);
  return maker_->make(request);
}

bool LoaderSource::next(AnyBatch& batch) {
  batch.reset();
  if (open_ == nullptr)
    fail<DataError>(kName, "next was called, but no epoch is open. Call start_epoch first.");
  if (open_->position == open_->order.batches()) return false;
  const auto batch_idx = open_->position++;
  if (open_->workers != nullptr) return open_->workers->next(batch);
  // The same as on a worker's thread. An inference tensor in a dataset's cache could not be trained
  // on later.
  const c10::InferenceMode normal_mode(false);
  batch = make(open_->order, batch_idx, open_->request);
  return true;
}

SavedEpoch LoaderSource::describe(const OpenEpoch& epoch) const {
  return {.epoch = epoch.sample_order.epoch,
          .dataset_size = epoch.sample_order.dataset_size,
          .batch_size = options_.batch_size,
          .seed = static_cast<std::int64_t>(epoch.sample_order.seed),
          .order = epoch.order.fingerprint(),
          .ranks = share_.count,
          .position = epoch.position,
          .origin = epoch.origin,
          .shuffle = options_.shuffle,
          .drop_last = options_.drop_last};
}

std::string LoaderSource::order() const {
  if (open_ == nullptr) return {};
  std::ostringstream text;
  text << open_->sample_order.dataset_size << " samples, batch_size " << options_.batch_size
       << (options_.drop_last ? ", drop_last" : "");
  if (options_.sampler != nullptr) {
    text << ", a sampler's order " << std::hex
         << static_cast<std::uint64_t>(open_->order.fingerprint());
  } else if (options_.shuffle) {
    text << ", shuffled with seed " << open_->sample_order.seed;
  }
  return text.str();
}

StateDict LoaderSource::state_dict() const {
  StateDict state;
  state.values["seed"] =
      static_cast<std::int64_t>(open_ != nullptr ? open_->sample_order.seed : seed());
  const auto open = open_ != nullptr ? std::optional(describe(*open_)) : saved_epoch_;
  if (open) {
    state.values["open_epoch"] = boost::json::object{{"epoch", open->epoch},
                                                     {"dataset_size", open->dataset_size},
                                                     {"batch_size", open->batch_size},
                                                     {"seed", open->seed},
                                                     {"order", open->order},
                                                     {"ranks", open->ranks},
                                                     {"position", open->position},
                                                     {"origin_batches", open->origin.batches},
                                                     {"origin_samples", open->origin.samples},
                                                     {"shuffle", open->shuffle},
                                                     {"drop_last", open->drop_last}};
  }
  return state;
}

void LoaderSource::load_state_dict(const StateDict& state) {
  const auto saved_seed = static_cast<std::uint64_t>(require_int(state.values, "seed", kName));
  std::optional<SavedEpoch> saved;
  if (state.values.contains("open_epoch")) {
    const auto& open = require_object(state.values, "open_epoch", kName);
    const auto number = [&](std::string_view key, std::int64_t before_it_was_there) {
      return open.contains(key) ? require_int(open, key, kName) : before_it_was_there;
    };
    saved = SavedEpoch{
        .epoch = require_int(open, "epoch", kName),
        .dataset_size = require_int(open, "dataset_size", kName),
        .batch_size = require_int(open, "batch_size", kName),
        .seed = require_int(open, "seed", kName),
        .order = require_int(open, "order", kName),
        .ranks = number("ranks", 1),
        .position = number("position", 0),
        .origin = {.batches = number("origin_batches", 0), .samples = number("origin_samples", 0)},
        .shuffle = require_bool(open, "shuffle", kName),
        .drop_last = require_bool(open, "drop_last", kName)};
  }
  saved_seed_ = saved_seed;
  saved_epoch_ = saved;
}

void LoaderSource::check_resume(const EpochStart& start, std::int64_t dataset_size) const {
  const auto& saved = *saved_epoch_;
  const auto check = [&](const char* what, auto now, auto before) {
    if (now == before) return;
    fail<DataError>(kName,
                    "epoch ",
                    start.epoch,
                    " cannot be resumed after ",
                    start.batches_to_skip,
                    " batches: ",
                    what,
                    " is ",
                    now,
                    ", but it was ",
                    before,
                    " when the checkpoint was written. ",
                    "Use the same value, or resume from a checkpoint at the end of an epoch.");
  };
  check("the epoch", start.epoch, saved.epoch);
  // With other ranks the batch of a rank may have to change, so that the joint one does not.
  if (share_.count == saved.ranks) check("batch_size", options_.batch_size, saved.batch_size);
  check("shuffle", word(options_.shuffle), word(saved.shuffle));
  check("drop_last", word(options_.drop_last), word(saved.drop_last));
  check("seed", seed(), static_cast<std::uint64_t>(saved.seed));
  if (dataset_size >= saved.dataset_size) return;
  fail<DataError>(
      kName,
      "epoch ",
      start.epoch,
      " cannot be resumed after ",
      start.batches_to_skip,
      " batches: the dataset has ",
      dataset_size,
      " samples, but it had ",
      saved.dataset_size,
      " when the checkpoint was written. It may grow, but not shrink, inside an epoch.");
}

}  // namespace

void validate(const DataLoaderOptions& options) {
  const auto at_least = [](const char* option, std::int64_t value, std::int64_t least) {
    if (value < least) {
      fail<ConfigError>(
          kName, option, " must be greater than or equal to ", least, ", got ", value, ".");
    }
  };
  at_least("batch_size", options.batch_size, 1);
  at_least("num_workers", options.num_workers, 0);
  at_least("prefetch_factor", options.prefetch_factor, 1);
  if (options.sampler != nullptr && options.shuffle) {
    fail<ConfigError>(
        kName, "shuffle must be false if a sampler is given: the sampler decides the order.");
  }
}

std::shared_ptr<BatchSource> make_loader_source(std::shared_ptr<const BatchMaker> maker,
                                                const DataLoaderOptions& options) {
  return std::make_shared<LoaderSource>(std::move(maker), options);
}

}  // namespace fulmen::detail
