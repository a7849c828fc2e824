# `make install PREFIX=…`: the tool, the library, its headers, the licence, and what find_package(invattn) needs.
include(CMakePackageConfigHelpers)

# Torch is used where it lies: a copy would be gigabytes.
set_target_properties(invattn invattn_tool PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};${INVATTN_TORCH_DIR}/lib")

install(TARGETS invattn EXPORT invattnTargets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(TARGETS invattn_tool RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")

# The public headers are invattn/invattn.h and what it includes, directly or not.
set(public_headers "")
set(waiting invattn/invattn.h)
while(waiting)
  list(POP_FRONT waiting header)
  if(header IN_LIST public_headers)
    continue()
  endif()
  list(APPEND public_headers "${header}")
  set(file "${PROJECT_SOURCE_DIR}/${header}")
  if(NOT EXISTS "${file}")
    set(file "${PROJECT_BINARY_DIR}/generated/${header}")
  endif()
  cmake_path(GET header PARENT_PATH folder)
  install(FILES "${file}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${folder}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(STRINGS "${file}" includes REGEX "^#include \"invattn/")
  foreach(line IN LISTS includes)
    string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" included "${line}")
    list(APPEND waiting "${included}")
  endforeach()
endwhile()

install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/invattn")
install(EXPORT invattnTargets NAMESPACE invattn:: DESTINATION "${package_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/invattnConfig.cmake.in" "${PROJECT_BINARY_DIR}/invattnConfig.cmake"
                              INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/invattnConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/invattnConfig.cmake" "${PROJECT_BINARY_DIR}/invattnConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/InvattnTorch.cmake"
        DESTINATION "${package_dir}")
