# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)
# Writes the commit that is being built into OUTPUT, and touches the file only when it changed.
set(commit unknown)
if(GIT)
    execute_process(COMMAND ${GIT} describe --always --dirty --abbrev=12 --exclude=*
        WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed
        ERROR_QUIET)
    if(NOT failed AND described)
        set(commit ${described})
    endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define OASIS_DECODE_COMMIT \"@commit@\"\n" @ONLY)
