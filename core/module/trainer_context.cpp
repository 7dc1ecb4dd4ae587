#include "fulmen/core/module/trainer_context.h"

namespace fulmen {

std::string_view to_string(Stage stage) {
  switch (stage) {
    case Stage::kFit:
      return "fit";
    case Stage::kValidate:
      return "validate";
    case Stage::kTest:
      return "test";
    case Stage::kPredict:
      return "predict";
  }
  return "unknown";
}

}  // namespace fulmen
