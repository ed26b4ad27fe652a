# SPDX-License-Identifier: Apache-2.0
# Script: compiles SOURCE, which must be refused with a text that matches EXPECTED.
execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only ${INCLUDES} ${SOURCE}
    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0)
    message(FATAL_ERROR "${SOURCE} compiled; it must be refused with: ${EXPECTED}")
endif()
if(NOT output MATCHES "${EXPECTED}")
    message(FATAL_ERROR "${SOURCE} was refused, but not with: ${EXPECTED}\n${output}")
endif()
