#pragma once

#include <ATen/core/Tensor.h>

namespace fulmen {

enum class GradSync {
  kNow,     ///< The last micro-batch of a window: gradients are reduced as they come.
  kDefer,   ///< More micro-batches of the window follow: gradients stay local.
  kManual,  ///< reduce_gradients() will be called for those that are to be reduced.
};

/// Sum of the weights of a window's micro-batches on this rank: a number, plus a tensor where
/// weights live on a device. The same on all ranks that share a sample.
struct WindowWeight {
  double number = 0;
  at::Tensor tensor = {};
};

/// What one rank brings to the end of a window.
struct WindowVote {
  WindowWeight weight = {};
  bool has_loss = false;  ///< False: no loss came in this window (out of data, or left out).
  bool skip = false;      ///< Its loss was not finite: nobody updates.
  bool stop = false;      ///< A signal or request to stop reached it.
  bool finish = false;    ///< stop_training() was called on it.
  bool validate = false;  ///< By its clock a validation is due.
};

/// What all ranks have decided together: each is true if it is true in any rank's vote.
struct WindowVerdict {
  bool has_loss = false;
  bool skip = false;
  bool stop = false;
  bool finish = false;
  bool validate = false;
};
/// The verdict of one rank alone.
inline WindowVerdict verdict_of(const WindowVote& vote) {
  return {.has_loss = vote.has_loss,
          .skip = vote.skip,
          .stop = vote.stop,
          .finish = vote.finish,
          .validate = vote.validate};
}

/// One optimizer step as the training loop offers it: a window of micro-batches.
class Window {
 public:
  /// Fetches the next micro-batch, moves it, calls on_train_batch_start. False if the window is
  /// over: it was closed by step(), or the run stops, and then gradients stay open.
  virtual bool next() = 0;
  /// Whether the micro-batch is the window's last: call step(), which runs it too, in place of
  /// accumulate().
  virtual bool is_last() const = 0;
  /// training_step and backward; gradients add up.
  virtual void accumulate(GradSync sync) = 0;
  /// The last micro-batch, then finish_gradients, hooks, clipping, update.
  virtual void step() = 0;
  /// Schedulers, on_train_batch_end, logging, and a validation that is due.
  virtual void end_batch() = 0;

 protected:
  ~Window() = default;
};

}  // namespace fulmen
