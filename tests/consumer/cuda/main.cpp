// SPDX-License-Identifier: Apache-2.0
#include <oasis/cuda/device.hpp>
#include <oasis/cuda/memory.hpp>
#include <oasis/oasis.hpp>

#include <iostream>

int main()
{
    std::string reason;
    const int devices = oasis::cuda::device_count(&reason);
    std::cout << devices << " devices " << reason << '\n';
    return 0;
}
