# Installs the libraries, all headers below include/fulmen, and the files of find_package(fulmen).
include(CMakePackageConfigHelpers)

set(fulmen_config_folder "${CMAKE_INSTALL_LIBDIR}/cmake/fulmen")

install(TARGETS fulmen_core fulmen_strategies fulmen_callbacks fulmen_trainer fulmen fulmen_testing
  EXPORT fulmenTargets)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/fulmen" "${PROJECT_BINARY_DIR}/include/fulmen"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h")
install(EXPORT fulmenTargets NAMESPACE fulmen:: DESTINATION "${fulmen_config_folder}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/fulmenConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/cmake/fulmenConfig.cmake"
  INSTALL_DESTINATION "${fulmen_config_folder}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cmake/fulmenConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/cmake/fulmenConfig.cmake"
  "${PROJECT_BINARY_DIR}/cmake/fulmenConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FulmenTorch.cmake"
  DESTINATION "${fulmen_config_folder}")
