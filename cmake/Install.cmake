# `cmake --install`: headers, static libraries and a package, so that find_package(Quatrain) works.
include(CMakePackageConfigHelpers)
install(DIRECTORY quatrain DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Quatrain)
install(EXPORT QuatrainTargets NAMESPACE Quatrain:: DESTINATION ${package})
configure_package_config_file(cmake/QuatrainConfig.cmake.in
  ${PROJECT_BINARY_DIR}/QuatrainConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/QuatrainConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/QuatrainConfig.cmake
  ${PROJECT_BINARY_DIR}/QuatrainConfigVersion.cmake cmake/Torch.cmake DESTINATION ${package})
