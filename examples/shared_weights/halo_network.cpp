#include "halo_network.h"

namespace heat {

HaloConvImpl::HaloConvImpl(std::int64_t in, std::int64_t out) {
  // Rows are padded by what comes from the neighbours, columns by zeros.
  conv_ = register_module("conv",
                          torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding({0, 1})));
}

at::Tensor HaloConvImpl::forward(const at::Tensor& strip, const fulmen::ProcessGroup& rows) {
  const auto last_row = strip.narrow(2, strip.size(2) - 1, 1);
  const auto above = fulmen::shift_to_next(last_row, rows);  // Zeros at the upper edge.
  const auto below = fulmen::shift_to_previous(strip.narrow(2, 0, 1), rows);
  return conv_->forward(torch::cat({above, strip, below}, 2));
}

HaloNetworkImpl::HaloNetworkImpl(std::int64_t channels) {
  first_ = register_module("first", HaloConv(2, channels));
  second_ = register_module("second", HaloConv(channels, channels));
  third_ = register_module("third", HaloConv(channels, 1));
}

at::Tensor HaloNetworkImpl::forward(const at::Tensor& strip, const fulmen::ProcessGroup& rows) {
  auto x = torch::tanh(first_->forward(strip, rows));
  x = torch::tanh(second_->forward(x, rows));
  return strip.narrow(1, 0, 1) + third_->forward(x, rows);
}

}  // namespace heat
