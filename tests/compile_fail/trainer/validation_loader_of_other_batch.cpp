#include "fulmen/trainer/trainer.h"

void validate(fulmen::Trainer& trainer, const std::shared_ptr<fulmen::LightningModule<>>& module) {
  trainer.validate(module, std::vector<at::Tensor>());
}
