# SPDX-License-Identifier: Apache-2.0
# Options of the build. Parts that only developers need are on when this is the top-level project.
option(OASIS_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(OASIS_BUILD_BENCH "Build the benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(OASIS_BUILD_EXAMPLES "Build the examples, the decoder among them" ${PROJECT_IS_TOP_LEVEL})
option(OASIS_INSTALL "Create the install rules" ${PROJECT_IS_TOP_LEVEL})
option(OASIS_BUILD_FUZZERS "Build the fuzz targets (clang only)" OFF)
set(OASIS_FUZZ_SECONDS 60 CACHE STRING "How long each fuzz target runs as a test")
option(OASIS_WERROR "Treat warnings as errors" OFF)

option(OASIS_CUDA "Build the CUDA backend (component `cuda`)" OFF)
option(OASIS_FILE "Build the io_uring file tier (component `file`); FileStore, by pread, is always there" OFF)
option(OASIS_REMOTE "Build the remote tier (component `remote`)" OFF)

set(OASIS_SANITIZE "" CACHE STRING "Sanitizers for everything in this build: empty, address or thread")
set_property(CACHE OASIS_SANITIZE PROPERTY STRINGS "" address thread)

foreach(part IN ITEMS FILE REMOTE)
    if(OASIS_${part})
        string(TOLOWER ${part} tier)
        message(FATAL_ERROR "OASIS_${part}=ON: the ${tier} tier is not part of OasisKV ${PROJECT_VERSION}. "
            "Configure with -DOASIS_${part}=OFF.")
    endif()
endforeach()

# Strict C++20: GCC then contracts no products and sums by itself, so that results are the same on every target.
set(CMAKE_CXX_EXTENSIONS OFF)

if(PROJECT_IS_TOP_LEVEL)
    get_property(multi_config GLOBAL PROPERTY GENERATOR_IS_MULTI_CONFIG)
    if(NOT CMAKE_BUILD_TYPE AND NOT multi_config)
        set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
    endif()
    find_program(OASIS_CCACHE ccache)
    mark_as_advanced(OASIS_CCACHE)
    if(OASIS_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
        set(CMAKE_CXX_COMPILER_LAUNCHER "${OASIS_CCACHE}")
    endif()
    set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
    # Line tables only: stack traces and sanitizer reports stay readable at a small cost.
    add_compile_options($<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-g1>)
endif()

if(OASIS_SANITIZE STREQUAL "address")
    add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_link_options(-fsanitize=address,undefined)
elseif(OASIS_SANITIZE STREQUAL "thread")
    add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
    add_link_options(-fsanitize=thread)
elseif(OASIS_SANITIZE)
    message(FATAL_ERROR "OASIS_SANITIZE=${OASIS_SANITIZE}: expected nothing, address or thread.")
endif()
