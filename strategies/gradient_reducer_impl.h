#pragma once

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/torch.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fulmen/strategies/gradient_reducer.h"
#include "strategies/bucket_plan.h"
#include "strategies/gradient_bucket.h"

namespace fulmen {

struct GradientReducer::Impl : std::enable_shared_from_this<GradientReducer::Impl> {
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  struct Parameter {
    std::string name;
    at::Tensor tensor;
    ProcessGroup group;
    std::size_t group_index = 0;  ///< Among groups of several ranks.
    std::size_t slot_index = 0;   ///< Of its use in the slot of its group.
    std::int64_t bytes = 0;       ///< On the rank where it is largest.
    std::size_t bucket = kNone;   ///< None: its gradient is this rank's alone.
    std::size_t place = 0;        ///< In its bucket.
    int arrivals = 0;             ///< In this backward.
    int expected = 0;             ///< In a backward; 0: not learnt.
    bool awaited = false;         ///< Its bucket does not start before it has come.
    bool used = false;            ///< Has a gradient in this window; known when its bucket is full.
    at::Tensor late = {};         ///< What came after its bucket was started.
    bool known = false;           ///< This rank has had a gradient of it.
    bool reduced = false;         ///< Its gradient is that of all ranks: no backward since.
    Accumulator accumulator = {};
    std::uintptr_t hook = 0;
  };
  struct Bucket {
    detail::GradientBucket memory;
    std::vector<std::size_t> parameters;
    std::size_t group_index = 0;
    std::size_t waiting = 0;  ///< Parameters that are awaited in this backward.
  };

  Impl(const PlacedParameters& placed, GradientReducerOptions given);
  void check_options() const;
  void add_parameter(const PlacedTensor& item, const ProcessGroup& group);
  void agree_on_sizes(const PlacedParameters& placed);
  void add_hooks();
  void remove_hooks();

  // Planning.
  void make_buckets(std::vector<std::size_t> new_order);
  void adopt_plan();
  void learn();

  // During a window.
  void open_window();
  void reopen(double loss_scale);
  void forget_reduced();
  void mark_reduced(Parameter& parameter);
  void start_backward(GradSync sync);
  void end_backward();
  void arrived(std::size_t index);
  void into_bucket(Parameter& parameter);
  void start_ready_buckets();
  void gather_next_bucket();
  void start_next_bucket();
  void drop_started_buckets();
  WindowVerdict finish(const WindowVote& vote);
  void write_slot(Bucket& bucket, const WindowVote& vote);
  void add_late_gradients();
  void scale(double weight);
  bool uses_new_parameters() const;
  void check_weights(const detail::WindowSlot& votes) const;
  void show_results();
  detail::GradientBucket& carrier(const Parameter& parameter) {
    return buckets[carriers[parameter.group_index]].memory;
  }
  bool is_started(std::size_t bucket) const { return bucket < next_bucket; }
  const at::Tensor& view_of(const Parameter& parameter) const {
    return buckets[parameter.bucket].memory.view(parameter.place);
  }

  GradientReducerOptions options;
  std::shared_ptr<const DeviceMesh> mesh;
  double data_size = 1;   ///< Ranks that have different samples.
  double scale_size = 1;  ///< Losses are divided by it: data_size, or the power of two above it.
  double model_size = 1;  ///< Ranks that share each sample.
  int model_rank = 0;     ///< Among those.
  ProcessGroup everyone;
  ProcessGroup peers;  ///< Ranks with the same parameters: all, but for stages of a pipeline.
  std::vector<Parameter> parameters;
  std::vector<std::pair<std::string, at::Tensor>> frozen;
  std::vector<ProcessGroup> groups;       ///< Of several ranks.
  std::vector<std::size_t> group_counts;  ///< Parameters of each.
  std::deque<Bucket> buckets;             ///< In the order in which they are summed.
  std::size_t next_bucket = 0;            ///< To be started; those before it are.
  std::vector<std::size_t> carriers;      ///< For each group, the bucket with its slot.
  std::size_t world_carrier = kNone;      ///< Of a group that spans the world.
  detail::WindowSlot extra_slot;          ///< Where there is none.

  std::mutex mutex;           ///< Held by hooks: a model on several devices has several threads.
  bool window_open = false;   ///< Since its first backward.
  bool in_backward = false;   ///< Still true in the next one: it was left by an exception.
  bool syncing = false;       ///< This backward is the window's last.
  bool any_reduced = false;   ///< Some parameter is `reduced`.
  bool counts_known = false;  ///< How often each gradient comes in a backward.
  bool has_news = false;      ///< The last window had a gradient that is new on some rank.
  bool learnt = false;        ///< There is a plan that is not the first guess.
  std::vector<std::size_t> order;       ///< Of which the buckets were made.
  std::vector<std::size_t> seen_order;  ///< In which gradients came in the last micro-batch.
  std::vector<std::size_t> next_order;  ///< A plan to be adopted when the next window starts.
  std::size_t sparse = kNone;           ///< A parameter whose gradient is not dense.
};

}  // namespace fulmen
