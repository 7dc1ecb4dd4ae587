#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>

#include "fulmen/core/data/batch_source.h"

namespace fulmen {

/// One epoch of a source as an input range of B&, for loops without a Trainer. The epoch starts at
/// begin(), once, and is left when this object dies, wherever the loop stopped.
template <class B>
class LoaderEpoch {
 public:
  class Iterator {
   public:
    using difference_type = std::ptrdiff_t;
    using value_type = B;

    explicit Iterator(LoaderEpoch* epoch) : epoch_(epoch) {}
    B& operator*() const { return epoch_->batch_.template get<B>(); }
    Iterator& operator++() {
      epoch_->advance();
      return *this;
    }
    void operator++(int) { epoch_->advance(); }
    bool operator==(std::default_sentinel_t) const { return !epoch_->batch_.has_value(); }

   private:
    LoaderEpoch* epoch_;
  };

  LoaderEpoch(std::shared_ptr<BatchSource> source, std::int64_t epoch)
      : source_(std::move(source)), epoch_(epoch) {}
  LoaderEpoch(const LoaderEpoch&) = delete;
  LoaderEpoch& operator=(const LoaderEpoch&) = delete;
  ~LoaderEpoch() { source_->stop_epoch(); }

  Iterator begin() {
    source_->start_epoch({.epoch = epoch_});
    advance();
    return Iterator(this);
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  void advance() {
    if (!source_->next(batch_)) batch_.reset();
  }

  std::shared_ptr<BatchSource> source_;
  std::int64_t epoch_;
  AnyBatch batch_;
};

}  // namespace fulmen
