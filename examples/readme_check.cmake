# cmake -DREADME=<README.md> -DPROGRAM=<main.cpp> -P readme_check.cmake
# The program that README.md shows is the one that is built: the first block of C++ equals the file.
cmake_minimum_required(VERSION 3.25)

file(READ "${README}" readme)
file(READ "${PROGRAM}" program)
string(FIND "${readme}" "```cpp\n" begin)
if(begin EQUAL -1)
  message(FATAL_ERROR "${README} has no block of C++.")
endif()
math(EXPR begin "${begin} + 7")
string(SUBSTRING "${readme}" ${begin} -1 block)
string(FIND "${block}" "```\n" end)
string(SUBSTRING "${block}" 0 ${end} block)
if(NOT block STREQUAL program)
  message(FATAL_ERROR "The first block of C++ in ${README} is not ${PROGRAM}. Copy the file into it.")
endif()
