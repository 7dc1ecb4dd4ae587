#include "fulmen/callbacks/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <ostream>
#include <utility>

#include "callbacks/monitoring.h"
#include "callbacks/progress_text.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

constexpr std::string_view kWhere = "ProgressBar";

std::optional<std::int64_t> sum_of(const std::vector<std::optional<std::int64_t>>& counts) {
  std::int64_t sum = 0;
  for (const auto& count : counts) {
    if (!count) return std::nullopt;
    sum += *count;
  }
  return sum;
}

}  // namespace

std::shared_ptr<ProgressBar> ProgressBar::make(ProgressBarOptions options) {
  if (options.refresh_rate < 0) {
    fail<ConfigError>(kWhere, "refresh_rate must be at least 0, got ", options.refresh_rate, ".");
  }
  if (!(options.min_refresh_interval.count() >= 0 &&
        std::isfinite(options.min_refresh_interval.count()))) {
    fail<ConfigError>(kWhere,
                      "min_refresh_interval must be at least 0, got ",
                      options.min_refresh_interval.count(),
                      " s.");
  }
  if (options.width < 0)
    fail<ConfigError>(kWhere, "width must be at least 0, got ", options.width, ".");
  return std::shared_ptr<ProgressBar>(new ProgressBar(std::move(options)));
}

ProgressBar::ProgressBar(ProgressBarOptions options)
    : options_(std::move(options)),
      live_(options_.style == ProgressBarStyle::kTty ||
            (options_.style == ProgressBarStyle::kAuto && options_.output == nullptr &&
             isatty(STDOUT_FILENO) == 1)) {}

ProgressBar::Time ProgressBar::now() const {
  return options_.clock ? options_.clock() : std::chrono::steady_clock::now();
}

void ProgressBar::setup(Context& context, Module&, Stage) {
  shown_ = detail::is_writer(context);
  train_ = {};
  evaluation_ = {};
}

void ProgressBar::begin_epoch(Context& context) {
  const auto& progress = context.progress();
  train_ = {.label = "Epoch " + std::to_string(progress.epoch),
            .first = progress.batch_idx,
            .done = progress.batch_idx,
            .total = context.plan().train_batches,
            .started = now(),
            .open = true};
}

void ProgressBar::end_epoch(Context& context) {
  if (std::exchange(train_.open, false)) write_line(context, train_, Metrics::kShow);
}

// An epoch's line is written when the next one starts: its own metrics are complete only then.
void ProgressBar::on_train_start(Context& context, Module&) {
  begin_epoch(context);
}

void ProgressBar::on_train_epoch_start(Context& context, Module&) {
  const bool first = train_.open && train_.done == train_.first;
  if (!first) end_epoch(context);
  begin_epoch(context);
}

void ProgressBar::on_train_end(Context& context, Module&) {
  if (train_.done > train_.first) end_epoch(context);
  train_.open = false;
}

void ProgressBar::on_train_batch_end(
    Context& context, Module&, const StepOutput&, BatchView, std::int64_t batch_idx) {
  train_.done = batch_idx + 1;
  if (is_due(train_)) draw(context, train_, Metrics::kShow);
}

void ProgressBar::begin_evaluation(Context& context, const std::string& label) {
  evaluation_ = {
      .label = label, .total = sum_of(context.plan().eval_batches), .started = now(), .open = true};
}

void ProgressBar::count_evaluation(Context& context) {
  ++evaluation_.done;
  if (is_due(evaluation_)) draw(context, evaluation_, Metrics::kHide);
}

void ProgressBar::end_evaluation(Context& context, Metrics metrics) {
  if (!std::exchange(evaluation_.open, false)) return;
  train_.paused += now() - evaluation_.started;
  if (!train_.open) {
    write_line(context, evaluation_, metrics);
  } else if (live_) {
    draw(context, train_, metrics);
  } else if (!context.plan().validates_once_per_epoch) {
    write_line(context, evaluation_, metrics);
  }
}

void ProgressBar::on_sanity_check_start(Context&, Module&) {}

void ProgressBar::on_sanity_check_end(Context& context, Module&) {
  end_evaluation(context, Metrics::kHide);
}

