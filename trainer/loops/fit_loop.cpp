#include "fit_loop.h"

#include <torch/torch.h>

#include "../run_state.h"
#include "evaluation_loop.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

using Kind = ValidationInterval::Kind;

bool is_ordinary(CallbackKind kind) {
  return kind != CallbackKind::kMonitor && kind != CallbackKind::kCheckpoint;
}

}  // namespace

FitLoop::FitLoop(Session& session)
    : session_(session),
      window_(session, *this),
      last_validation_(std::chrono::steady_clock::now()) {
  for (const auto& callback : session.callbacks_) keeps_boundary_ |= callback->saves_on_exception();
}

FitLoop::~FitLoop() {
  if (data_) data_->stop();
}

const char* FitLoop::run() {
  auto& state = session_.state;
  connect_validation_data();
  sanity_check();
  connect_training_data();
  session_.metrics.begin_phase(MetricPhase::kTrain);
  restore_position();
  session_.call(HookPoint::kOnTrainStart, &Callback::on_train_start, &ModuleBase::on_train_start);
  session_.metrics.commit();
  session_.agree_on_wishes();
  restore_random_state(session_);
  session_.restoring.reset();
  const bool trains = !session_.train_limit().is_off();
  while (trains && session_.interruption() == nullptr &&
         (state.epoch_done || state.validation_pending || !finished()))
    run_epoch();
  if (const char* reason = session_.interruption()) return reason;
  session_.call(HookPoint::kOnTrainEnd, &Callback::on_train_end, &ModuleBase::on_train_end);
  session_.metrics.end_phase();
  return nullptr;
}

void FitLoop::connect_validation_data() {
  const auto& options = session_.options;
  const auto limit =
      session_.dev_run_or(options.overfit_batches.value_or(options.limit_val_batches));
  val_sources_.clear();
  // Loaders of a validation that is turned off are not even asked for.
  if (!limit.is_off()) val_sources_ = session_.eval_sources(Stage::kValidate);
  session_.plan_.has_validation = !val_sources_.empty();
}

void FitLoop::connect_training_data() {
  source_ = session_.train_source();
  session_.prepare_source(*source_, "the training loader");
  if (session_.restoring) restore_source(session_, *source_);
  const auto limit = session_.train_limit();
  const char* option = session_.options.overfit_batches ? "overfit_batches" : "limit_train_batches";
  data_ = std::make_unique<LimitedSource>(
      *source_, limit, "the training loader", option, Lookahead::kYes);
  connected_epoch_ = session_.state.progress.epoch;
  if (!session_.several_ranks()) data_->require_batches();
  agree_on_batches();
  window_.set_data(*data_);
  check_interval();
  const auto window = session_.state.accumulate_grad_batches;
  const auto size = session_.plan_.train_batches;
  if (size && *size > 0 && *size < window) {
    session_.log().warning_once(
        "Trainer: accumulate_grad_batches = ",
        window,
        " is more than the ",
        *size,
        " batches of ",
        "an epoch. A window ends with its epoch: each step is the mean over those ",
        *size,
        ".");
  }
}

/// How many batches the epoch has: on several ranks as many as UnevenData says.
void FitLoop::agree_on_batches() {
  session_.plan_.train_batches = data_->size();
  if (!session_.several_ranks() || session_.train_limit().is_off()) return;
  const auto own = data_->size().value_or(-1);
  const auto bounds =
      session_.strategy().reduce(at::tensor({own, -own}, at::kLong), ReduceOp::kMax);
  const auto most = bounds[0].item<std::int64_t>();
  const auto least = -bounds[1].item<std::int64_t>();
  if (least < 0) {
    fail<DataError>("the training loader",
                    "has no known size, so ",
                    session_.strategy().topology().world_size,
                    " ranks cannot agree on the end of an epoch. Use a DataLoader, or "
                    "limit_train_batches = fulmen::batches(n).");
  }
  if (least == 0) {
    fail<DataError>("the training loader",
                    "has no batch for at least one of the ",
                    session_.strategy().mesh().data_size(),
                    " data ranks: use more samples, or fewer ranks.");
  }
  const bool joins = session_.options.uneven_data == UnevenData::kJoin;
  if (joins && least != most && session_.module->optimization_mode() == OptimizationMode::kManual) {
    fail<DataError>("the training loader",
                    "has ",
                    least,
                    " to ",
                    most,
                    " batches on different ranks, but manual optimization needs the same number ",
                    "on each. Set drop_last, or .uneven_data = UnevenData::kStopAtShortest.");
  }
  const auto joint = joins ? most : least;
  data_->set_joint_size(joint);
  session_.plan_.train_batches = joint;
}

