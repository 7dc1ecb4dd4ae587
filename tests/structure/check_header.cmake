# cmake -DHEADER=fulmen/<...>.h -DHEAVY=<list file> -DCOMMAND=<compile command> -DPCH=<flags>
#       -DDEPFILE=<file> -DSTAMP=<file> -P check_header.cmake
# Checks that a public header compiles alone and stays within the include budget: torch/torch.h is for
# fulmen/fulmen.h, and all of ATen (ATen/Functions.h, ten seconds of each includer's time) for the
# headers in the list file.
cmake_minimum_required(VERSION 3.25)

file(STRINGS "${HEAVY}" heavy REGEX "^fulmen/")
set(is_heavy FALSE)
if(HEADER STREQUAL "fulmen/fulmen.h" OR HEADER IN_LIST heavy)
  set(is_heavy TRUE)
endif()

function(compile)
  execute_process(COMMAND ${COMMAND} ${ARGN} -include "${HEADER}" -x c++ /dev/null
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message("${output}")
    message(FATAL_ERROR "${HEADER} does not compile when it is the only include.")
  endif()
endfunction()

# A heavy header holds the standard library through torch already; so it is read once for what it
# includes, and then compiled on top of the precompiled header, in a quarter of the time.
cmake_path(GET STAMP PARENT_PATH folder)
file(MAKE_DIRECTORY "${folder}")
if(is_heavy)
  compile(-M -MF "${DEPFILE}" -MT "${STAMP}")
  compile(-fsyntax-only ${PCH})
else()
  compile(-fsyntax-only -MD -MF "${DEPFILE}" -MT "${STAMP}")
endif()

file(READ "${DEPFILE}" includes)
if(includes MATCHES "/torch/torch\\.h" AND NOT HEADER STREQUAL "fulmen/fulmen.h")
  message(FATAL_ERROR "${HEADER} includes torch/torch.h, which only fulmen/fulmen.h may.")
endif()
if(includes MATCHES "/ATen/Functions\\.h")
  if(NOT is_heavy)
    message(FATAL_ERROR
      "${HEADER} includes all of ATen (ATen/Functions.h, through torch/types.h or torch/nn/module.h "
      "perhaps). Use ATen/core/Tensor.h, ATen/ops/<op>.h and forward declarations, or give a reason "
      "in ${HEAVY}.")
  endif()
elseif(is_heavy AND NOT HEADER STREQUAL "fulmen/fulmen.h")
  message(FATAL_ERROR "${HEADER} no longer includes all of ATen: take it out of ${HEAVY}.")
endif()
file(TOUCH "${STAMP}")
