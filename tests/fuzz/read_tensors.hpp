// SPDX-License-Identifier: Apache-2.0
//
// Reads every tensor of an accepted file in the two ways in which the decoder does.
#pragma once

#include "fuzz_input.hpp"
#include "model/matrix.hpp"
#include "model/tensor.hpp"

namespace oasis_decode::fuzz {

inline void read_tensors(const TensorSource& source)
{
    for (const std::string& name : source.names()) {
        const TensorView* const tensor = source.find(name);
        expect(tensor != nullptr);
        static_cast<void>(first_not_finite(*tensor));
        std::vector<float> values(static_cast<std::size_t>(tensor->elements()));
        dequantise(*tensor, values);
        if (tensor->shape.size() != 2 || values.empty()) { continue; }
        const std::int64_t rows = tensor->shape[0];
        const std::int64_t width = tensor->shape[1];
        Matrix matrix(Matrix::code_for(tensor->type, width), 1, width);
        std::vector<float> row(static_cast<std::size_t>(width));
        const std::size_t row_bytes = tensor->bytes.size() / static_cast<std::size_t>(rows);
        for (std::int64_t r = 0; r < rows; ++r) {
            matrix.set_row(0, tensor->type, tensor->bytes.subspan(static_cast<std::size_t>(r) * row_bytes, row_bytes));
            matrix.row(0, row.data());
        }
    }
}

} // namespace oasis_decode::fuzz
