# Compiles through ccache where it is installed. The sloppiness is what ccache needs to work with
# precompiled headers; the base directory lets clones in different folders share results.
if(CMAKE_CXX_COMPILER_LAUNCHER)
  return()
endif()
find_program(FULMEN_CCACHE ccache)
mark_as_advanced(FULMEN_CCACHE)
if(FULMEN_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime"
      "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" "CCACHE_NOHASHDIR=1" "CCACHE_PCH_EXTSUM=1" "${FULMEN_CCACHE}")
endif()
