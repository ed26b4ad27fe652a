# SPDX-License-Identifier: Apache-2.0
include(GoogleTest)

# oasis_add_test(NAME <name> SOURCES <file>... [LIBRARIES <target>...] [LABELS <label>...] [TIMEOUT <seconds>] [LOCK <name>] [SERIAL])
# One GoogleTest executable; each of its cases is a test of its own, named Suite.Case. Tests with the same LOCK do not run
# at the same time, those with SERIAL run beside no other.
function(oasis_add_test)
    cmake_parse_arguments(PARSE_ARGV 0 arg "SERIAL" "NAME;TIMEOUT;LOCK" "SOURCES;LIBRARIES;LABELS")
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 120)
        if(OASIS_SANITIZE)
            set(arg_TIMEOUT 600)
        endif()
    endif()
    add_executable(${arg_NAME} ${arg_SOURCES})
    target_link_libraries(${arg_NAME} PRIVATE OasisKV::oasis ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
    target_include_directories(${arg_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_compile_definitions(${arg_NAME} PRIVATE OASIS_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
        OASIS_TEST_DATA_DIR="${PROJECT_SOURCE_DIR}/tests/data")
    oasis_target_warnings(${arg_NAME})
    # The libraries keep -O3; the tests' own code, and headers that it instantiates, are compiled far more often than they run.
    target_compile_options(${arg_NAME} PRIVATE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
    if(OASIS_SANITIZE STREQUAL "address")
        # In what tests instantiate themselves these double the time to compile; what is in the library has them.
        target_compile_options(${arg_NAME} PRIVATE -fno-sanitize=null,alignment,vptr,object-size)
    endif()
    if("OasisKV::cuda" IN_LIST arg_LIBRARIES)
        oasis_target_cuda(${arg_NAME})
    endif()
    set(lock "")
    if(arg_LOCK)
        set(lock RESOURCE_LOCK ${arg_LOCK})
    endif()
    if(arg_SERIAL)
        list(APPEND lock RUN_SERIAL ON)
    endif()
    # Found when ctest starts, so that a test that cannot start is a failed test and not a failed build.
    gtest_discover_tests(${arg_NAME} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
        PROPERTIES TIMEOUT ${arg_TIMEOUT} LABELS "${arg_LABELS}" ${lock})
endfunction()

# oasis_add_tests_of(<folder> [LABELS ...] [LIBRARIES ...]): one executable per <folder>/**/*_test.cpp (and .cu).
# Tests of a source with a line `// RUN-SERIAL: <why>` run beside no other.
function(oasis_add_tests_of folder)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_test.cpp
        ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_test.cu)
    foreach(source IN LISTS sources)
        cmake_path(GET source STEM stem)
        file(STRINGS ${source} serial REGEX "^// RUN-SERIAL: " LIMIT_COUNT 1)
        if(serial)
            set(serial SERIAL)
        endif()
        oasis_add_test(NAME ${folder}_${stem} SOURCES ${source} LABELS ${folder} ${serial} ${ARGN})
    endforeach()
endfunction()

# oasis_add_compile_fail_test(<name> <source> <regex>): passes if the compiler refuses the source and prints the regex.
function(oasis_add_compile_fail_test name source regex)
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND}
        -D "COMPILER=${CMAKE_CXX_COMPILER}"
        -D "INCLUDES=-I${PROJECT_SOURCE_DIR}/include;-I${PROJECT_SOURCE_DIR}/tests"
        -D "SOURCE=${source}"
        -D "EXPECTED=${regex}"
        -P ${PROJECT_SOURCE_DIR}/cmake/OasisCompileFail.cmake)
    set_tests_properties(${name} PROPERTIES TIMEOUT 60 LABELS compile_fail)
endfunction()

# One compile_fail test per <folder>/*_fail.cpp; its line `// EXPECT-ERROR: <regex>` is the expected text.
function(oasis_add_compile_fail_tests_of folder)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*_fail.cpp)
    foreach(source IN LISTS sources)
        cmake_path(GET source STEM stem)
        file(STRINGS ${source} line REGEX "^// EXPECT-ERROR: " LIMIT_COUNT 1)
        if(NOT line)
            message(FATAL_ERROR "${source} has no line `// EXPECT-ERROR: <regex>`.")
        endif()
        string(REPLACE "// EXPECT-ERROR: " "" regex "${line}")
        oasis_add_compile_fail_test(CompileFail.${stem} ${source} "${regex}")
    endforeach()
endfunction()

# oasis_add_bench(NAME <name> SOURCES <file>... [LIBRARIES <target>...]): one Google Benchmark executable.
function(oasis_add_bench)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME" "SOURCES;LIBRARIES")
    add_executable(${arg_NAME} ${arg_SOURCES})
    target_link_libraries(${arg_NAME} PRIVATE OasisKV::oasis ${arg_LIBRARIES} benchmark::benchmark
        benchmark::benchmark_main)
    target_include_directories(${arg_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/bench ${PROJECT_SOURCE_DIR}/tests)
    oasis_target_warnings(${arg_NAME})
endfunction()
