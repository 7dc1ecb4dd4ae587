#include "tests/callbacks/model_checkpoint_fixture.h"

#include <utility>

#include "fulmen/core/checkpoint/checkpoint.h"

namespace fulmen {

void write_state(const std::filesystem::path& directory,
                 const ModelCheckpoint& callback,
                 const Progress& progress) {
  CheckpointContents contents;
  contents.trainer["state"] = callback.state_dict().values;
  contents.trainer["epoch"] = progress.epoch;
  contents.trainer["batches"] = progress.total_batches;
  contents.trainer["step"] = progress.global_step;
  write_checkpoint(directory, contents);
}

CheckpointRun::CheckpointRun(const std::filesystem::path& where, ModelCheckpointOptions options)
    : directory(where) {
  options.dirpath = where;
  callback = ModelCheckpoint::make(std::move(options));
  trainer.run_plan.train_batches = 1;
  trainer.run_plan.has_validation = true;
  trainer.on_save = [this](const std::filesystem::path& path, CheckpointScope) {
    write_state(path, *callback, trainer.counters);
  };
}

void CheckpointRun::start(const std::filesystem::path& from) {
  callback->setup(trainer, trainer.module(), Stage::kFit);
  if (!from.empty()) {
    const auto contents = read_checkpoint(from);
    trainer.restored = from;
    trainer.counters.epoch = contents.trainer.at("epoch").as_int64() + 1;
    trainer.counters.total_batches = contents.trainer.at("batches").as_int64();
    trainer.counters.global_step = contents.trainer.at("step").as_int64();
    callback->load_state_dict({.values = contents.trainer.at("state").as_object()});
  }
  callback->on_train_start(trainer, trainer.module());
}

void CheckpointRun::batch() {
  auto& counters = trainer.counters;
  ++counters.global_step;
  ++counters.total_batches;
  callback->on_train_batch_end(trainer, trainer.module(), {}, {}, counters.batch_idx);
  ++counters.batch_idx;
}

void CheckpointRun::validate(std::optional<double> val_loss) {
  if (val_loss) trainer.metrics["val_loss"] = *val_loss;
  callback->on_validation_end(trainer, trainer.module());
}

void CheckpointRun::end_epoch() {
  callback->on_train_epoch_end(trainer, trainer.module());
  ++trainer.counters.epoch;
  trainer.counters.batch_idx = 0;
}

void CheckpointRun::epoch(std::optional<double> val_loss) {
  batch();
  validate(val_loss);
  end_epoch();
}

void CheckpointRun::finish() {
  callback->on_train_end(trainer, trainer.module());
}

std::set<std::string> CheckpointRun::checkpoints() const {
  std::set<std::string> names;
  for (const auto& path : list_checkpoints(directory)) names.insert(path.filename().string());
  return names;
}

std::string CheckpointRun::pointer(const std::string& name) const {
  const auto target = read_pointer(directory, name);
  return target ? target->filename().string() : "";
}

}  // namespace fulmen
