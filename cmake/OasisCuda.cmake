# SPDX-License-Identifier: Apache-2.0
# The CUDA backend's compiler and toolkit, and what every target with CUDA sources needs.
set(OASIS_CUDA_MINIMUM 12.4)

# oasis_target_cuda(<target>): dialect and warnings of our own CUDA sources, never part of a target's interface.
function(oasis_target_cuda target)
    # CMake 3.25.1 does not know C++20 of CUDA, so the dialect is given as a flag.
    set(options -std=c++20 --expt-relaxed-constexpr -lineinfo -Xcompiler=-Wall,-Wextra,-Wshadow,-Wno-restrict)
    if(OASIS_WERROR)
        list(APPEND options -Werror=all-warnings -Xcompiler=-Werror)
    endif()
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${options}>")
    get_target_property(type ${target} TYPE)
    if(TARGET cuda_all AND type STREQUAL "EXECUTABLE")
        add_dependencies(cuda_all ${target})
    endif()
endfunction()

if(NOT OASIS_CUDA)
    return()
endif()

if(OASIS_SANITIZE)
    message(FATAL_ERROR "OASIS_CUDA=ON with OASIS_SANITIZE=${OASIS_SANITIZE}: the driver does not run under GCC's "
        "sanitizers. Kernels are checked with compute-sanitizer (scripts/gpu_check.sh sanitize).")
endif()

if(NOT CMAKE_CUDA_COMPILER AND DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER "$ENV{CUDACXX}")
endif()
if(NOT CMAKE_CUDA_COMPILER)
    find_program(OASIS_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(OASIS_NVCC)
    if(OASIS_NVCC)
        set(CMAKE_CUDA_COMPILER ${OASIS_NVCC})
    endif()
endif()
if(CMAKE_CUDA_COMPILER)
    find_program(oasis_cuda_compiler NAMES ${CMAKE_CUDA_COMPILER} NO_CACHE)
endif()
if(NOT oasis_cuda_compiler)
    message(FATAL_ERROR "OASIS_CUDA=ON needs nvcc ${OASIS_CUDA_MINIMUM} or newer, and there is none in PATH, CUDACXX, "
        "CUDA_PATH or /usr/local/cuda/bin (CMAKE_CUDA_COMPILER=${CMAKE_CUDA_COMPILER}). Set CMAKE_CUDA_COMPILER to it, or configure "
        "with -DOASIS_CUDA=OFF (preset `cpu`).")
endif()

# Machine code of Hopper, and PTX from which the driver makes that of newer devices.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90)
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS OASIS_CUDA_MINIMUM)
    message(FATAL_ERROR "OASIS_CUDA=ON needs nvcc ${OASIS_CUDA_MINIMUM} or newer; ${CMAKE_CUDA_COMPILER} is "
        "${CMAKE_CUDA_COMPILER_VERSION}.")
endif()
if(PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_LAUNCHER AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
endif()
find_package(CUDAToolkit ${OASIS_CUDA_MINIMUM} REQUIRED)
