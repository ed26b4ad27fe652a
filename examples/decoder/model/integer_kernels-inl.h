// SPDX-License-Identifier: Apache-2.0
//
// The kernels for one instruction set. Included several times by integer_kernels.cpp, each time into a namespace that has:
//   kLanes                         lanes of a vector
//   kTileRows, kTilePanels         what the registers hold sums and dots of
//   Ints, Floats                   vectors of int32 and float
//   all(int or float), load(bytes), to_floats(Ints), half_floats(16-bit floats)
//   low(Ints), high(Ints)          the low and high halves of all bytes
//   Quads, quads(codes)            four int8 codes of x, for all lanes
//   dot(Ints, Ints, Quads)         adds the dot products of each lane's four unsigned bytes with the quad
//   fused(a, b, c)                 a * b + c
// No include guard: see above.

constexpr int kPanelVectors = static_cast<int>(Matrix::kPanelRows) / kLanes;

/// The dots of one block: every vector of weights is loaded once, for all rows.
template <int kRows, int kVectors, Matrix::Code kCode>
OASIS_DECODE_INLINE void dots_of_block(const std::uint8_t* const* codes, const std::int8_t* const* x, Ints (*dots)[kVectors])
{
    constexpr bool kBytes = kCode == Matrix::Code::kInt8;
    constexpr int kGroups = kBytes ? 8 : 4;
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) {
        Ints w[kVectors];
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
            w[v] = load(codes[v / kPanelVectors] + (g * kPanelVectors + v % kPanelVectors) * 4 * kLanes);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            const Quads first = quads(x[r] + 4 * g);
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) { dots[r][v] = dot(dots[r][v], kBytes ? w[v] : low(w[v]), first); }
            if constexpr (!kBytes) {
                const Quads second = quads(x[r] + 4 * (g + kGroups));
#pragma GCC unroll 8
                for (int v = 0; v < kVectors; ++v) { dots[r][v] = dot(dots[r][v], high(w[v]), second); }
            }
        }
    }
}

/// Writes the sums of one row and panel: all of them, or those below `outputs`.
OASIS_DECODE_INLINE void store_panel(const IntegerProduct& p, std::int64_t row, std::int64_t panel, const Floats* sums)
{
    const std::int64_t first = panel * Matrix::kPanelRows;
    const std::int64_t count = std::min(Matrix::kPanelRows, p.outputs - first);
    float values[Matrix::kPanelRows];
    std::memcpy(values, sums, sizeof values);
    float* const y = p.y + row * p.outputs + first;
    if (count == Matrix::kPanelRows && !p.accumulate) {
        std::memcpy(y, values, sizeof values);
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) { y[i] = p.accumulate ? y[i] + values[i] : values[i]; }
}

/// Rows [row, row + kRows) with kPanels panels, block by block.
template <int kRows, int kPanels, Matrix::Code kCode>
void tile(const IntegerProduct& p, std::int64_t row, std::int64_t panel)
{
    constexpr int kVectors = kPanels * kPanelVectors;
    constexpr std::int64_t kBytes = Matrix::panel_block_bytes(kCode);
    constexpr std::int64_t kScales = Matrix::panel_block_scales(kCode);
    const QuantisedRows& rows = *p.x;
    Floats sums[kRows][kVectors];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) { sums[r][v] = all(0.0F); }
    }
    for (std::int64_t b = 0; b < rows.blocks(); ++b) {
        const std::uint8_t* codes[kPanels];
        const std::uint16_t* scales[kPanels];
        const std::int8_t* x[kRows];
        Ints dots[kRows][kVectors];
#pragma GCC unroll 8
        for (int i = 0; i < kPanels; ++i) {
            codes[i] = p.w->panel_codes(panel + i) + b * kBytes;
            scales[i] = p.w->panel_scales(panel + i) + b * kScales;
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
            x[r] = rows.codes(row + r) + b * Matrix::kBlock;
            const Ints start = all(-Matrix::zero_point(kCode) * rows.sums(row + r)[b]);
#pragma GCC unroll 8
            for (int v = 0; v < kVectors; ++v) { dots[r][v] = start; }
        }
        dots_of_block<kRows, kVectors, kCode>(codes, x, dots);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
            const std::uint16_t* const at = scales[v / kPanelVectors] + v % kPanelVectors * kLanes;
            const Floats scale = half_floats(at);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
                const Floats value = to_floats(dots[r][v]) * all(rows.scales(row + r)[b]);
                sums[r][v] = fused(value, scale, sums[r][v]);
            }
            if constexpr (kCode == Matrix::Code::kInt4Offset) {
                const Floats offset = half_floats(at + Matrix::kPanelRows);
#pragma GCC unroll 8
                for (int r = 0; r < kRows; ++r) {
                    sums[r][v] = fused(offset, all(rows.scaled_sums(row + r)[b]), sums[r][v]);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
        for (int i = 0; i < kPanels; ++i) { store_panel(p, row + r, panel + i, sums[r] + i * kPanelVectors); }
    }
}

