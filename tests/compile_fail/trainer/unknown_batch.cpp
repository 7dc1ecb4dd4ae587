#include "fulmen/trainer/trainer.h"

struct Images {
  at::Tensor pixels;
};

class Model : public fulmen::LightningModule<Images> {};

auto make() {
  return std::make_shared<Model>();
}
