#pragma once

/// Forward declarations of everything public. Costs nothing to include.

namespace at {
class Tensor;
}
namespace torch {
using at::Tensor;
}
namespace torch::nn {
class Module;
}

namespace fulmen {
class Accelerator;
class AnyBatch;
class BatchSource;
class BatchView;
class Callback;
class DataModuleBase;
class Log;
class Logger;
class LRScheduler;
class ManualOptimization;
class ModuleBase;
class Optimizer;
class Profiler;
class Strategy;
class Trainer;
class TrainerContext;
class Window;
struct Batch;
struct LogOptions;
struct Progress;
struct StateDict;
struct StepOutput;
}  // namespace fulmen
