# How Fulmen's own targets are made. Nothing here sets a global flag.

set(fulmen_warnings -Wall -Wextra -Wpedantic -Wshadow)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND fulmen_warnings -Werror=reorder-init-list)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 reports these for "literal" + std::string once it has inlined it (its bug 105651); the
  # address sanitizer looks for the real ones.
  list(APPEND fulmen_warnings -Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND FULMEN_SANITIZE)
  # What the sanitizers add to the code makes g++ see values that may be unset.
  list(APPEND fulmen_warnings -Wno-maybe-uninitialized)
endif()
if(FULMEN_WERROR)
  list(APPEND fulmen_warnings -Werror)
endif()
string(TOUPPER "${CMAKE_BUILD_TYPE}" fulmen_config)
set(fulmen_sanitize_options "")
if(FULMEN_SANITIZE)
  set(fulmen_sanitize_options
      -fsanitize=${FULMEN_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
endif()

# Position-independent code is asked for by hand, the same for libraries and programs, because a
# precompiled header made with -fPIC cannot be used under -fPIE.
set(fulmen_codegen_options -fPIC ${fulmen_sanitize_options})
# ccache needs to see what a precompiled header was made from.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND fulmen_codegen_options -fpch-preprocess)
elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND fulmen_codegen_options "SHELL:-Xclang -fno-pch-timestamp")
endif()

# Flags, language standard and private include root (the repository) of one of our targets.
function(fulmen_target_defaults target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF
    POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE ${fulmen_codegen_options} ${fulmen_warnings})
  target_link_options(${target} PRIVATE ${fulmen_sanitize_options})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
endfunction()

# Two precompiled headers, because g++ instantiates what a precompiled header leaves pending again in
# every file: that is 3.3 s a file for torch/torch.h and 1.6 s for torch/nn/module.h. Libraries share
# the small one, where it pays (fulmen_choose_pch); tests, examples and benchmarks share the full one.
# Sources include what they need all the same. A source that must not see either, since it defines
# macros that torch reads, sets its property SKIP_PRECOMPILE_HEADERS.
function(fulmen_add_pch target)
  add_library(${target} OBJECT "${PROJECT_SOURCE_DIR}/cmake/pch.cpp")
  fulmen_target_defaults(${target})
  target_link_libraries(${target} PRIVATE fulmen_torch Boost::headers Boost::json Threads::Threads)
  target_precompile_headers(${target} PRIVATE ${ARGN})
  # ccache takes what a file with the suffix .sum says for the contents of a precompiled header: that
  # saves reading 700 MB for each source, and lets clones in different folders share results.
  file(MD5 "${fulmen_torch_root}/lib/libc10.so" torch)
  string(JOIN "\n" sum ${ARGN} "torch ${fulmen_torch_version} ${torch}" "Boost ${Boost_VERSION}"
    "GTest ${GTest_VERSION}" "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
    "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${fulmen_config}} ${fulmen_codegen_options}")
  foreach(suffix gch pch)
    file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/CMakeFiles/${target}.dir/cmake_pch.hxx.${suffix}.sum"
      CONTENT "${sum}\n" @ONLY)
  endforeach()
endfunction()

# Sets <variable> to whether a file includes torch, itself or through Fulmen's headers.
function(fulmen_includes_torch file variable)
  string(MD5 key "${file}")
  get_property(known GLOBAL PROPERTY fulmen_includes_torch_${key})
  if("${known}" STREQUAL "")
    # Holds while the file is being read, so that a cycle ends.
    set_property(GLOBAL PROPERTY fulmen_includes_torch_${key} FALSE)
    set(known FALSE)
    cmake_path(GET file PARENT_PATH folder)
    file(STRINGS "${file}" lines REGEX "^[ \t]*#[ \t]*include")
    foreach(line IN LISTS lines)
      if(line MATCHES "[<\"](torch|ATen)/")
        set(known TRUE)
      elseif(line MATCHES "[<\"]([^>\"]+)[>\"]")
        set(path "${CMAKE_MATCH_1}")
        foreach(base "${folder}" "${PROJECT_SOURCE_DIR}" "${PROJECT_SOURCE_DIR}/include")
          if(NOT known AND path MATCHES "/|\\.h$" AND EXISTS "${base}/${path}")
            cmake_path(SET header NORMALIZE "${base}/${path}")
            fulmen_includes_torch("${header}" known)
          endif()
        endforeach()
      endif()
      if(known)
        break()
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY fulmen_includes_torch_${key} ${known})
  endif()
  set(${variable} ${known} PARENT_SCOPE)