void FitLoop::check_interval() const {
  const auto& interval = session_.options.val_check_interval;
  const auto size = session_.plan_.train_batches;
  if (!session_.plan_.has_validation) return;
  if (interval.kind() == Kind::kBatches && size && interval.value() > static_cast<double>(*size)) {
    fail<ConfigError>("TrainerOptions",
                      "val_check_interval = every_n_batches(",
                      interval.value(),
                      ") is more than the ",
                      *size,
                      " batches of an epoch, so validation would never run. Use ",
                      "every_n_batches_across_epochs(n) or a smaller number.");
  }
  if (interval.kind() == Kind::kFraction && interval.value() < 1 && !size) {
    fail<ConfigError>("TrainerOptions",
                      "val_check_interval = every_fraction(",
                      interval.value(),
                      ") needs a training loader of known size. Use every_n_batches(n).");
  }
}

void FitLoop::sanity_check() {
  const auto steps = session_.options.num_sanity_val_steps;
  const bool in_epoch = session_.state.epoch_started;
  const bool off = steps == 0 || session_.options.fast_dev_run > 0 || session_.options.barebones;
  if (!session_.plan_.has_validation || off || in_epoch) return;
  const auto random_state = session_.accelerator->random_state(session_.strategy().root_device());
  session_.sanity_checking_ = true;
  session_.call_callbacks(HookPoint::kOnSanityCheckStart, &Callback::on_sanity_check_start);
  EvaluationLoop loop(session_, val_sources_, Stage::kValidate);
  if (steps > 0) loop.limit_batches(steps);
  loop.run();
  session_.call_callbacks(HookPoint::kOnSanityCheckEnd, &Callback::on_sanity_check_end);
  session_.sanity_checking_ = false;
  session_.accelerator->set_random_state(session_.strategy().root_device(), random_state);
}

void FitLoop::restore_position() {
  if (session_.restoring) restore_metrics(session_);
  using std::chrono::duration_cast;
  last_validation_ =
      std::chrono::steady_clock::now() - duration_cast<std::chrono::steady_clock::duration>(
                                             Seconds(session_.state.seconds_since_validation));
  const auto& state = session_.state;
  if (!session_.restoring || state.epoch_done || state.validation_pending || !finished()) return;
  session_.log().warning("Trainer: the checkpoint is at epoch ",
                         session_.state.progress.epoch,
                         ", step ",
                         session_.state.progress.global_step,
                         ", so max_epochs or max_steps is reached already and ",
                         "nothing is trained. Raise the limit to go on.");
}

bool FitLoop::minimums_met() const {
  const auto& options = session_.options;
  const auto& state = session_.state;
  const auto epochs = state.progress.epoch + (state.epoch_done ? 1 : 0);
  return epochs >= options.min_epochs.value_or(0) &&
         state.progress.global_step >= options.min_steps.value_or(0);
}

bool FitLoop::finished() {
  auto& state = session_.state;
  const auto& plan = session_.plan_;
  if (plan.max_epochs && state.progress.epoch >= *plan.max_epochs) return true;
  if (plan.max_steps && state.progress.global_step >= *plan.max_steps) return true;
  if (state.stop_reason.empty()) return false;
  if (minimums_met()) return true;
  // Not kept for later: whoever asked asks again if the reason still holds.
  session_.log().info_once("Trainer: \"",
                           state.stop_reason,
                           "\" would stop the run, but min_epochs or min_steps is not reached.");
  state.stop_reason.clear();
  return false;
}