template <int kPanels, Matrix::Code kCode>
void panels(const IntegerProduct& p, std::int64_t panel)
{
    const std::int64_t rows = p.x->rows();
    std::int64_t row = 0;
    for (; row + kTileRows <= rows; row += kTileRows) { tile<kTileRows, kPanels, kCode>(p, row, panel); }
    switch (rows - row) {
    case 5: return tile<std::min(5, kTileRows), kPanels, kCode>(p, row, panel);
    case 4: return tile<std::min(4, kTileRows), kPanels, kCode>(p, row, panel);
    case 3: return tile<std::min(3, kTileRows), kPanels, kCode>(p, row, panel);
    case 2: return tile<std::min(2, kTileRows), kPanels, kCode>(p, row, panel);
    case 1: return tile<1, kPanels, kCode>(p, row, panel);
    default: return;
    }
}

template <Matrix::Code kCode> void multiply_code(const IntegerProduct& p, std::int64_t first, std::int64_t last)
{
    // Few rows wait for the weights, which come fastest as one stream.
    if (p.x->rows() >= kTileRows) {
        for (; first + kTilePanels <= last; first += kTilePanels) { panels<kTilePanels, kCode>(p, first); }
    }
    for (; first < last; ++first) { panels<1, kCode>(p, first); }
}

void multiply(const IntegerProduct& p, std::int64_t first, std::int64_t last)
{
    switch (p.w->code()) {
    case Matrix::Code::kInt8: return multiply_code<Matrix::Code::kInt8>(p, first, last);
    case Matrix::Code::kInt4: return multiply_code<Matrix::Code::kInt4>(p, first, last);
    case Matrix::Code::kInt4Offset: return multiply_code<Matrix::Code::kInt4Offset>(p, first, last);
    default: return;
    }
}

void quantise(const float* x, QuantisedRows& out, std::int64_t row)
{
    constexpr float kRound = 12582912.0F; // 1.5 * 2^23: adding it rounds to whole numbers
    std::int8_t* codes = out.codes(row);
    for (std::int64_t b = 0; b < out.blocks(); ++b, x += Matrix::kBlock, codes += Matrix::kBlock) {
        std::uint32_t most = 0; // magnitudes are ordered as their bits, infinity and NaN above all numbers
        for (int i = 0; i < Matrix::kBlock; ++i) { most = std::max(most, std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFU); }
        const float magnitude = most < 0x7F800000U ? std::bit_cast<float>(most) : std::numeric_limits<float>::quiet_NaN();
        const float inverse = magnitude > 1e-30F ? 127.0F / magnitude : 0.0F;
        std::int32_t sum = 0;
        for (int i = 0; i < Matrix::kBlock; ++i) {
            const float rounded = (x[i] * inverse + kRound) - kRound;
            const auto code = inverse > 0 ? static_cast<std::int32_t>(rounded) : 0;
            codes[i] = static_cast<std::int8_t>(code);
            sum += code;
        }
        const float scale = magnitude / 127.0F;
        out.scales(row)[b] = scale;
        out.sums(row)[b] = sum;
        out.scaled_sums(row)[b] = scale * static_cast<float>(sum);
    }
}
