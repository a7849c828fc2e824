# Imported targets for the libtorch inside pip's torch package.
#
# find_package(Torch) of a CUDA-enabled torch fails on a machine without a CUDA toolkit, so the libraries are named here one by one:
#   invattn::torch        libtorch_cpu and libc10, and with CUDA also libtorch_cuda and libc10_cuda
# INVATTN_TORCH_DIR (or the environment variable of the same name) names the package's folder, the one with include/ and lib/;
# without it the source tree's .venv is asked, then the python3 on the PATH. This file is also installed: users of the library find
# the same torch with it. INVATTN_TORCH_VERSION, the release wanted (major.minor), is set by whoever includes this.
if(TARGET invattn::torch)
  return()
endif()

if(NOT INVATTN_TORCH_DIR AND DEFINED ENV{INVATTN_TORCH_DIR})
  set(INVATTN_TORCH_DIR "$ENV{INVATTN_TORCH_DIR}" CACHE PATH "Folder of pip's torch package; empty: searched for" FORCE)
endif()
foreach(_invattn_python "${PROJECT_SOURCE_DIR}/.venv/bin/python3" python3)
  if(NOT INVATTN_TORCH_DIR)
    execute_process(
      COMMAND "${_invattn_python}" -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE INVATTN_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endforeach()
if(NOT EXISTS "${INVATTN_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "[InvattnTorch] expected a torch ${INVATTN_TORCH_VERSION} package (a folder with include/ and lib/libtorch_cpu.so), "
                      "got '${INVATTN_TORCH_DIR}'. Run `make setup`, or pass -DINVATTN_TORCH_DIR=FOLDER.")
endif()

file(READ "${INVATTN_TORCH_DIR}/version.py" _invattn_torch_version_file)
string(REGEX MATCH "__version__ = '([0-9]+\\.[0-9]+)[^']*'" _ "${_invattn_torch_version_file}")
if(NOT CMAKE_MATCH_1 STREQUAL INVATTN_TORCH_VERSION)
  message(FATAL_ERROR "[InvattnTorch] expected torch ${INVATTN_TORCH_VERSION}, got '${CMAKE_MATCH_1}' in ${INVATTN_TORCH_DIR}. "
                      "Run `make setup`, or pass -DINVATTN_TORCH_DIR=FOLDER of a matching torch.")
endif()

if(NOT DEFINED INVATTN_CUDA)
  set(INVATTN_CUDA OFF)
endif()
set(INVATTN_WITH_CUDA OFF)
if(NOT INVATTN_CUDA STREQUAL "OFF")
  find_package(CUDAToolkit QUIET)
  if(NOT CUDAToolkit_FOUND OR NOT EXISTS "${INVATTN_TORCH_DIR}/lib/libtorch_cuda.so")
    if(INVATTN_CUDA STREQUAL "ON")
      message(FATAL_ERROR "[InvattnTorch] INVATTN_CUDA=ON expects a CUDA toolkit (nvcc) and a torch built with CUDA, and found "
                          "toolkit: '${CUDAToolkit_FOUND}', torch: ${INVATTN_TORCH_DIR}. Install the toolkit or use INVATTN_CUDA=AUTO.")
    endif()
  elseif(INVATTN_CUDA STREQUAL "ON" OR EXISTS /dev/nvidiactl OR EXISTS /dev/dxg)  # dxg: a GPU seen through WSL
    set(INVATTN_WITH_CUDA ON)
  else()
    message(NOTICE "[invattn] a CUDA toolkit is here, a GPU is not: building for the CPU alone. With CUDA: make CUDA=ON, or -DINVATTN_CUDA=ON.")
  endif()
endif()

add_library(invattn::torch INTERFACE IMPORTED)
set_target_properties(invattn::torch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${INVATTN_TORCH_DIR}/include;${INVATTN_TORCH_DIR}/include/torch/csrc/api/include"
  INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${INVATTN_TORCH_DIR}/include;${INVATTN_TORCH_DIR}/include/torch/csrc/api/include")
# The nvidia-* packages beside torch hold the CUDA libraries that its own libraries name.
file(GLOB _invattn_nvidia_dirs "${INVATTN_TORCH_DIR}/../nvidia/*/lib")
set(_invattn_libs torch_cpu c10)
if(INVATTN_WITH_CUDA)
  list(APPEND _invattn_libs torch_cuda c10_cuda)
endif()
foreach(_lib IN LISTS _invattn_libs)
  add_library(invattn::lib${_lib} SHARED IMPORTED)
  set_target_properties(invattn::lib${_lib} PROPERTIES IMPORTED_LOCATION "${INVATTN_TORCH_DIR}/lib/lib${_lib}.so" IMPORTED_NO_SONAME OFF)
  target_link_libraries(invattn::torch INTERFACE invattn::lib${_lib})
endforeach()
target_link_options(invattn::torch INTERFACE
  "$<$<BOOL:${INVATTN_WITH_CUDA}>:LINKER:--no-as-needed,${INVATTN_TORCH_DIR}/lib/libtorch_cuda.so,--as-needed>")
foreach(_dir IN LISTS _invattn_nvidia_dirs)
  target_link_options(invattn::torch INTERFACE "LINKER:-rpath-link,${_dir}")
endforeach()
