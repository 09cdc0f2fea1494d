# Finds the CUDA compiler for the GPU kernels: nvcc on PATH, else the one in pip's nvidia-cuda-nvcc 13. Without it the
# build is host-only, which is complete in itself: the host backend needs no GPU and no CUDA.
#
# Sets PURR_NVCC (a path, or empty) and says in one line what the build will contain.
set(PURR_NVCC "")
if(PURR_BUILD_KERNELS)
  find_program(found_nvcc nvcc NO_CMAKE_SYSTEM_PATH NO_CACHE)
  if(NOT found_nvcc)
    # Where pip puts it: <site-packages>/nvidia/cu13/bin, in the active or the project's virtual environment, or in the
    # site-packages of python3.
    file(GLOB site_packages $ENV{VIRTUAL_ENV}/lib/python3*/site-packages
         ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages)
    find_program(found_python python3 NO_CACHE)
    if(found_python)
      execute_process(COMMAND ${found_python} -c "import site; print(*site.getsitepackages(), sep=';', end='')"
                      OUTPUT_VARIABLE python_site_packages ERROR_QUIET)
      list(APPEND site_packages ${python_site_packages})
    endif()
    list(TRANSFORM site_packages APPEND /nvidia/cu13/bin)
    find_program(found_nvcc nvcc PATHS ${site_packages} NO_DEFAULT_PATH NO_CACHE)
  endif()
  if(found_nvcc)
    set(PURR_NVCC ${found_nvcc})
  endif()
endif()

if(PURR_BUILD_KERNELS STREQUAL ON AND NOT PURR_NVCC)
  message(FATAL_ERROR "PURR_BUILD_KERNELS is ON but there is no nvcc: put one on PATH, or `pip install "
                      "'nvidia-cuda-nvcc>=13,<14'` into the active virtual environment")
elseif(NOT PURR_BUILD_KERNELS)
  message(STATUS "Purr: host-only build (PURR_BUILD_KERNELS is OFF)")
elseif(NOT PURR_NVCC)
  message(STATUS "Purr: host-only build (no nvcc on PATH and none from pip's nvidia-cuda-nvcc 13)")
elseif(NOT EXISTS ${PROJECT_SOURCE_DIR}/kernels/CMakeLists.txt)
  message(STATUS "Purr: host-only build (nvcc found at ${PURR_NVCC}, but this version has no GPU kernels)")
else()
  message(STATUS "Purr: host and GPU kernels, nvcc at ${PURR_NVCC}")
endif()