void FitLoop::start_epoch() {
  auto& state = session_.state;
  const auto every = session_.options.reload_dataloaders_every_n_epochs;
  const bool resumed = state.epoch_started;
  const bool fresh = connected_epoch_ == state.progress.epoch;
  if (every > 0 && state.progress.epoch % every == 0 && !fresh && !resumed) {
    connect_validation_data();
    connect_training_data();
  }
  // The same batches in the same order each time, also if they are shuffled.
  const auto order = session_.options.overfit_batches ? 0 : state.progress.epoch;
  if (!state.epoch_done) {
    const auto own_end = state.own_end < 0 ? std::nullopt : std::optional(state.own_end);
    data_->start({.epoch = order, .batches_to_skip = state.progress.batch_idx}, own_end);
    session_.check_same_order(*data_, "the training loader");
    agree_on_batches();  // An epoch that is resumed on other ranks has another number of them.
  }
  session_.metrics.begin_epoch();
  pinned_metrics_.reset();
  if (resumed) return;
  session_.call(HookPoint::kOnTrainEpochStart,
                &Callback::on_train_epoch_start,
                &ModuleBase::on_train_epoch_start);
  session_.metrics.commit();
  state.epoch_started = true;
}

void FitLoop::run_epoch() {
  auto& state = session_.state;
  const auto steps_before = state.progress.total_batches;
  start_epoch();
  if (state.validation_pending) run_validation();
  bool stop = finished();  // A resumed run may have nothing left but the end of its epoch.
  while (!state.epoch_done && !stop && session_.interruption() == nullptr) {
    window_.open();
    session_.strategy().run_window(window_);
    session_.set_hook(HookPoint::kOutside);
    stop = finished();
  }
  data_->stop();
  if (session_.interruption() != nullptr) return;
  if (state.epoch_done && !state.epoch_cut && state.progress.batch_idx == 0 &&
      state.progress.total_batches == steps_before) {
    fail<DataError>("the training loader",
                    "yielded no batch in epoch ",
                    state.progress.epoch,
                    ". A range that can be read only once is empty in its second epoch: use a "
                    "DataLoader or stream.");
  }
  end_epoch();
}

void FitLoop::end_epoch() {
  auto& state = session_.state;
  const bool complete = state.epoch_done;
  // An epoch that ends before its last batch still gets its validation, unless max_steps cut it
  // off.
  const auto kind = session_.options.val_check_interval.kind();
  const bool by_epoch = kind == Kind::kFraction || kind == Kind::kBatches;
  const bool skipped = state.epoch_cut && by_epoch && validation_epoch();
  const bool stopped = !complete && !state.stop_reason.empty() && validation_epoch();
  const bool fresh = validated_at_ == state.progress.total_batches;
  const bool due = state.validation_pending || ((skipped || stopped) && !fresh);
  if (session_.plan_.has_validation && due) run_validation();
  if (session_.interruption() != nullptr) return;
  state.epoch_cut = false;

  // A checkpoint of an epoch that is not complete goes on with its sums.
  if (!complete) pinned_metrics_ = session_.metrics.state_dict();
  // Hooks that throw here are run anew after a resume.
  if (keeps_boundary_) pinned_ = capture_position(session_);
  session_.end_metrics_epoch();
  const auto point = HookPoint::kOnTrainEpochEnd;
  session_.call_callbacks_if(point, is_ordinary, &Callback::on_train_epoch_end);
  session_.hook(point).on_train_epoch_end();
  session_.commit_epoch_hooks();
  // Before checkpoints are written, so that a resumed run has the same learning rate.
  if (complete) step_epoch_plateau_schedulers();
  state.epoch_closing = complete;
  pinned_.reset();
  // Monitors judge whole epochs: of one that was broken off there are no new values of validation.
  const auto judges = [&](CallbackKind kind_of) {
    return kind_of == CallbackKind::kCheckpoint || (kind_of == CallbackKind::kMonitor && complete);
  };
  session_.call_callbacks_if(point, judges, &Callback::on_train_epoch_end);
  session_.metrics.commit();
  session_.agree_on_wishes();
  session_.set_hook(HookPoint::kOutside);
  session_.send_to_loggers(session_.metrics.epoch_metrics(MetricPhase::kTrain),
                           session_.logged_step());
  if (!complete) return;
  ++state.progress.epoch;
  state.progress.batch_idx = 0;
  state.own_end = -1;
  state.epoch_started = state.epoch_done = state.epoch_closing = false;
}

