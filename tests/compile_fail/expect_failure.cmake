# cmake -DCOMMAND=<compile command> -DSOURCE=<file> -DTEXT=<text> -P expect_failure.cmake
# Passes when the compiler refuses the source and its output holds the text.
cmake_minimum_required(VERSION 3.25)

execute_process(COMMAND ${COMMAND} -fsyntax-only "${SOURCE}"
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} compiles, but must not.")
endif()
string(FIND "${output}" "${TEXT}" position)
if(position EQUAL -1)
  message("${output}")
  message(FATAL_ERROR "${SOURCE}: the compiler does not say \"${TEXT}\".")
endif()
