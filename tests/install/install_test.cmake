# cmake -DBUILD_DIR=… -DEXAMPLES_DIR=… -DWORK_DIR=… -DVERSION=… -P install_test.cmake
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "exit code ${code} of: ${ARGV}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
set(prefix "${WORK_DIR}/prefix")
unset(ENV{LD_LIBRARY_PATH})  # what is installed must find its libraries by itself
run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}")

# Moving the prefix proves that nothing points back into it.
file(RENAME "${prefix}" "${prefix}-moved")
set(prefix "${prefix}-moved")
run("${prefix}/bin/invattn" --version)
if(NOT output MATCHES "${VERSION}")
  message(FATAL_ERROR "expected the installed tool to print version ${VERSION}, got: ${output}")
endif()

if(NOT EXISTS "${prefix}/share/doc/invattn/LICENSE")
  message(FATAL_ERROR "expected the licence to be installed below share/doc/invattn, found none")
endif()

# The public face alone: nothing that only our own sources need, and nothing that is missing.
file(GLOB_RECURSE headers RELATIVE "${prefix}/include" "${prefix}/include/*")
list(LENGTH headers count)
message("${count} headers")
if(count LESS 20 OR count GREATER 60)
  message(FATAL_ERROR "expected some forty public headers, got ${count}: ${headers}")
endif()
foreach(internal kernels report experiments config io)
  if(headers MATCHES "invattn/${internal}/")
    message(FATAL_ERROR "expected no header of ${internal}/ to be installed, got: ${headers}")
  endif()
endforeach()

# Only the prefix is given: torch has to be found through the installed package, and no header of the source tree may be needed.
run("${CMAKE_COMMAND}" -S "${EXAMPLES_DIR}" -B "${WORK_DIR}/build" -G Ninja "-DCMAKE_PREFIX_PATH=${prefix}")
run("${CMAKE_COMMAND}" --build "${WORK_DIR}/build")
run("${WORK_DIR}/build/hello")
message("${output}")
if(output STREQUAL "")
  message(FATAL_ERROR "expected examples/hello to print something")
endif()
