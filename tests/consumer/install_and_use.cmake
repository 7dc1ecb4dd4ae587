# cmake -DBUILD=<build> -DSOURCE=<repository> -DTORCH=<folder> -DWORK=<folder> -DCOMPILER=<c++>
#       -DLAUNCHER=<ccache> -DBUILD_TYPE=<type> -DVERSION=<version> -P install_and_use.cmake
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${WORK}")
function(run)
  execute_process(COMMAND ${ARGN}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message("${output}")
    message(FATAL_ERROR "failed (${result}): ${command}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/prefix")

# What is installed must not lead back to where it was built. LibTorch's folder may be remembered, and
# may lie in the repository.
file(GLOB_RECURSE files "${WORK}/prefix/*.cmake" "${WORK}/prefix/*.h")
if(NOT files)
  message(FATAL_ERROR "Nothing was installed to ${WORK}/prefix.")
endif()
foreach(file IN LISTS files)
  file(READ "${file}" text)
  string(REPLACE "${TORCH}" "" text "${text}")
  foreach(path "${BUILD}" "${SOURCE}")
    string(FIND "${text}" "${path}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} holds the path ${path}.")
    endif()
  endforeach()
endforeach()

# The prefix is moved, to show that it can be.
set(ENV{CMAKE_CXX_COMPILER_LAUNCHER} "${LAUNCHER}")
file(RENAME "${WORK}/prefix" "${WORK}/moved")
run("${CMAKE_COMMAND}" -G Ninja -S "${CMAKE_CURRENT_LIST_DIR}/project" -B "${WORK}/build"
  "-DCMAKE_PREFIX_PATH=${WORK}/moved"
  "-DCMAKE_CXX_COMPILER=${COMPILER}"
  "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}"
  "-DEXPECTED_VERSION=${VERSION}")
run("${CMAKE_COMMAND}" --build "${WORK}/build")
foreach(program consumer conformance)
  run("${WORK}/build/${program}")
  message("${output}")
endforeach()
