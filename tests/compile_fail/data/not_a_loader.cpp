#include "fulmen/core/data/loader.h"

fulmen::Loader<fulmen::Batch> train_dataloader() {
  return 5;
}
