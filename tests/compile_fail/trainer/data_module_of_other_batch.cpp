#include "fulmen/trainer/trainer.h"

void train(fulmen::Trainer& trainer, const std::shared_ptr<fulmen::LightningModule<>>& module) {
  trainer.fit(module, std::make_shared<fulmen::DataModule<at::Tensor>>());
}