void ProgressBar::on_validation_start(Context& context, Module&) {
  begin_evaluation(context,
                   context.sanity_checking() ? "Sanity check"
                   : train_.open             ? train_.label + " validation"
                                             : "Validating");
}

void ProgressBar::on_validation_batch_end(
    Context& context, Module&, const StepOutput&, BatchView, std::int64_t, std::int64_t) {
  count_evaluation(context);
}

void ProgressBar::on_validation_end(Context& context, Module&) {
  end_evaluation(context, train_.open ? Metrics::kShow : Metrics::kHide);
}

void ProgressBar::on_test_start(Context& context, Module&) {
  begin_evaluation(context, "Testing");
}

void ProgressBar::on_test_batch_end(
    Context& context, Module&, const StepOutput&, BatchView, std::int64_t, std::int64_t) {
  count_evaluation(context);
}

void ProgressBar::on_test_end(Context& context, Module&) {
  end_evaluation(context, Metrics::kHide);
}

void ProgressBar::on_predict_start(Context& context, Module&) {
  begin_evaluation(context, "Predicting");
}

void ProgressBar::on_predict_batch_end(
    Context& context, Module&, BatchView, BatchView, std::int64_t, std::int64_t) {
  count_evaluation(context);
}

void ProgressBar::on_predict_end(Context& context, Module&) {
  end_evaluation(context, Metrics::kHide);
}

void ProgressBar::on_exception(Context& context, Module&, const std::exception&) {
  end_abruptly(context);
}

void ProgressBar::on_interrupt(Context& context, Module&, std::string_view) {
  end_abruptly(context);
}

void ProgressBar::end_abruptly(Context& context) {
  // The metrics are not read: the device may be what failed.
  const Meter& meter = evaluation_.open ? evaluation_ : train_;
  if (meter.open) write_line(context, meter, Metrics::kHide);
  evaluation_.open = false;
  train_.open = false;
}

bool ProgressBar::is_due(const Meter& meter) {
  if (!shown_) return false;
  const auto rate = options_.refresh_rate;
  if (!live_) return rate > 0 && meter.done % rate == 0 && meter.done != meter.total;
  if (rate > 0 && meter.done % rate != 0 && meter.done != meter.total) return false;
  const auto time = now();
  if (time < next_draw_) return false;
  next_draw_ = time + std::chrono::duration_cast<Time::duration>(options_.min_refresh_interval);
  return true;
}

void ProgressBar::draw(Context& context, const Meter& meter, Metrics metrics) {
  if (!shown_) return;
  if (!live_) return write_line(context, meter, metrics);
  auto line = text(context, meter, metrics);
  // The last column stays free: some terminals wrap when it is written.
  if (line.size() >= columns()) line.resize(columns() - 1);
  write("\r" + line + "\x1b[K");
  line_open_ = true;
}

void ProgressBar::write_line(Context& context, const Meter& meter, Metrics metrics) {
  if (!shown_) return;
  if (!live_) return write(text(context, meter, metrics) + "\n");
  draw(context, meter, metrics);
  close_live_line();
}

void ProgressBar::close_live_line() {
  if (std::exchange(line_open_, false)) write("\n");
}

std::string ProgressBar::text(Context& context, const Meter& meter, Metrics metrics) const {
  const auto time = now() - meter.started;
  detail::ProgressText parts{.label = meter.label,
                             .done = meter.done,
                             .counted = meter.done - meter.first,
                             .total = meter.total,
                             .seconds = Seconds(time).count() - meter.paused.count(),
                             .bar_width = live_ ? 20 : 0};
  if (metrics == Metrics::kShow) parts.metrics = context.progress_bar_metrics();
  return detail::format_progress(parts);
}

std::size_t ProgressBar::columns() const {
  if (options_.width > 0) return static_cast<std::size_t>(options_.width);
  winsize size{};
  const bool known =
      options_.output == nullptr && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

void ProgressBar::write(const std::string& bytes) {
  if (options_.output != nullptr) {
    options_.output->write(bytes.data(), std::ssize(bytes)).flush();
    return;
  }
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  std::fflush(stdout);
}

}  // namespace fulmen
