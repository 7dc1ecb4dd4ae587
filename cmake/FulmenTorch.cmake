# Makes the target fulmen_torch: libtorch_cpu and libc10 with their headers.
#
# Used by the build and by an installed fulmenConfig.cmake. find_package(Torch) is not used, because
# that of a CUDA wheel demands a CUDA toolkit. LibTorch is looked for in
#   1. FULMEN_TORCH_DIR, as a CMake or an environment variable: the `torch` folder of a wheel, or an
#      unpacked LibTorch;
#   2. fulmen_torch_hints, a list of such folders.
# Sets fulmen_torch_root and fulmen_torch_version.
if(TARGET fulmen_torch)
  return()
endif()

set(fulmen_torch_minimum 2.11)

if(FULMEN_TORCH_DIR)
  set(fulmen_torch_root "${FULMEN_TORCH_DIR}")
elseif(DEFINED ENV{FULMEN_TORCH_DIR} AND NOT "$ENV{FULMEN_TORCH_DIR}" STREQUAL "")
  set(fulmen_torch_root "$ENV{FULMEN_TORCH_DIR}")
else()
  set(fulmen_torch_root "")
  foreach(hint IN LISTS fulmen_torch_hints)
    if(EXISTS "${hint}/lib/libtorch_cpu.so")
      set(fulmen_torch_root "${hint}")
      break()
    endif()
  endforeach()
  if(NOT fulmen_torch_root)
    message(FATAL_ERROR
      "Fulmen: LibTorch was not found. Either run scripts/setup.sh, which puts the CPU libraries of "
      "the torch wheel into .venv, or give its folder: -DFULMEN_TORCH_DIR=<...>/site-packages/torch "
      "(a wheel) or -DFULMEN_TORCH_DIR=<...>/libtorch (an unpacked LibTorch).")
  endif()
endif()
cmake_path(ABSOLUTE_PATH fulmen_torch_root BASE_DIRECTORY "${CMAKE_BINARY_DIR}" NORMALIZE)

foreach(file lib/libtorch_cpu.so lib/libc10.so include/ATen/core/Tensor.h
             include/torch/csrc/api/include/torch/torch.h)
  if(NOT EXISTS "${fulmen_torch_root}/${file}")
    message(FATAL_ERROR
      "Fulmen: ${fulmen_torch_root} holds no ${file}. FULMEN_TORCH_DIR must be the `torch` folder of "
      "a wheel or an unpacked LibTorch: a folder with include/ and lib/.")
  endif()
endforeach()

# The header moved to headeronly/ in 2.9; a file beside the libraries is the last resort.
set(fulmen_torch_version "")
foreach(file include/torch/headeronly/version.h include/torch/csrc/api/include/torch/version.h)
  if(EXISTS "${fulmen_torch_root}/${file}" AND NOT fulmen_torch_version)
    file(STRINGS "${fulmen_torch_root}/${file}" lines
         REGEX "^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
    string(REGEX REPLACE "[^0-9;]" "" numbers "${lines}")
    string(REPLACE ";" "." fulmen_torch_version "${numbers}")
  endif()
endforeach()
if(NOT fulmen_torch_version AND EXISTS "${fulmen_torch_root}/build-version")
  file(READ "${fulmen_torch_root}/build-version" text)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+\\.[0-9]+" fulmen_torch_version "${text}")
endif()
if(NOT fulmen_torch_version)
  message(FATAL_ERROR "Fulmen: the version of LibTorch in ${fulmen_torch_root} cannot be read.")
endif()
if(fulmen_torch_version VERSION_LESS fulmen_torch_minimum)
  message(FATAL_ERROR
    "Fulmen: LibTorch ${fulmen_torch_version} in ${fulmen_torch_root} is too old; at least "
    "${fulmen_torch_minimum} is needed.")
endif()

# std::string in a mangled name tells which of libstdc++'s two ABIs the library was built with.
file(STRINGS "${fulmen_torch_root}/lib/libc10.so" fulmen_torch_symbol
     REGEX "_ZN3c105ErrorC[12].*__cxx1112basic_string" LIMIT_COUNT 1)
if(NOT fulmen_torch_symbol)
  message(FATAL_ERROR
    "Fulmen: LibTorch in ${fulmen_torch_root} was built with the old C++ ABI "
    "(_GLIBCXX_USE_CXX11_ABI=0). Take the cxx11-ABI archive, or a wheel of 2.7 or later.")
endif()
if(CMAKE_CXX_FLAGS MATCHES "-D *_GLIBCXX_USE_CXX11_ABI=0")
  message(FATAL_ERROR "Fulmen: LibTorch uses the new C++ ABI; remove _GLIBCXX_USE_CXX11_ABI=0.")
endif()

foreach(library c10 torch_cpu)
  add_library(fulmen_${library} SHARED IMPORTED)
  set_target_properties(fulmen_${library} PROPERTIES
    IMPORTED_LOCATION "${fulmen_torch_root}/lib/lib${library}.so")
endforeach()
add_library(fulmen_torch INTERFACE IMPORTED)
target_include_directories(fulmen_torch SYSTEM INTERFACE
  "${fulmen_torch_root}/include"
  "${fulmen_torch_root}/include/torch/csrc/api/include")
target_link_libraries(fulmen_torch INTERFACE fulmen_torch_cpu fulmen_c10)
# A wheel's libtorch_cpu names symbols of CUDA libraries that nothing here touches.
target_link_options(fulmen_torch INTERFACE "LINKER:--allow-shlib-undefined")
target_compile_features(fulmen_torch INTERFACE cxx_std_20)

# For fulmen::cuda; there is none for a LibTorch without CUDA. Its libraries register what they can
# do when they are loaded, so they are linked although nothing may name a symbol of theirs.
if(EXISTS "${fulmen_torch_root}/lib/libtorch_cuda.so")
  add_library(fulmen_torch_cuda INTERFACE IMPORTED)
  target_link_libraries(fulmen_torch_cuda INTERFACE fulmen_torch)
  string(CONCAT fulmen_torch_cuda_link "LINKER:--push-state,--no-as-needed,"
    "${fulmen_torch_root}/lib/libc10_cuda.so,${fulmen_torch_root}/lib/libtorch_cuda.so,--pop-state")
  target_link_options(fulmen_torch_cuda INTERFACE "${fulmen_torch_cuda_link}")
endif()
