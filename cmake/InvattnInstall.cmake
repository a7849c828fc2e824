# `make install PREFIX=…`: the tool, the library, its headers, the licence, and what find_package(invattn) needs.
include(CMakePackageConfigHelpers)

# Torch is used where it lies: a copy would be gigabytes.
set_target_properties(invattn invattn_tool PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${INVATTN_TORCH_DIR}/lib")

install(TARGETS invattn EXPORT invattnTargets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(TARGETS invattn_tool RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/invattn" "${PROJECT_BINARY_DIR}/generated/invattn"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" FILES_MATCHING PATTERN "*.h"
        PATTERN foreign_json.h EXCLUDE
        PATTERN json_fields.h EXCLUDE  # needs nlohmann-json, which users may lack; for our own sources only
        PATTERN kernels EXCLUDE
        PATTERN kernel_calls.h EXCLUDE)

install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/invattn")
install(EXPORT invattnTargets NAMESPACE invattn:: DESTINATION "${package_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/invattnConfig.cmake.in" "${PROJECT_BINARY_DIR}/invattnConfig.cmake"
                              INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/invattnConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/invattnConfig.cmake" "${PROJECT_BINARY_DIR}/invattnConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/InvattnTorch.cmake"
        DESTINATION "${package_dir}")
