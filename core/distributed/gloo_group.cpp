// The only file that sees Gloo: its headers are declarations of our own (gloo_shim).
#include "core/distributed/gloo_group.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "fulmen/core/distributed/environment.h"

namespace fulmen::detail {

c10::intrusive_ptr<c10d::ProcessGroup> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                       int rank,
                                                       int size,
                                                       const std::string& name,
                                                       std::chrono::milliseconds timeout,
                                                       const std::string& listen_address) {
  using c10d::ProcessGroup;
  using c10d::ProcessGroupGloo;
  auto options = ProcessGroupGloo::Options::create(timeout);
  const auto interface = process_environment()(kInterfaceVariable).value_or("");
  options->devices.push_back(!listen_address.empty()
                                 ? ProcessGroupGloo::createDeviceForHostname(listen_address)
                                 : ProcessGroupGloo::createDeviceForInterface(interface));
  auto group = c10::make_intrusive<ProcessGroup>(store, rank, size);
  auto backend = c10::make_intrusive<ProcessGroupGloo>(store, rank, size, options);
  group->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::GLOO, backend);
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  group->setGroupName(name);
  return group;
}

}  // namespace fulmen::detail
