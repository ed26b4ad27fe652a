# SPDX-License-Identifier: Apache-2.0

# oasis_target_warnings(<target>): the project's warning set, never part of a target's interface.
function(oasis_target_warnings target)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow>")
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        # False positives of GCC 12 and 13 inside std::string once it is inlined.
        target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
    endif()
    if(OASIS_WERROR)
        target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
    endif()
endfunction()