bool FitLoop::validation_epoch() const {
  return (session_.state.progress.epoch + 1) % session_.options.check_val_every_n_epoch == 0;
}

bool FitLoop::validates_by_steps() const {
  return session_.plan_.has_validation &&
         session_.options.val_check_interval.kind() == Kind::kSteps;
}

bool FitLoop::validation_is_due(bool updated) const {
  const auto& plan = session_.plan_;
  if (!plan.has_validation) return false;
  const auto& state = session_.state;
  const auto& interval = session_.options.val_check_interval;
  const auto n = static_cast<std::int64_t>(interval.value());
  switch (interval.kind()) {
    case Kind::kBatchesAcrossEpochs:
      return state.progress.total_batches % n == 0;
    case Kind::kSteps:
      return updated && state.progress.global_step % n == 0;
    case Kind::kTime:
      return session_.several_ranks() ? state.validation_wanted : validation_is_due_by_clock();
    case Kind::kBatches:
      return validation_epoch() && state.progress.batch_idx % n == 0;
    case Kind::kFraction:
      break;
  }
  if (!validation_epoch()) return false;
  if (interval.value() >= 1 || !plan.train_batches) return state.epoch_done;
  const auto part = static_cast<double>(*plan.train_batches) * interval.value();
  return state.progress.batch_idx % std::max<std::int64_t>(1, static_cast<std::int64_t>(part)) == 0;
}

bool FitLoop::validation_is_due_by_clock() const {
  const auto& interval = session_.options.val_check_interval;
  return session_.plan_.has_validation && interval.kind() == Kind::kTime &&
         seconds_since_validation() >= interval.value();
}

void FitLoop::run_validation() {
  auto& state = session_.state;
  state.validation_pending = true;
  // A validation that is broken off is run anew as a whole, so what is saved meanwhile is the state
  // at its start.
  pinned_ = capture_position(session_);
  for (const auto& buffer : session_.module->named_buffers()) {
    if (buffer.value().defined()) pinned_->model[buffer.key()] = buffer.value().detach().clone();
  }
  if (!state.window_open())
    session_.hook(HookPoint::kOnValidationModelZeroGrad).on_validation_model_zero_grad();
  EvaluationLoop loop(session_, val_sources_, Stage::kValidate);
  loop.on_complete([this] {
    pinned_.reset();
    session_.state.validation_pending = false;
    validated_at_ = session_.state.progress.total_batches;
    last_validation_ = std::chrono::steady_clock::now();
  });
  loop.run();
  state.validation_wanted = false;
  session_.agree_on_wishes();  // Early stopping acts at once.
}

double FitLoop::seconds_since_validation() const {
  return Seconds(std::chrono::steady_clock::now() - last_validation_).count();
}

void FitLoop::log_step() {
  const auto every = session_.options.log_every_n_steps;
  if (every == 0 || session_.state.progress.global_step % every != 0) return;
  if (!session_.metrics.has_step_logger_metrics(MetricPhase::kTrain)) return;
  session_.send_to_loggers(session_.metrics.step_metrics(MetricPhase::kTrain),
                           session_.logged_step());
}

void FitLoop::mark_boundary() {
  if (keeps_boundary_) boundary_.take(session_);
}

void FitLoop::roll_back() {
  session_.metrics.discard();
  const bool inside = session_.state.phase == BatchPhase::kBeforeUpdate;
  if (inside && !pinned_ && keeps_boundary_) boundary_.put_back(session_);
}

StateDict FitLoop::source_state() const {
  return source_ ? source_->state_dict() : StateDict();
}

}  // namespace fulmen::detail
