#pragma once

namespace fulmen {

/// Clip the joint norm of all gradients, or each element by its magnitude.
enum class ClipAlgorithm { kNorm, kValue };

}  // namespace fulmen
