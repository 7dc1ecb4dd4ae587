# cmake -DROOT=<repository> -P check_arrows.cmake
# Keeps the arrows between rooms by reading #include lines: core <- strategies, callbacks <- trainer.
# A rule is "<files> | <rooms and public headers that they may include> | public or private"; the
# first rule whose pattern matches counts. A public file may not include a private header, which is
# one named by its path from the repository ("trainer/loops/fit_loop.h").
cmake_minimum_required(VERSION 3.25)

set(rooms core strategies callbacks trainer testing cuda)
set(rules
  "^include/fulmen/fulmen\\.h$|core strategies callbacks trainer|public"
  "^include/fulmen/[^/]+\\.h$||public"
  "^include/fulmen/core/|core|public"
  "^include/fulmen/strategies/|core strategies|public"
  "^include/fulmen/callbacks/|core callbacks|public"
  "^include/fulmen/trainer/|core trainer|public"
  "^include/fulmen/testing/|core|public"
  "^include/fulmen/cuda/|core|public"
  "^core/|core|private"
  "^strategies/|core strategies|private"
  "^callbacks/|core callbacks|private"
  "^trainer/|core strategies callbacks trainer|private"
  "^testing/|core strategies callbacks trainer testing|private"
  "^cuda/header_shim/||public"
  "^cuda/|core cuda|private"
  "^(examples|benchmarks)/|core strategies callbacks trainer|public")

file(GLOB_RECURSE files RELATIVE "${ROOT}"
  "${ROOT}/include/*.h"
  "${ROOT}/core/*.h" "${ROOT}/core/*.cpp"
  "${ROOT}/strategies/*.h" "${ROOT}/strategies/*.cpp"
  "${ROOT}/callbacks/*.h" "${ROOT}/callbacks/*.cpp"
  "${ROOT}/trainer/*.h" "${ROOT}/trainer/*.cpp"
  "${ROOT}/testing/*.h" "${ROOT}/testing/*.cpp"
  "${ROOT}/cuda/*.h" "${ROOT}/cuda/*.cpp"
  "${ROOT}/examples/*.h" "${ROOT}/examples/*.cpp"
  "${ROOT}/benchmarks/*.h" "${ROOT}/benchmarks/*.cpp")

set(errors 0)
function(report file include reason)
  message("${file}: includes ${include}: ${reason}")
  math(EXPR errors "${errors} + 1")
  set(errors ${errors} PARENT_SCOPE)
endfunction()

foreach(file IN LISTS files)
  set(allowed "")
  set(face "")
  foreach(rule IN LISTS rules)
    # A pattern may hold | inside parentheses: split from the right.
    string(REGEX MATCH "^(.*)\\|([^|]*)\\|([^|]*)$" parts "${rule}")
    set(pattern "${CMAKE_MATCH_1}")
    set(rule_allowed "${CMAKE_MATCH_2}")
    set(rule_face "${CMAKE_MATCH_3}")
    if(file MATCHES "${pattern}")
      string(REPLACE " " ";" allowed "${rule_allowed}")
      set(face ${rule_face})
      break()
    endif()
  endforeach()
  if(NOT face)
    report("${file}" "-" "no rule of check_arrows.cmake is for this folder")
    continue()
  endif()

  cmake_path(GET file PARENT_PATH folder)
  file(STRINGS "${ROOT}/${file}" lines REGEX "^[ \t]*#[ \t]*include[ \t]*[\"<][^\">]*[\">]")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "[\"<]([^\">]*)[\">]" include "${line}")
    set(path "${CMAKE_MATCH_1}")
    if(NOT path MATCHES "^fulmen/" AND EXISTS "${ROOT}/${folder}/${path}")
      set(path "${folder}/${path}")
      cmake_path(NORMAL_PATH path)
      string(REGEX REPLACE "^include/" "" path "${path}")
      string(REGEX MATCH "^[^/]+/" room "${path}")
      string(FIND "${file}" "${room}" position)
      if(position EQUAL 0)
        continue()  # A private header of the same room.
      endif()
    endif()
    if(path MATCHES "^fulmen/(fwd|version)\\.h$")
      # Free for all.
    elseif(path MATCHES "^fulmen/([^/]+)/")
      if(NOT CMAKE_MATCH_1 IN_LIST allowed)
        report("${file}" "${include}" "may include only [${allowed}]")
      endif()
    elseif(path MATCHES "^fulmen/")
      if(NOT file MATCHES "^(examples|benchmarks)/")
        report("${file}" "${include}" "the umbrella header is for users")
      endif()
    elseif(path MATCHES "^([^/]+)/" AND CMAKE_MATCH_1 IN_LIST rooms AND EXISTS "${ROOT}/${path}")
      if(face STREQUAL "public")
        report("${file}" "${include}" "a private header of another folder")
      elseif(NOT CMAKE_MATCH_1 IN_LIST allowed)
        report("${file}" "${include}" "may include only [${allowed}]")
      endif()
    endif()
  endforeach()
endforeach()

list(LENGTH files count)
if(errors)
  message(FATAL_ERROR "${errors} forbidden includes in ${count} files.")
endif()
message("${count} files keep the arrows.")
