// A window of gradients: they arrive in buckets, buckets are summed, sums are divided.
#include "fulmen/strategies/gradient_reducer.h"

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/support/error.h"
#include "strategies/gradient_reducer_impl.h"

namespace fulmen {

GradientReducer::GradientReducer(const PlacedParameters& parameters, GradientReducerOptions options)
    : impl_(std::make_shared<Impl>(parameters, std::move(options))) {
  impl_->add_hooks();
}

GradientReducer::~GradientReducer() {
  impl_->remove_hooks();
}

double GradientReducer::loss_scale() const {
  return 1 / impl_->scale_size;
}

void GradientReducer::start_backward(GradSync sync) {
  impl_->start_backward(sync);
}

void GradientReducer::end_backward() {
  impl_->end_backward();
}

WindowVerdict GradientReducer::finish(const WindowVote& vote) {
  return impl_->finish(vote);
}

bool GradientReducer::has_news() const {
  return impl_->has_news;
}

void GradientReducer::Impl::open_window() {
  if (window_open) return;
  adopt_plan();
  reopen(1 / scale_size);
  window_open = true;
}

/// Gradients that were reduced and not zeroed since: more is added to them, and the whole is
/// reduced again. So each becomes what every rank of its group has to bring for the same result,
/// where the losses of this window (of weight 1 on each rank) are multiplied by `loss_scale`.
void GradientReducer::Impl::reopen(double loss_scale) {
  if (!std::exchange(any_reduced, false)) return;
  const at::NoGradGuard no_grad;
  for (auto& parameter : parameters) {
    if (!std::exchange(parameter.reduced, false)) continue;
    const auto& gradient = parameter.tensor.grad();
    const auto part = loss_scale * data_size / parameter.group.size();
    if (gradient.defined() && part != 1) gradient.mul_(part);
  }
}

/// A backward of which nobody told the reducer. All are forgotten, whichever came, so that ranks
/// agree on what is left to reduce.
void GradientReducer::Impl::forget_reduced() {
  if (!std::exchange(any_reduced, false)) return;
  for (auto& parameter : parameters) parameter.reduced = false;
}

void GradientReducer::Impl::mark_reduced(Parameter& parameter) {
  parameter.reduced = any_reduced = true;
}

void GradientReducer::Impl::start_backward(GradSync sync) {
  for (const auto& [name, tensor] : frozen) {
    if (!tensor.requires_grad()) continue;
    fail<TrainingError>("GradientReducer",
                        name,
                        " was frozen when the strategy was set up and requires a gradient now; ",
                        "its gradient would not be reduced. Freeze it after the start of fit ",
                        "(on_fit_start) if it is to be trained later.");
  }
  if (in_backward) drop_started_buckets();
  if (sync == GradSync::kManual) reopen(1);
  open_window();
  in_backward = true;
  syncing = sync == GradSync::kNow;
  sparse = kNone;
  if (syncing) seen_order.clear();
  for (auto& bucket : buckets) bucket.waiting = 0;
  for (auto& parameter : parameters) {
    parameter.arrivals = 0;
    // One that was frozen meanwhile does not come, and must not hold up the others.
    parameter.awaited =
        syncing && counts_known && parameter.bucket != kNone && parameter.tensor.requires_grad();
    if (parameter.awaited) ++buckets[parameter.bucket].waiting;
  }
}

/// The backward that started them threw, so they hold a part of the gradients. Where it threw on
/// all ranks, they are all there.
void GradientReducer::Impl::drop_started_buckets() {
  for (std::size_t i = 0; i < next_bucket; ++i) buckets[i].memory.wait();
  next_bucket = 0;
  for (auto& parameter : parameters) parameter.late.reset();
}

void GradientReducer::Impl::into_bucket(Parameter& parameter) {
  auto& gradient = parameter.tensor.mutable_grad();
  const auto& view = view_of(parameter);
  if (gradient.is_same(view)) return;
  view.copy_(gradient);
  gradient = view;
}

void GradientReducer::Impl::arrived(std::size_t index) {
  const std::lock_guard<std::mutex> lock(mutex);
  auto& parameter = parameters[index];
  auto& gradient = parameter.tensor.mutable_grad();
  if (!gradient.defined()) return;
  if (!in_backward) forget_reduced();
  if (++parameter.arrivals == 1 && syncing && !learnt) seen_order.push_back(index);
  if (parameter.bucket == kNone) return;
  if (gradient.layout() != at::kStrided) {
    sparse = index;
    return;
  }
  const at::NoGradGuard no_grad;
  if (is_started(parameter.bucket)) {  // Its sum is on its way without this part.
    parameter.late = parameter.late.defined() ? parameter.late + gradient : gradient;
    gradient.reset();
    return;
  }
  into_bucket(parameter);
  if (!parameter.awaited || parameter.arrivals < parameter.expected) return;
  parameter.awaited = false;
  --buckets[parameter.bucket].waiting;
  start_ready_buckets();
}

void GradientReducer::Impl::start_ready_buckets() {
  while (next_bucket < buckets.size()) {
    const auto& bucket = buckets[next_bucket];
    if (bucket.waiting > 0 || bucket.memory.carries_slot()) return;
    gather_next_bucket();
    start_next_bucket();
  }
}

/// Until finish() shows the sums the gradients are not to be seen: what still comes must not be
/// added to memory that is being sent.
void GradientReducer::Impl::gather_next_bucket() {
  for (const auto i : buckets[next_bucket].parameters) {
    auto& parameter = parameters[i];
    parameter.used = parameter.tensor.grad().defined();
    if (parameter.used) {
      into_bucket(parameter);
      parameter.tensor.mutable_grad().reset();
    } else {
      view_of(parameter).zero_();
    }
  }
}

void GradientReducer::Impl::start_next_bucket() {
  buckets[next_bucket].memory.start();
  ++next_bucket;
}

void GradientReducer::Impl::end_backward() {
  in_backward = false;
  if (sparse != kNone) {
    fail<TrainingError>("GradientReducer",
                        parameters[sparse].name,
                        " has a sparse gradient, which cannot be summed in a bucket. Make the ",
                        "embedding with sparse = false.");
  }
  if (!syncing) return;
  counts_known = true;
  for (auto& parameter : parameters)
    parameter.expected = std::max({parameter.expected, parameter.arrivals, 1});
}

/// Whether this window has a gradient of a parameter that had none before.
bool GradientReducer::Impl::uses_new_parameters() const {
  return std::ranges::any_of(parameters, [&](const auto& parameter) {
    return !parameter.known && (parameter.used || parameter.tensor.grad().defined());
  });
}

void GradientReducer::Impl::write_slot(Bucket& bucket, const WindowVote& vote) {
  auto& slot = bucket.memory.slot();
  slot.begin(vote, model_rank);
  if (uses_new_parameters()) slot.set_news();
  for (const auto& parameter : parameters) {
    if (parameter.bucket == kNone || parameter.group_index != bucket.group_index) continue;
    if (parameter.used || parameter.late.defined()) slot.set_used(parameter.slot_index);
    if (parameter.late.defined()) slot.set_late();
  }
  slot.write();
}

WindowVerdict GradientReducer::Impl::finish(const WindowVote& vote) {
  const at::NoGradGuard no_grad;
  open_window();  // A rank without a backward has not yet.
  in_backward = syncing = false;
  while (next_bucket < buckets.size()) {
    auto& bucket = buckets[next_bucket];
    gather_next_bucket();
    if (bucket.memory.carries_slot()) write_slot(bucket, vote);
    start_next_bucket();
  }
  Work extra_work;
  if (world_carrier == kNone) {  // No group has all ranks that must agree.
    extra_slot.begin(vote, model_rank);
    if (uses_new_parameters()) extra_slot.set_news();
    extra_slot.write();
    auto numbers = extra_slot.memory();
    extra_work = all_reduce_async(numbers, ReduceOp::kSum, everyone);
  }
  for (auto& bucket : buckets) bucket.memory.wait();
  extra_work.wait();
  if (world_carrier == kNone) extra_slot.read();
  const auto& votes = world_carrier == kNone ? extra_slot : buckets[world_carrier].memory.slot();
  add_late_gradients();
  scale(votes.weight());
  show_results();
  next_bucket = 0;
  window_open = false;
  has_news = votes.news();
  const auto verdict = votes.verdict();
  if (verdict.has_loss && !verdict.skip) check_weights(votes);
  if (!learnt && verdict.has_loss) learn();
  return verdict;
}

/// Sums that all ranks have, so what is thrown is thrown on all.
void GradientReducer::Impl::check_weights(const detail::WindowSlot& votes) const {
  const auto mean = votes.weight() / model_size;
  if (votes.are_equal(votes.weight_of_first(), mean)) return;
  fail<TrainingError>("GradientReducer",
                      "ranks that share samples gave them different weights: those of the first of "
                      "them add up to ",
                      votes.weight_of_first(),
                      " in this window, those of all to ",
                      mean,
                      " on average. training_step must return the same weight on all ranks of a "
                      "model-like axis, and a loss on all of them or on none.");
}

/// Rare: a gradient came after its bucket was started. Then all ranks of the group sum once more.
void GradientReducer::Impl::add_late_gradients() {
  std::vector<at::Tensor> late;
  for (const auto i : carriers) {
    if (!buckets[i].memory.slot().late()) continue;
    for (auto& bucket : buckets) {
      if (bucket.group_index != buckets[i].group_index || bucket.memory.carries_slot()) continue;
      late.clear();
      for (const auto k : bucket.parameters) late.push_back(std::exchange(parameters[k].late, {}));
      bucket.memory.add(late);
    }
  }
}

/// Buckets hold sums of weight * gradient / scale_size. `weight` is the sum over the world, which
/// has each data coordinate as often as there are model-like ranks.
void GradientReducer::Impl::scale(double weight) {
  const auto total = weight / model_size;
  if (total == scale_size || total == 0) return;
  const auto divisor = total / scale_size;
  for (auto& bucket : buckets) bucket.memory.divide(divisor);
  for (auto& parameter : parameters) {
    auto& gradient = parameter.tensor.mutable_grad();
    if (parameter.bucket == kNone && gradient.defined()) detail::divide(gradient, divisor);
  }
}

void GradientReducer::Impl::show_results() {
  for (auto& bucket : buckets) bucket.memory.deliver();
  for (auto& parameter : parameters) {
    mark_reduced(parameter);
    parameter.known |= parameter.used || parameter.tensor.grad().defined();
    if (parameter.bucket == kNone) continue;
    auto& gradient = parameter.tensor.mutable_grad();
    if (carrier(parameter).slot().used(parameter.slot_index)) {
      gradient = view_of(parameter);
    } else {
      gradient.reset();
    }
  }
}

}  // namespace fulmen
