#pragma once

namespace fulmen {

/// Which value of a monitored metric is better.
enum class MonitorMode { kMin, kMax };

}  // namespace fulmen
