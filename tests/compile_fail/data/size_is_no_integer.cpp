#include "fulmen/core/data/data_loader.h"

struct Images {
  double size() const { return 1; }
  at::Tensor get(std::int64_t) const { return {}; }
};

void read() {
  fulmen::DataLoader loader{Images()};
}