endfunction()

# Lets the sources of a library that include no torch compile without the precompiled header: 0.3 s
# instead of 2 s. A matter of speed only, decided when CMake runs.
function(fulmen_choose_pch target)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    if(source MATCHES "\\.cpp$" AND EXISTS "${source}")
      fulmen_includes_torch("${source}" heavy)
      if(NOT heavy)
        set_source_files_properties("${source}" TARGET_DIRECTORY ${target}
          PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
      endif()
    endif()
  endforeach()
endfunction()

# fulmen_add_library(<name> PUBLIC <targets>...)
# Makes fulmen_<name>, with the alias and exported name fulmen::<name>. Each room adds its own
# sources with target_sources(fulmen_<name> PRIVATE ...).
function(fulmen_add_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "PUBLIC")
  set(target fulmen_${name})
  # A library without sources (an empty room) is one of its header.
  add_library(${target} "${PROJECT_BINARY_DIR}/include/fulmen/version.h")
  add_library(fulmen::${name} ALIAS ${target})
  fulmen_target_defaults(${target})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME ${name})
  target_include_directories(${target} PUBLIC
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>"
    "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_link_libraries(${target} PUBLIC ${arg_PUBLIC})
  target_precompile_headers(${target} REUSE_FROM fulmen_pch)
  cmake_language(EVAL CODE
    "cmake_language(DEFER DIRECTORY [[${PROJECT_SOURCE_DIR}]] CALL fulmen_choose_pch ${target})")
endfunction()

# fulmen_add_program(<target> SOURCES <files>... [LIBRARIES <targets>...])
# An executable on fulmen::fulmen.
function(fulmen_add_program target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES")
  add_executable(${target} ${arg_SOURCES})
  fulmen_target_defaults(${target})
  target_link_libraries(${target} PRIVATE fulmen::fulmen ${arg_LIBRARIES})
  target_precompile_headers(${target} REUSE_FROM fulmen_program_pch)
  if(TARGET GTest::gtest)
    # What the precompiled header was made with must be defined in every user of it.
    target_compile_definitions(${target} PRIVATE
      $<TARGET_PROPERTY:GTest::gtest,INTERFACE_COMPILE_DEFINITIONS>)
    target_compile_options(${target} PRIVATE
      $<TARGET_PROPERTY:GTest::gtest,INTERFACE_COMPILE_OPTIONS>)
  endif()
endfunction()

# fulmen_add_example(<name> SOURCES <files>... [LIBRARIES <targets>...])
# Target example_<name>, program examples/<name> in the build folder.
function(fulmen_add_example name)
  fulmen_add_program(example_${name} ${ARGN})
  set_target_properties(example_${name} PROPERTIES
    OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/examples")
endfunction()

# fulmen_add_benchmark(<name> SOURCES <files>... [LIBRARIES <targets>...])
# Target and program bench_<name>, with Google Benchmark's main.
function(fulmen_add_benchmark name)
  fulmen_add_program(bench_${name} ${ARGN})
  target_link_libraries(bench_${name} PRIVATE benchmark::benchmark_main)
endfunction()

# The environment of every test: one thread per operator, since ranks are threads themselves, and
# sanitizers that stop at the first finding. libtorch is not instrumented.
set(fulmen_test_environment
  "OMP_NUM_THREADS=1"
  "ASAN_OPTIONS=abort_on_error=0:detect_stack_use_after_return=1"
  "LSAN_OPTIONS=print_suppressions=0"
  "UBSAN_OPTIONS=print_stacktrace=1"
  "TSAN_OPTIONS=ignore_noninstrumented_modules=1:second_deadlock_stack=1")

# Instrumented programs are given more time.
function(fulmen_set_time_limit test seconds)
  if(FULMEN_SANITIZE)
    math(EXPR seconds "${seconds} * 5")
  endif()
  set_tests_properties(${test} PROPERTIES TIMEOUT ${seconds})
endfunction()

# fulmen_add_test(<name> SOURCES <files>... [LIBRARIES <targets>...] [LABELS <labels>...]
#                 [TIMEOUT <seconds>] [OWN_MAIN] [SERIAL] [DISCOVER])
# One program of GoogleTest cases on fulmen::fulmen and tests/support, and one ctest of the same name
# that runs all its cases: a program takes 0.4 s to load libtorch, so one process a case would take
# minutes. DISCOVER registers each case instead, for suites whose cases need a process of their own.
# TIMEOUT (default 120 s) is for the whole program, or for a case under DISCOVER; SERIAL keeps other
# tests from running beside it; OWN_MAIN leaves main() to the sources. Tests of our own threads have
# the label `threads`, which is what the thread sanitizer runs; those that need a device, `gpu`.
function(fulmen_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg
    "OWN_MAIN;SERIAL;DISCOVER" "TIMEOUT" "SOURCES;LIBRARIES;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  set(main GTest::gtest_main)
  if(arg_OWN_MAIN)
    set(main "")
  endif()
  fulmen_add_program(${name} SOURCES ${arg_SOURCES}
    LIBRARIES ${arg_LIBRARIES} fulmen_test_support GTest::gmock ${main})
  set(properties RUN_SERIAL ${arg_SERIAL})
  # The thread sanitizer is for tests of our own threads: scripts/test.sh --tsan builds only these.
  if(NOT TARGET fulmen_thread_tests)
    add_custom_target(fulmen_thread_tests)
  endif()
  if("threads" IN_LIST arg_LABELS)
    add_dependencies(fulmen_thread_tests ${name})
  endif()
  set(results "${PROJECT_BINARY_DIR}/test-results")
  if(arg_DISCOVER)
    if(FULMEN_SANITIZE)
      math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 5")
    endif()
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
      TEST_PREFIX "${name}." XML_OUTPUT_DIR "${results}"
      PROPERTIES ${properties} LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} ENVIRONMENT "${fulmen_test_environment}")
    return()
  endif()
  add_test(NAME ${name} COMMAND ${name} "--gtest_output=xml:${results}/${name}.xml")
  set_tests_properties(${name} PROPERTIES ${properties} ENVIRONMENT "${fulmen_test_environment}")
  set_property(TEST ${name} PROPERTY LABELS ${arg_LABELS})
  fulmen_set_time_limit(${name} ${arg_TIMEOUT})
endfunction()

# fulmen_compile_command(<variable>)
# The compiler with the flags of our targets and the include folders of the public headers, as a list
# for checks that call it themselves.
function(fulmen_compile_command variable)
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${fulmen_config}}")
  set(command "${CMAKE_CXX_COMPILER}" ${flags} ${CMAKE_CXX20_STANDARD_COMPILE_OPTION}
      -fPIC ${fulmen_sanitize_options} ${fulmen_warnings}
      "-I${PROJECT_SOURCE_DIR}/include" "-I${PROJECT_BINARY_DIR}/include")
  foreach(target fulmen_torch Boost::headers Boost::json Boost::container)
    get_target_property(definitions ${target} INTERFACE_COMPILE_DEFINITIONS)
    if(definitions)
      list(TRANSFORM definitions PREPEND "-D")
      list(APPEND command ${definitions})
    endif()
    get_target_property(folders ${target} INTERFACE_INCLUDE_DIRECTORIES)
    foreach(folder IN LISTS folders)
      if(IS_DIRECTORY "${folder}" AND NOT folder IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
        list(APPEND command -isystem "${folder}")
      endif()
    endforeach()
  endforeach()
  set(${variable} "${command}" PARENT_SCOPE)
endfunction()
