#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/distributed/strategy.h"
#include "fulmen/strategies/comm_hook.h"

namespace fulmen::detail {

/// The numbers that ride along with the gradients of a group: sums over its ranks.
class WindowSlot {
 public:
  WindowSlot() = default;
  /// Elements that a slot for so many parameters needs.
  static std::int64_t size_for(std::size_t parameters) {
    return kVotes + static_cast<std::int64_t>(parameters);
  }
  /// `memory` has size_for(parameters) elements, and is a part of a bucket or of its own.
  explicit WindowSlot(at::Tensor memory);
  const at::Tensor& memory() const { return memory_; }

  /// Starts to fill it: nothing is used, nothing late. `model_rank` is the place among ranks that
  /// share samples.
  void begin(const WindowVote& vote, int model_rank);
  void set_late() { values()[kLate] = 1; }
  void set_news() { values()[kNews] = 1; }
  void set_used(std::size_t parameter) { values()[kVotes + parameter] = 1; }
  /// Writes what was filled in to the memory.
  void write();
  /// Reads the sums.
  void read();

  double weight() const { return values()[kWeight]; }
  /// The part of it from ranks that are the first of those that share samples.
  double weight_of_first() const { return values()[kFirstWeight]; }
  /// Whether two sums of weights are the same number but for rounding in the slot's dtype.
  bool are_equal(double a, double b) const;
  WindowVerdict verdict() const;
  bool late() const { return values()[kLate] > 0; }
  bool news() const { return values()[kNews] > 0; }
  bool used(std::size_t parameter) const { return values()[kVotes + parameter] > 0; }

 private:
  enum Place : std::int64_t {
    kWeight,
    kFirstWeight,
    kHasLoss,
    kSkip,
    kStop,
    kFinish,
    kValidate,
    kLate,
    kNews,
    kVotes
  };
  double* values() const { return host_.data_ptr<double>(); }

  at::Tensor memory_;
  at::Tensor host_;  ///< The same in float64 on the host.
  int model_rank_ = 0;
  at::Tensor device_weight_;  ///< The part of the weight that is not read by the host.
};

/// In place, rounded once: a scalar would be rounded to 16 bits too, and its reciprocal in any
/// dtype.
void divide(at::Tensor& values, double divisor);

/// Flat memory for gradients that are summed together; their .grad are views of it.
class GradientBucket {
 public:
  struct Options {
    ProcessGroup group;
    int index = 0;
    std::optional<at::ScalarType> reduce_dtype = {};
    std::shared_ptr<CommHook> comm_hook = {};
    std::int64_t slot_size = 0;  ///< 0: it carries none.
    std::string label = {};      ///< Of its collectives, for messages.
  };
  /// Views come in the order of the parameters, with their strides.
  GradientBucket(const std::vector<at::Tensor>& parameters, Options options);

  const at::Tensor& view(std::size_t i) const { return views_[i]; }
  const ProcessGroup& group() const { return options_.group; }
  bool carries_slot() const { return options_.slot_size > 0; }
  WindowSlot& slot() { return slot_; }

  /// Starts the sum. The memory must not be touched until deliver().
  void start();
  /// Waits for the sum.
  void wait();
  /// Sums once more over the group, for gradients that came after start(): one for each view,
  /// undefined where there is none. After wait().
  void add(const std::vector<at::Tensor>& gradients);
  void divide(double divisor) { detail::divide(sums_, divisor); }
  /// The views show the sums.
  void deliver();

 private:
  Options options_;
  at::Tensor gradients_;  ///< The memory behind the views.
  std::vector<at::Tensor> views_;
  /// What the collective sums: the same memory, or its copy in another dtype; with the slot behind
  /// it where its dtype can hold the slot's numbers and no hook gets to see it.
  at::Tensor flat_;
  at::Tensor sums_;  ///< Its part without the slot.
  WindowSlot slot_;
  bool slot_rides_along_ = false;
  Work work_;
  Work slot_work_;
};

}  // namespace fulmen::detail
