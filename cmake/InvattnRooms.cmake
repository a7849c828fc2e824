# One target per room (docs/reference/architecture.md).
#
#   invattn_room(NAME SOURCES a.cpp … [LIBRARIES target …] [NO_TORCH])
#
# makes the object library invattn_NAME; all rooms together become the shared library `invattn`, which links all their LIBRARIES for itself
# alone. A package of theirs is found by find_package(… GLOBAL), so that its targets are known outside the room.
# scripts/check_layers.py checks which room includes which.
add_library(invattn_pch OBJECT "${CMAKE_CURRENT_SOURCE_DIR}/cmake/pch.cpp")
target_precompile_headers(invattn_pch PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/cmake/pch.h")
target_link_libraries(invattn_pch PRIVATE invattn_flags invattn::torch)

set_property(GLOBAL PROPERTY INVATTN_ROOM_NAMES "")
set_property(GLOBAL PROPERTY INVATTN_ROOM_LIBRARIES "")

function(invattn_room name)
  cmake_parse_arguments(ARG "NO_TORCH" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(invattn_${name} OBJECT ${ARG_SOURCES})
  target_include_directories(invattn_${name} PUBLIC "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/generated")
  target_link_libraries(invattn_${name} PRIVATE invattn_flags ${ARG_LIBRARIES})
  if(NOT ARG_NO_TORCH)
    target_link_libraries(invattn_${name} PRIVATE invattn::torch)
    target_precompile_headers(invattn_${name} REUSE_FROM invattn_pch)
  endif()
  set_property(GLOBAL APPEND PROPERTY INVATTN_ROOM_NAMES ${name})
  set_property(GLOBAL APPEND PROPERTY INVATTN_ROOM_LIBRARIES ${ARG_LIBRARIES})
endfunction()
