#include "halo_network.h"

namespace heat {

HaloConvImpl::HaloConvImpl(std::int64_t in, std::int64_t out) {
  // Rows are padded by what comes from the neighbours, columns by zeros.
  conv_ = register_module("conv",
                          torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding({0, 1})));
}

at::Tensor HaloConvImpl::forward(const at::Tensor& strip, const fulmen::ProcessGroup& group) {
  const auto first_row = strip.narrow(2, 0, 1);
  const auto last_row = strip.narrow(2, strip.size(2) - 1, 1);
  // Zeros come to the first and the last rank: the padding of the whole domain.
  const auto above = fulmen::shift_to_next(last_row, group);
  const auto below = fulmen::shift_to_previous(first_row, group);
  return conv_->forward(torch::cat({above, strip, below}, 2));
}

HaloNetworkImpl::HaloNetworkImpl(std::int64_t channels) {
  constexpr int kLayers = 5;
  for (int i = 0; i < kLayers; ++i) {
    layers_.push_back(
        register_module("layer" + std::to_string(i),
                        HaloConv(i == 0 ? 2 : channels, i == kLayers - 1 ? 1 : channels)));
  }
}

at::Tensor HaloNetworkImpl::forward(const at::Tensor& strip, const fulmen::ProcessGroup& group) {
  auto x = layers_[0]->forward(strip, group);
  for (std::size_t i = 1; i < layers_.size(); ++i) x = layers_[i]->forward(torch::tanh(x), group);
  return x;
}

}  // namespace heat
