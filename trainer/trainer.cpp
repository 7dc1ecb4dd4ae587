#include "fulmen/trainer/trainer.h"

#include "fulmen/callbacks/model_checkpoint.h"
#include "loops/fit_loop.h"
#include "session.h"

namespace fulmen {

Trainer::Trainer(TrainerOptions options)
    : session_(std::make_unique<detail::Session>(std::move(options))) {}

Trainer::~Trainer() = default;

FitResult Trainer::run_fit(std::shared_ptr<ModuleBase> module,
                           detail::RunSources sources,
                           const FitOptions& options) {
  return session_->fit(std::move(module), std::move(sources), options);
}

EvalResults Trainer::run_evaluation(Stage stage,
                                    std::shared_ptr<ModuleBase> module,
                                    detail::RunSources sources,
                                    const EvalOptions& options) {
  return session_->evaluate(stage, std::move(module), std::move(sources), options);
}

std::vector<AnyBatch> Trainer::run_prediction(std::shared_ptr<ModuleBase> module,
                                              detail::RunSources sources,
                                              const EvalOptions& options) {
  return session_->predict(std::move(module), std::move(sources), options);
}

void Trainer::request_stop(std::string reason) {
  session_->request_stop(std::move(reason));
}

void Trainer::save_checkpoint(const std::filesystem::path& directory, CheckpointScope scope) {
  session_->save_checkpoint(directory, scope);
  for (const auto& logger : session_->loggers_) logger->after_save_checkpoint(directory);
}

std::map<std::string, double> Trainer::callback_metrics() const {
  return session_->callback_metrics();
}

std::map<std::string, double> Trainer::logged_metrics() const {
  return session_->logged_metrics();
}

std::map<std::string, double> Trainer::progress_bar_metrics() const {
  return session_->progress_bar_metrics();
}

const Progress& Trainer::progress() const {
  return session_->progress();
}

const Topology& Trainer::topology() const {
  return session_->topology();
}

TrainerContext& Trainer::context() {
  return *session_;
}

const std::vector<std::shared_ptr<Callback>>& Trainer::callbacks() const {
  return session_->callbacks_;
}

const std::vector<std::shared_ptr<Logger>>& Trainer::loggers() const {
  return session_->loggers_;
}

std::shared_ptr<ModelCheckpoint> Trainer::checkpoint_callback() const {
  for (const auto& callback : session_->callbacks_) {
    if (auto checkpoint = std::dynamic_pointer_cast<ModelCheckpoint>(callback)) return checkpoint;
  }
  return nullptr;
}

}  // namespace fulmen
