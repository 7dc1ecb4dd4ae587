#include "core/distributed/slurm_nodes.h"

#include "fulmen/core/support/error.h"

namespace fulmen::detail {

std::string first_slurm_node(std::string_view list) {
  std::string name;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      name += list[i];
      continue;
    }
    const auto close = list.find(']', i);
    const auto end = list.find_first_of(",-]", i + 1);
    if (close == list.npos || end == i + 1) {
      fail<ConfigError>("SLURM",
                        "the list of nodes \"",
                        list,
                        "\" is torn. Set MASTER_ADDR to the host of rank 0.");
    }
    name += list.substr(i + 1, end - i - 1);
    i = close;
  }
  if (name.empty()) {
    fail<ConfigError>("SLURM",
                      "the list of nodes is empty. Set MASTER_ADDR to the host of rank 0.");
  }
  return name;
}

}  // namespace fulmen::detail
