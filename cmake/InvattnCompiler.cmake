# Warnings, sanitizers and ccache for every target of ours.
find_program(INVATTN_CCACHE ccache)
# What one checkout compiled serves any other: paths in it are taken relative to it. With a precompiled header ccache has to be told that the
# header's macros and file times do not matter.
set(INVATTN_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime "${INVATTN_CCACHE}")
foreach(language IN ITEMS CXX CUDA)
  if(INVATTN_CCACHE AND NOT CMAKE_${language}_COMPILER_LAUNCHER)
    set(CMAKE_${language}_COMPILER_LAUNCHER ${INVATTN_LAUNCHER})
  endif()
endforeach()

add_library(invattn_flags INTERFACE)
# -fPIC for programs, too: one precompiled header serves all, and the compiler refuses it where this flag differs.
# A switch over an enumeration that misses a value does not compile.
target_compile_options(invattn_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-fPIC;-Wall;-Wextra;-Wno-unused-parameter;-Werror=switch>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fPIC,-Werror=switch>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(invattn_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>")  # for ccache, too
endif()
if(INVATTN_SANITIZE)
  # Not vptr: it reads the type information of torch's classes, which torch's own libraries do not export for it.
  target_compile_options(invattn_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${INVATTN_SANITIZE};-fno-sanitize=vptr;-fno-omit-frame-pointer;-fno-sanitize-recover=all>")
  target_link_options(invattn_flags INTERFACE -fsanitize=${INVATTN_SANITIZE})
endif()
