#pragma once

#include <fulmen/fulmen.h>

#include <vector>

namespace heat {

/// A 3x3 convolution of a domain whose rows are spread over the ranks of a group: before it acts,
/// neighbours exchange the rows at their common border. Equals the convolution of the whole domain
/// with zero padding, row by row.
class HaloConvImpl : public torch::nn::Module {
 public:
  HaloConvImpl(std::int64_t in, std::int64_t out);
  /// (samples, in, rows of this rank, columns) to (samples, out, the same rows, columns). All ranks
  /// have equally many rows.
  at::Tensor forward(const at::Tensor& strip, const fulmen::ProcessGroup& group);

 private:
  torch::nn::Conv2d conv_ = nullptr;
};
TORCH_MODULE(HaloConv);

/// From temperature and diffusivity in a strip of rows to what the solver's steps add to the
/// temperature there. Five convolutions with tanh between them: a point sees five points in each
/// direction, also on other ranks.
class HaloNetworkImpl : public torch::nn::Module {
 public:
  explicit HaloNetworkImpl(std::int64_t channels);
  /// (samples, 2, rows, columns) to (samples, 1, rows, columns).
  at::Tensor forward(const at::Tensor& strip, const fulmen::ProcessGroup& group);

 private:
  std::vector<HaloConv> layers_;
};
TORCH_MODULE(HaloNetwork);

}  // namespace heat
