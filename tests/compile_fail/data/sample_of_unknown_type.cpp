#include "fulmen/core/data/data_loader.h"

struct Image {
  at::Tensor pixels;
};

struct Images {
  std::int64_t size() const { return 1; }
  Image get(std::int64_t) const { return {}; }
};

void read() {
  fulmen::DataLoader loader{Images()};
}
