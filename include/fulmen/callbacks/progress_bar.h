#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>

#include "fulmen/core/module/callback.h"

namespace fulmen {

enum class ProgressBarStyle {
  kAuto,   ///< kTty if the output is a terminal, else kPlain.
  kTty,    ///< One live line, redrawn in place; a finished epoch's line stays.
  kPlain,  ///< A line at the end of each epoch and evaluation: for files and logs.
};

struct ProgressBarOptions {
  /// kTty: redraw only at multiples of so many batches, kPlain: also write a line there. 0: kTty is
  /// bound by min_refresh_interval alone, kPlain writes nothing within an epoch.
  std::int64_t refresh_rate = 0;
  ProgressBarStyle style = ProgressBarStyle::kAuto;
  std::chrono::duration<double> min_refresh_interval =
      std::chrono::milliseconds(100);  ///< Of kTty.
  std::ostream* output =
      nullptr;    ///< Not owned. Null: standard output; no other output counts as a terminal.
  int width = 0;  ///< Columns of the live line. 0: what the terminal says, else 80.
  std::function<std::chrono::steady_clock::time_point()> clock = {};  ///< Unset: the steady clock.
};

/// Shows how far a run is: "Epoch 3: 45/100 [====>     ] 12.3 it/s, eta 0:04, loss=0.123". Metrics
/// are those logged with prog_bar; they are read from the device only when a line is written. A
/// batch that writes nothing costs one look at the clock, or none (kPlain). Rank 0 alone writes.
class ProgressBar : public Callback {
 public:
  /// Throws ConfigError for options out of range.
  static std::shared_ptr<ProgressBar> make(ProgressBarOptions options = {});

  CallbackKind kind() const override { return CallbackKind::kProgressBar; }

  void setup(Context& context, Module& module, Stage stage) override;
  void on_sanity_check_start(Context& context, Module& module) override;
  void on_sanity_check_end(Context& context, Module& module) override;
  void on_train_start(Context& context, Module& module) override;
  void on_train_epoch_start(Context& context, Module& module) override;
  void on_train_batch_end(Context& context,
                          Module& module,
                          const StepOutput& outputs,
                          BatchView batch,
                          std::int64_t batch_idx) override;
  void on_train_end(Context& context, Module& module) override;
  void on_validation_start(Context& context, Module& module) override;
  void on_validation_batch_end(Context& context,
                               Module& module,
                               const StepOutput& outputs,
                               BatchView batch,
                               std::int64_t batch_idx,
                               std::int64_t dataloader_idx) override;
  void on_validation_end(Context& context, Module& module) override;
  void on_test_start(Context& context, Module& module) override;
  void on_test_batch_end(Context& context,
                         Module& module,
                         const StepOutput& outputs,
                         BatchView batch,
                         std::int64_t batch_idx,
                         std::int64_t dataloader_idx) override;
  void on_test_end(Context& context, Module& module) override;
  void on_predict_start(Context& context, Module& module) override;
  void on_predict_batch_end(Context& context,
                            Module& module,
                            BatchView prediction,
                            BatchView batch,
                            std::int64_t batch_idx,
                            std::int64_t dataloader_idx) override;
  void on_predict_end(Context& context, Module& module) override;
  void on_exception(Context& context, Module& module, const std::exception& error) override;
  void on_interrupt(Context& context, Module& module, std::string_view reason) override;

 private:
  using Time = std::chrono::steady_clock::time_point;
  using Seconds = std::chrono::duration<double>;
  enum class Metrics { kHide, kShow };

  /// One thing that is counted: the batches of an epoch, or of an evaluation.
  struct Meter {
    std::string label = {};
    std::int64_t first = 0;  ///< Where it started; greater than 0 after a resume.
    std::int64_t done = 0;
    std::optional<std::int64_t> total = {};
    Time started = {};
    Seconds paused = Seconds::zero();
    bool open = false;
  };

  explicit ProgressBar(ProgressBarOptions options);
  Time now() const;
  void begin_epoch(Context& context);
  void begin_evaluation(Context& context, const std::string& label);
  void count_evaluation(Context& context);
  void end_evaluation(Context& context, Metrics metrics);
  void end_epoch(Context& context);
  void end_abruptly(Context& context);

  bool is_due(const Meter& meter);
  void draw(Context& context, const Meter& meter, Metrics metrics);
  void write_line(Context& context, const Meter& meter, Metrics metrics);
  void close_live_line();
  std::string text(Context& context, const Meter& meter, Metrics metrics) const;
  std::size_t columns() const;
  void write(const std::string& bytes);

  ProgressBarOptions options_;
  bool live_;
  bool shown_ = true;  ///< On this rank.
  bool line_open_ = false;
  Meter train_;
  Meter evaluation_;
  Time next_draw_ = {};
};

}  // namespace fulmen
