#pragma once

#include <filesystem>

#include "fulmen/core/data/tensor_dataset.h"

namespace digits {

/// Reads the UCI digits as scikit-learn ships them: gzipped CSV, in each line 64 pixels of 0..16
/// and the label. A sample is an image (1, 8, 8) of floats from 0 (paper) to 1 (ink) and an int64
/// label. Throws fulmen::DataError that names the file, the line and what is wrong.
fulmen::TensorDataset read_digits(const std::filesystem::path& file);

}  // namespace digits
