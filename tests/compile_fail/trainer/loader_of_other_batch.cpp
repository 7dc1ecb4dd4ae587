#include "fulmen/core/data/data_loader.h"
#include "fulmen/trainer/trainer.h"

struct Images {
  std::int64_t size() const { return 1; }
  at::Tensor get(std::int64_t) const { return {}; }
};

// Its batches are tensors, the module's are fulmen::Batch.
void train(fulmen::Trainer& trainer, const std::shared_ptr<fulmen::LightningModule<>>& module) {
  trainer.fit(module, fulmen::DataLoader(Images()));
}
