# SPDX-License-Identifier: Apache-2.0
# Script: installs BUILD_DIR below WORK_DIR, then moves the tree to PREFIX, so that nothing may remember the first place.
file(REMOVE_RECURSE ${WORK_DIR})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/first_prefix
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(RENAME ${WORK_DIR}/first_prefix ${PREFIX})

file(GLOB_RECURSE exported ${PREFIX}/*.cmake)
list(LENGTH exported count)
if(count LESS 5)
    message(FATAL_ERROR "expected at least 5 CMake files below ${PREFIX}, found: ${exported}")
endif()
foreach(file IN LISTS exported)
    file(READ ${file} text)
    foreach(path IN ITEMS ${SOURCE_DIR} ${BUILD_DIR} first_prefix ${PREFIX})
        string(FIND "${text}" "${path}" position)
        if(NOT position EQUAL -1)
            message(FATAL_ERROR "${file} holds the absolute path ${path}")
        endif()
    endforeach()
endforeach()
