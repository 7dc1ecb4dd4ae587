#include "fulmen/core/module/callback.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <typeinfo>

namespace fulmen {

std::string Callback::state_key() const {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> demangled(
      abi::__cxa_demangle(typeid(*this).name(), nullptr, nullptr, &status), std::free);
  std::string key = status == 0 ? demangled.get() : typeid(*this).name();
  constexpr std::string_view kOwnNamespace = "fulmen::";
  for (auto at = key.find(kOwnNamespace); at != std::string::npos;
       at = key.find(kOwnNamespace, at)) {
    key.erase(at, kOwnNamespace.size());
  }
  return key;
}

}  // namespace fulmen
