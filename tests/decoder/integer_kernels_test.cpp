// SPDX-License-Identifier: Apache-2.0
#include "decoder/support.hpp"

#include "model/kernels.hpp"

namespace oasis_decode::test {
namespace {

constexpr StorageType kTypes[] = {StorageType::kQ8_0, StorageType::kQ5_0, StorageType::kQ4_0,
                                  StorageType::kQ4_1, StorageType::kF32,  StorageType::kBF16};

std::vector<float> random_values(std::size_t count, unsigned seed)
{
    std::mt19937 random(seed);
    std::normal_distribution<float> draw;
    std::vector<float> out(count);
    for (float& x : out) { x = draw(random); }
    return out;
}

/// Rows of a file: random codes, small random scales.
std::vector<std::byte> file_row(StorageType type, std::int64_t in, unsigned seed)
{
    std::mt19937 random(seed);
    const BlockLayout layout = layout_of(type);
    std::vector<std::byte> bytes(static_cast<std::size_t>(in) / layout.elements * layout.bytes);
    for (auto& b : bytes) { b = static_cast<std::byte>(random()); }
    if (type == StorageType::kF32) {
        const auto values = random_values(static_cast<std::size_t>(in), seed);
        std::memcpy(bytes.data(), values.data(), bytes.size());
    }
    if (type == StorageType::kBF16) {
        for (std::size_t i = 1; i < bytes.size(); i += 2) {
            bytes[i] = static_cast<std::byte>(0x3C + random() % 4 + random() % 2 * 0x80);
        }
    }
    for (std::size_t block = 0; layout.elements > 1 && block < bytes.size(); block += layout.bytes) {
        for (std::size_t high = 1; high < (type == StorageType::kQ4_1 || type == StorageType::kQ4_K ? 4U : 2U);
             high += 2) {
            bytes[block + high] = static_cast<std::byte>(0x24 + random() % 8 + random() % 2 * 0x80);
        }
    }
    return bytes;
}

Matrix panels(StorageType type, std::int64_t out, std::int64_t in)
{
    Matrix matrix(Matrix::code_for(type, in, Compute::kQ8), out, in);
    for (std::int64_t r = 0; r < out; ++r) { matrix.set_row(r, type, file_row(type, in, static_cast<unsigned>(r))); }
    return matrix;
}

TEST(IntegerKernels, PanelsKeepTheValuesOfTheFile)
{
    constexpr std::int64_t in = 160;
    for (const StorageType type : kTypes) {
        const Matrix w = panels(type, 19, in);
        ASSERT_TRUE(Matrix::in_panels(w.code())) << name(type);
        const bool exact = layout_of(type).elements > 1;
        for (std::int64_t r = 0; r < w.out(); ++r) {
            std::vector<float> expected(in), kept(in);
            dequantise(type, file_row(type, in, static_cast<unsigned>(r)), expected);
            w.row(r, kept.data());
            for (std::size_t i = 0; i < expected.size(); ++i) {
                const auto block = std::span(expected).subspan(i / 32 * 32, 32);
                float most = 0;
                for (const float x : block) { most = std::max(most, std::abs(x)); }
                // Half a step of the codes, and the rounding of their 16-bit scale.
                ASSERT_NEAR(kept[i], expected[i], exact ? 0.0F : most * (0.5F / 127 + 1e-3F))
                    << name(type) << " " << r << " " << i;
            }
        }
    }
    EXPECT_EQ(Matrix::code_for(StorageType::kQ8_0, 40, Compute::kQ8), Matrix::Code::kF32);
    EXPECT_EQ(Matrix::code_for(StorageType::kQ4_1, 64, Compute::kQ8), Matrix::Code::kInt4Offset);
}

TEST(IntegerKernels, ScalesOfSuperBlocksAreRoundedToSixteenBits)
{
    const auto bytes = file_row(StorageType::kQ4_K, 512, 4);
    Matrix w(Matrix::code_for(StorageType::kQ4_K, 512, Compute::kQ8), 1, 512);
    ASSERT_EQ(w.code(), Matrix::Code::kInt4Offset);
    w.set_row(0, StorageType::kQ4_K, bytes);
    std::vector<float> expected(512), kept(512);
    dequantise(StorageType::kQ4_K, bytes, expected);
    w.row(0, kept.data());
    for (std::size_t i = 0; i < kept.size(); i += 32) {
        const auto [least, most] = std::minmax_element(expected.begin() + static_cast<std::ptrdiff_t>(i),
                                                       expected.begin() + static_cast<std::ptrdiff_t>(i) + 32);
        const float size = std::max(std::abs(*least), std::abs(*most)) + *most - *least;
        for (std::size_t j = i; j < i + 32; ++j) { ASSERT_NEAR(kept[j], expected[j], 2e-3F * size) << j; }
    }
}

TEST(IntegerKernels, AnyTypeFitsEightBitsButNumbersOnly)
{
    Matrix mixed(Matrix::Code::kInt8, 2, 64);
    mixed.set_row(0, StorageType::kQ4_1, file_row(StorageType::kQ4_1, 64, 3));
    std::vector<float> expected(64), kept(64);
    dequantise(StorageType::kQ4_1, file_row(StorageType::kQ4_1, 64, 3), expected);
    mixed.row(0, kept.data());
    for (std::size_t i = 0; i < 64; ++i) { EXPECT_NEAR(kept[i], expected[i], 0.01 * std::abs(expected[i]) + 0.2); }
    std::vector<float> wrong(64, 1.0F);
    wrong[40] = INFINITY;
    EXPECT_THROW(mixed.set_row(1, StorageType::kF32, std::as_bytes(std::span(wrong))), ModelError);
    wrong[40] = 1e9F; // its scale has no 16-bit form
    EXPECT_THROW(mixed.set_row(1, StorageType::kF32, std::as_bytes(std::span(wrong))), ModelError);
    Matrix four(Matrix::Code::kInt4, 1, 64);
    EXPECT_THROW(four.set_row(0, StorageType::kQ8_0, file_row(StorageType::kQ8_0, 64, 1)), ModelError);
}

TEST(IntegerKernels, ActivationsAreWithinHalfAStep)
{
    auto x = random_values(3 * 96, 7);
    std::fill_n(x.begin() + 32, 32, 0.0F);
    x[96 + 5] = 300.0F;
    for (const IntegerKernels* kernels : all_integer_kernels()) {
        SCOPED_TRACE(kernels->name);
        QuantisedRows rows(3, 96);
        rows.resize(3, 96);
        for (std::int64_t r = 0; r < 3; ++r) { kernels->quantise(x.data() + r * 96, rows, r); }
        for (std::int64_t r = 0; r < 3; ++r) {
            for (std::int64_t b = 0; b < 3; ++b) {
                const float* block = x.data() + r * 96 + b * 32;
                float most = 0;
                for (int i = 0; i < 32; ++i) { most = std::max(most, std::abs(block[i])); }
                EXPECT_FLOAT_EQ(rows.scales(r)[b], most / 127);
                std::int32_t sum = 0;
                for (int i = 0; i < 32; ++i) {
                    const int code = rows.codes(r)[b * 32 + i];
                    sum += code;
                    EXPECT_NEAR(static_cast<double>(code) * static_cast<double>(rows.scales(r)[b]), block[i],
                                0.5001 * static_cast<double>(most) / 127);
                }
                EXPECT_EQ(rows.sums(r)[b], sum);
            }
        }
    }
}

// Values half a step apart are where one rounding and two differ.
TEST(IntegerKernels, AllSetsOfInstructionsRoundActivationsToTheSameCodes)
{
    constexpr std::int64_t in = 32 * 500;
    auto x = random_values(in, 11);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const float most = std::abs(x[i / 32 * 32]) + 0.1F;
        if (i % 32 == 0) {
            x[i] = most;
        } else {
            x[i] = (std::floor(x[i] * 20) + 0.5F) * (x[i / 32 * 32] / 127);
        }
    }
    QuantisedRows expected(1, in);
    expected.resize(1, in);
    all_integer_kernels().front()->quantise(x.data(), expected, 0);
    for (const IntegerKernels* kernels : all_integer_kernels()) {
        SCOPED_TRACE(kernels->name);
        QuantisedRows rows(1, in);
        rows.resize(1, in);
        kernels->quantise(x.data(), rows, 0);
        int different = 0;
        for (std::int64_t i = 0; i < in; ++i) { different += rows.codes(0)[i] != expected.codes(0)[i]; }
        EXPECT_EQ(different, 0);
        for (std::int64_t b = 0; b < rows.blocks(); ++b) {
            ASSERT_EQ(rows.sums(0)[b], expected.sums(0)[b]) << b;
            ASSERT_EQ(rows.scales(0)[b], expected.scales(0)[b]) << b;
            ASSERT_EQ(rows.scaled_sums(0)[b], expected.scaled_sums(0)[b]) << b;
        }
    }
}

TEST(IntegerKernels, ProductsAgreeWithDouble)
{
    for (const IntegerKernels* kernels : all_integer_kernels()) {
        for (const StorageType type : kTypes) {
            for (const std::int64_t out : {1, 16, 50, 97}) {
                SCOPED_TRACE(std::string(kernels->name) + " " + std::string(name(type)) + " " + std::to_string(out));
                constexpr std::int64_t in = 96, count = 15;
                const Matrix w = panels(type, out, in);
                const auto x = random_values(static_cast<std::size_t>(count * in), 1);
                QuantisedRows rows(count, in);
                rows.resize(count, in);
                for (std::int64_t r = 0; r < count; ++r) { kernels->quantise(x.data() + r * in, rows, r); }
                const auto start = random_values(static_cast<std::size_t>(count * out), 3);
                auto plain = start, added = start;
                kernels->multiply({&rows, &w, plain.data(), out, false}, 0, (out + 15) / 16);
                kernels->multiply({&rows, &w, added.data(), out, true}, 0, (out + 15) / 16);
                std::vector<float> weights(in);
                for (std::int64_t o = 0; o < out; ++o) {
                    w.row(o, weights.data());
                    for (std::int64_t r = 0; r < count; ++r) {
                        double exact = 0, size = 1;
                        for (std::int64_t i = 0; i < in; ++i) {
                            const double value = static_cast<double>(rows.scales(r)[i / 32]) * rows.codes(r)[i];
                            exact += value * static_cast<double>(weights[static_cast<std::size_t>(i)]);
                            size += std::abs(value * static_cast<double>(weights[static_cast<std::size_t>(i)]));
                        }
                        const auto at = static_cast<std::size_t>(r * out + o);
                        ASSERT_NEAR(plain[at], exact, 2e-6 * size) << r << " " << o;
                        ASSERT_NEAR(added[at], exact + static_cast<double>(start[at]), 2e-6 * size) << r << " " << o;
                    }
                }
            }
        }
    }
}

TEST(IntegerKernels, ARowsBitsDependNeitherOnOtherRowsNorOnThreadsNorOnOutputs)
{
    constexpr std::int64_t in = 320, out = 212, most = 300;
    const auto x = random_values(static_cast<std::size_t>(most * in), 5);
    for (const StorageType type : {StorageType::kQ8_0, StorageType::kQ4_0, StorageType::kQ4_1}) {
        const Matrix w = panels(type, out, in);
        std::vector<float> alone(static_cast<std::size_t>(most * out));
        oasis::InlineExecutor one;
        Multiplier single(one, in);
        for (std::int64_t r = 0; r < most; ++r) {
            single({.rows = 1, .w = &w, .x = x.data() + r * in, .y = alone.data() + r * out});
        }
        for (const std::size_t threads : {1U, 2U, 3U, 7U}) {
            oasis::ThreadPool pool(threads);
            Multiplier multiply(pool, in);
            for (const std::int64_t rows : {2, 3, 4, 5, 6, 7, 8, 13, 300}) {
                std::vector<float> y(static_cast<std::size_t>(rows * out));
                multiply({.rows = rows, .w = &w, .x = x.data(), .y = y.data()});
                ASSERT_TRUE(std::equal(y.begin(), y.end(), alone.begin()))
                    << name(type) << " " << threads << " " << rows;
                std::vector<float> some(static_cast<std::size_t>(rows * 37));
                multiply({.rows = rows, .w = &w, .x = x.data(), .y = some.data(), .outputs = 37});
                for (std::int64_t r = 0; r < rows; ++r) {
                    ASSERT_TRUE(
                        std::equal(some.begin() + r * 37, some.begin() + (r + 1) * 37, alone.begin() + r * out));
                }
            }
        }
    }
}

TEST(IntegerKernels, ARowThatIsNoNumberStaysOne)
{
    constexpr std::int64_t in = 64, out = 20;
    const Matrix w = panels(StorageType::kQ4_1, out, in);
    for (const float bad : {NAN, INFINITY}) {
        auto x = random_values(3 * in, 5);
        x[in + 50] = bad;
        std::vector<float> y(3 * out);
        oasis::InlineExecutor one;
        Multiplier multiply(one, in);
        multiply({.rows = 3, .w = &w, .x = x.data(), .y = y.data()});
        for (std::size_t i = 0; i < y.size(); ++i) { EXPECT_EQ(std::isnan(y[i]), i / out == 1) << i; }
    }
}

} // namespace
} // namespace oasis_decode::test
