# SPDX-License-Identifier: Apache-2.0
# The CUDA backend. This version has none: the option exists so that asking for it gives a sentence.
if(OASIS_CUDA)
    message(FATAL_ERROR "OASIS_CUDA=ON: the CUDA backend is not part of OasisKV ${PROJECT_VERSION}, which has the CPU "
        "backend only. Configure with -DOASIS_CUDA=OFF (preset `cpu`).")
endif()
