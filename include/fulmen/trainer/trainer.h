#pragma once

#include <concepts>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "fulmen/core/data/loader.h"
#include "fulmen/core/distributed/topology.h"
#include "fulmen/core/loggers/logger.h"
#include "fulmen/core/module/callback.h"
#include "fulmen/core/module/data_module.h"
#include "fulmen/core/module/lightning_module.h"
#include "fulmen/trainer/options.h"

namespace fulmen {

class ModelCheckpoint;

namespace detail {
class Session;

/// Where the batches of a run come from; what is empty, the module's hooks give.
struct RunSources {
  std::shared_ptr<BatchSource> train = {};
  std::vector<std::shared_ptr<BatchSource>> eval = {};
  std::shared_ptr<DataModuleBase> data_module = {};
};
}  // namespace detail

enum class Restore { kEverything, kWeights };

/// Where FitOptions::checkpoint is "last" or "best" and there is none yet: an error, or a new run.
/// The second is for programs that are started again from outside (fulmen-run, SLURM).
enum class MissingCheckpoint { kFail, kStartAnew };

struct FitOptions {
  /// A checkpoint directory, "last" or "best" (of the trainer's checkpoint callback); empty: start
  /// anew.
  std::string checkpoint = {};
  Restore restore = Restore::kEverything;
  MissingCheckpoint missing = MissingCheckpoint::kFail;
};

struct EvalOptions {
  std::string checkpoint = {};  ///< As in FitOptions: weights to evaluate; empty: the module's own.
  bool verbose = true;          ///< Print the table of results.
};

struct FitResult {
  RunStatus status =
      RunStatus::kFinished;      ///< kInterrupted: stopped by a signal or request_stop().
  std::string stop_reason = {};  ///< Empty: ran to max_epochs or max_steps.
};

/// One map for each loader: metric name to value.
using EvalResults = std::vector<std::map<std::string, double>>;

/// Runs a module: fit, validate, test and predict. One at a time and on one thread; only
/// request_stop() may be called from others. Every call tears down what it set up, also when it
/// throws; after an exception the trainer can be used again.
class Trainer {
 public:
  /// Throws ConfigError for every option that cannot work.
  explicit Trainer(TrainerOptions options = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains. Loaders may be left out if the module's hooks give them. Anything that yields the
  /// module's batch type is a loader (core/data/loader.h); another type does not compile.
  template <std::derived_from<ModuleBase> M>
  FitResult fit(const std::shared_ptr<M>& module,
                std::type_identity_t<Loader<typename M::batch_type>> train = {},
                std::type_identity_t<Loaders<typename M::batch_type>> val = {},
                FitOptions options = {}) {
    return run_fit(module, {train.source(), val.sources(), nullptr}, options);
  }
  template <std::derived_from<ModuleBase> M, std::derived_from<DataModuleBase> D>
  FitResult fit(const std::shared_ptr<M>& module,
                const std::shared_ptr<D>& data,
                FitOptions options = {}) {
    check_data_module<M, D>();
    return run_fit(module, {nullptr, {}, data}, options);
  }

  /// Evaluates. Returns the metrics of each loader and prints them as a table.
  template <std::derived_from<ModuleBase> M>
  EvalResults validate(const std::shared_ptr<M>& module,
                       std::type_identity_t<Loaders<typename M::batch_type>> loaders = {},
                       EvalOptions options = {}) {
    return run_evaluation(Stage::kValidate, module, {nullptr, loaders.sources(), nullptr}, options);
  }
  template <std::derived_from<ModuleBase> M, std::derived_from<DataModuleBase> D>
  EvalResults validate(const std::shared_ptr<M>& module,
                       const std::shared_ptr<D>& data,
                       EvalOptions options = {}) {
    check_data_module<M, D>();
    return run_evaluation(Stage::kValidate, module, {nullptr, {}, data}, options);
  }
  template <std::derived_from<ModuleBase> M>
  EvalResults test(const std::shared_ptr<M>& module,
                   std::type_identity_t<Loaders<typename M::batch_type>> loaders = {},
                   EvalOptions options = {}) {
    return run_evaluation(Stage::kTest, module, {nullptr, loaders.sources(), nullptr}, options);
  }
  template <std::derived_from<ModuleBase> M, std::derived_from<DataModuleBase> D>
  EvalResults test(const std::shared_ptr<M>& module,
                   const std::shared_ptr<D>& data,
                   EvalOptions options = {}) {
    check_data_module<M, D>();
    return run_evaluation(Stage::kTest, module, {nullptr, {}, data}, options);
  }

  /// What predict_step returned, batch by batch, loader by loader, its tensors on the CPU. On
  /// several ranks: on rank 0 that of all ranks in the order of the data, elsewhere nothing; with
  /// use_distributed_sampler off, of each rank its own. Throws ConfigError for a type that cannot
  /// travel whole (core/data/batch_visit.h).
  template <std::derived_from<ModuleBase> M>
  std::vector<typename M::prediction_type> predict(
      const std::shared_ptr<M>& module,
      std::type_identity_t<Loaders<typename M::batch_type>> loaders = {},
      EvalOptions options = {}) {
    return typed<M>(run_prediction(module, {nullptr, loaders.sources(), nullptr}, options));
  }
  template <std::derived_from<ModuleBase> M, std::derived_from<DataModuleBase> D>
  std::vector<typename M::prediction_type> predict(const std::shared_ptr<M>& module,
                                                   const std::shared_ptr<D>& data,
                                                   EvalOptions options = {}) {
    check_data_module<M, D>();
    return typed<M>(run_prediction(module, {nullptr, {}, data}, options));
  }

  /// Stops the run at the next boundary of a batch, also inside validation (on several ranks: after
  /// it): callbacks save, no epoch-end hooks run, and a run resumed from that checkpoint goes on
  /// exactly. From any thread; does nothing if nothing runs.
  void request_stop(std::string reason = "request_stop() was called");

  /// Writes the state of the last fit (or of the running one) as a checkpoint directory that does
  /// not exist yet.
  void save_checkpoint(const std::filesystem::path& directory,
                       CheckpointScope scope = CheckpointScope::kEverything);

  /// Of the last run, read from the device now. See core/module/trainer_context.h.
  std::map<std::string, double> callback_metrics() const;
  std::map<std::string, double> logged_metrics() const;
  std::map<std::string, double> progress_bar_metrics() const;

  const Progress& progress() const;
  /// Where this process is among the ranks of the last run; of one process before the first.
  const Topology& topology() const;
  /// The rank that prints and writes.
  bool is_global_zero() const { return topology().rank == 0; }
  /// As callbacks see it.
  TrainerContext& context();
  const std::vector<std::shared_ptr<Callback>>& callbacks() const;
  const std::vector<std::shared_ptr<Logger>>& loggers() const;
  /// The first of that kind; null if there is none.
  std::shared_ptr<ModelCheckpoint> checkpoint_callback() const;

 private:
  template <class M, class D>
  static void check_data_module() {
    static_assert(std::is_same_v<typename M::batch_type, typename D::batch_type>,
                  "This DataModule yields another batch type than the module's training_step "
                  "takes: give both the same "
                  "type, as in LightningModule<MyBatch> and DataModule<MyBatch>.");
  }
  template <class M>
  static std::vector<typename M::prediction_type> typed(std::vector<AnyBatch> outputs) {
    std::vector<typename M::prediction_type> result;
    result.reserve(outputs.size());
    for (auto& output : outputs)
      result.push_back(std::move(output.get<typename M::prediction_type>()));
    return result;
  }

  FitResult run_fit(std::shared_ptr<ModuleBase> module,
                    detail::RunSources sources,
                    const FitOptions& options);
  EvalResults run_evaluation(Stage stage,
                             std::shared_ptr<ModuleBase> module,
                             detail::RunSources sources,
                             const EvalOptions& options);
  std::vector<AnyBatch> run_prediction(std::shared_ptr<ModuleBase> module,
                                       detail::RunSources sources,
                                       const EvalOptions& options);

  std::unique_ptr<detail::Session> session_;
};

}  // namespace fulmen
