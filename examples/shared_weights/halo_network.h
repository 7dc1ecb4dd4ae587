#pragma once

#include <fulmen/fulmen.h>

namespace heat {

/// A 3x3 convolution of a domain whose rows are spread over the ranks of a group: before it acts,
/// neighbours exchange the row at their common border. Equals the convolution of the whole domain
/// with zero padding, row by row.
class HaloConvImpl : public torch::nn::Module {
 public:
  HaloConvImpl(std::int64_t in, std::int64_t out);
  /// (samples, in, rows of this rank, columns) to (samples, out, the same rows, columns).
  at::Tensor forward(const at::Tensor& strip, const fulmen::ProcessGroup& rows);

 private:
  torch::nn::Conv2d conv_ = nullptr;
};
TORCH_MODULE(HaloConv);

/// Temperature and diffusivity at time 0, a strip of rows, to the temperature later: what the
/// solver's steps change is learnt.
class HaloNetworkImpl : public torch::nn::Module {
 public:
  explicit HaloNetworkImpl(std::int64_t channels);
  /// (samples, 2, rows, columns) to (samples, 1, rows, columns).
  at::Tensor forward(const at::Tensor& strip, const fulmen::ProcessGroup& rows);

 private:
  HaloConv first_ = nullptr;
  HaloConv second_ = nullptr;
  HaloConv third_ = nullptr;
};
TORCH_MODULE(HaloNetwork);

}  // namespace heat
