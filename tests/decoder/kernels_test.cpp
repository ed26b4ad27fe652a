// SPDX-License-Identifier: Apache-2.0
#include "decoder/support.hpp"

#include "model/kernels.hpp"

namespace oasis_decode::test {
namespace {

std::vector<float> random_values(std::size_t count, unsigned seed)
{
    std::mt19937 random(seed);
    std::normal_distribution<float> draw;
    std::vector<float> out(count);
    for (float& x : out) { x = draw(random); }
    return out;
}

Matrix float_matrix(std::int64_t out, std::int64_t in, const std::vector<float>& values)
{
    Matrix matrix(Matrix::Code::kF32, out, in);
    const auto bytes = std::as_bytes(std::span(values));
    for (std::int64_t r = 0; r < out; ++r) {
        matrix.set_row(r, StorageType::kF32,
                       bytes.subspan(static_cast<std::size_t>(r * in * 4), static_cast<std::size_t>(in * 4)));
    }
    return matrix;
}

// Random bytes are valid codes; the scales (and offsets) get small. In its own code, or in one that is given.
Matrix coded_matrix(StorageType type, std::int64_t out, std::int64_t in, std::optional<Matrix::Code> code = {})
{
    std::mt19937 random(9);
    const BlockLayout layout = layout_of(type);
    const bool two = type == StorageType::kQ4_1 || type == StorageType::kQ5_1 || type == StorageType::kQ4_K ||
                     type == StorageType::kQ5_K;
    const std::size_t scale = type == StorageType::kQ6_K ? 208 : 0;
    Matrix matrix(code.value_or(Matrix::code_for(type, in)), out, in);
    for (std::int64_t r = 0; r < out; ++r) {
        std::vector<std::byte> bytes(static_cast<std::size_t>(in) / layout.elements * layout.bytes);
        for (auto& b : bytes) { b = static_cast<std::byte>(random()); }
        for (std::size_t block = 0; block < bytes.size(); block += layout.bytes) {
            for (std::size_t high = 1; high < (two ? 4U : 2U); high += 2) {
                bytes[block + scale + high] = type == StorageType::kQ6_K ? std::byte{0x0A} : std::byte{0x2A};
            }
        }
        if (type == StorageType::kBF16) {
            for (std::size_t high = 1; high < bytes.size(); high += 2) { bytes[high] = std::byte{0xBE}; }
        }
        matrix.set_row(r, type, bytes);
    }
    return matrix;
}

void check_product(oasis::Executor& executor, const Matrix& w, std::int64_t rows, bool accumulate)
{
    Multiplier multiply(executor, w.in());
    const auto x = random_values(static_cast<std::size_t>(rows * w.in()), 1);
    const auto start = random_values(static_cast<std::size_t>(rows * w.out()), 3);
    auto a = start, b = start, c = start;
    multiply({rows, &w, x.data(), a.data(), accumulate});
    multiply.few({rows, &w, x.data(), b.data(), accumulate});
    multiply.many({rows, &w, x.data(), c.data(), accumulate});
    std::vector<float> weights(static_cast<std::size_t>(w.in()));
    for (std::int64_t o = 0; o < w.out(); ++o) {
        w.row(o, weights.data());
        for (std::int64_t r = 0; r < rows; ++r) {
            const auto at = static_cast<std::size_t>(r * w.out() + o);
            double exact = accumulate ? static_cast<double>(start[at]) : 0.0;
            double size = 1;
            for (std::size_t j = 0; j < weights.size(); ++j) {
                const double term = static_cast<double>(x[static_cast<std::size_t>(r) * weights.size() + j]) *
                                    static_cast<double>(weights[j]);
                exact += term;
                size += std::abs(term);
            }
            for (const auto* y : {&a, &b, &c}) {
                ASSERT_NEAR((*y)[at], exact, 1e-6 * size) << rows << " x " << w.in() << " x " << w.out();
            }
        }
    }
}

TEST(Kernels, ProductsAgreeWithDouble)
{
    oasis::ThreadPool threads(3);
    for (const std::int64_t in : {1, 15, 32, 70, 576}) {
        for (const std::int64_t out : {1, 17, 330}) {
            const Matrix w = float_matrix(out, in, random_values(static_cast<std::size_t>(out * in), 2));
            for (const std::int64_t rows : {1, 2, 3, 5, 8, 9, 20}) {
                for (const bool accumulate : {false, true}) { check_product(threads, w, rows, accumulate); }
            }
        }
    }
}

TEST(Kernels, CodedProductsAgreeWithDouble)
{
    oasis::ThreadPool threads(2);
    for (const auto type :
         {StorageType::kBF16, StorageType::kQ8_0, StorageType::kQ4_0, StorageType::kQ4_1, StorageType::kQ5_0,
          StorageType::kQ5_1, StorageType::kQ4_K, StorageType::kQ5_K, StorageType::kQ6_K}) {
        const std::int64_t in = layout_of(type).elements == 256 ? 512 : 96;
        for (const std::int64_t out : {1, 17, 330}) {
            const Matrix w = coded_matrix(type, out, in);
            ASSERT_NE(w.code(), Matrix::Code::kF32);
            for (const std::int64_t rows : {1, 6, 8, 20}) { check_product(threads, w, rows, rows == 6); }
        }
    }
}

TEST(Kernels, MatrixKeepsTheValuesOfTheFile)
{
    std::mt19937 random(11);
    for (const auto type : {StorageType::kF32, StorageType::kF16, StorageType::kBF16, StorageType::kQ8_0,
                            StorageType::kQ4_0, StorageType::kQ4_1}) {
        const BlockLayout layout = layout_of(type);
        std::vector<std::byte> bytes(64 / layout.elements * layout.bytes);
        for (auto& b : bytes) { b = static_cast<std::byte>(random() % 100); }
        std::vector<float> expected(64), kept(64), converted(64);
        dequantise(type, bytes, expected);
        Matrix small(Matrix::code_for(type, 64), 2, 64), wide(Matrix::Code::kF32, 2, 64);
        small.set_row(1, type, bytes);
        wide.set_row(1, type, bytes);
        small.row(1, kept.data());
        wide.row(1, converted.data());
        EXPECT_EQ(kept, expected) << name(type);
        EXPECT_EQ(converted, expected) << name(type);
        EXPECT_THROW(small.set_row(2, type, bytes), ModelError);
        EXPECT_THROW(small.set_row(0, type, std::span(bytes).first(bytes.size() - 1)), ModelError);
    }
    EXPECT_EQ(Matrix::code_for(StorageType::kBF16, 40), Matrix::Code::kF32);
}

TEST(Kernels, SwigluAgreesWithDouble)
{
    oasis::InlineExecutor executor;
    std::vector<float> gate_up;
    for (const float g :
         {-1000.0F, -90.0F, -87.5F, -20.0F, -5.0F, -1.0F, -1e-6F, 0.0F, 1e-6F, 0.7F, 3.0F, 15.0F, 88.0F, 500.0F}) {
        gate_up.push_back(g);
    }
    for (int i = 0; i < 2000; ++i) { gate_up.push_back(static_cast<float>(i - 1000) * 0.0313F); }
    const std::size_t width = gate_up.size();
    gate_up.resize(2 * width, 1.0F);
    std::vector<float> act(width);
    swiglu(executor, 1, static_cast<std::int64_t>(width), gate_up.data(), act.data());
    for (std::size_t i = 0; i < width; ++i) {
        const double g = static_cast<double>(gate_up[i]);
        const double exact = g / (1.0 + std::exp(-g));
        EXPECT_NEAR(act[i], exact, 1e-6 * std::abs(exact) + 1e-30) << g;
    }
    float nan_row[2] = {NAN, 1.0F}, out = 0;
    swiglu(executor, 1, 1, nan_row, &out);
    EXPECT_TRUE(std::isnan(out));
}

TEST(Kernels, SumOfExponentialsAgreesWithDouble)
{
    for (const std::size_t width : {1U, 15U, 16U, 4099U}) {
        std::vector<float> x = random_values(width, 5);
        for (float& value : x) { value *= 8; }
        const float top = *std::max_element(x.begin(), x.end());
        double exact = 0;
        for (const float value : x) { exact += std::exp(static_cast<double>(value) - static_cast<double>(top)); }
        EXPECT_NEAR(sum_exp(x, top), exact, 2e-6 * exact) << width;
    }
}

TEST(Kernels, AProductOfTheFirstOutputsIsTheWholeOnesBeginning)
{
    oasis::ThreadPool threads(2);
    const Matrix w = coded_matrix(StorageType::kQ8_0, 300, 256);
    for (const std::int64_t rows : {1, 3, 8, 20}) {
        Multiplier multiply(threads, 256);
        const auto x = random_values(static_cast<std::size_t>(rows * 256), 2);
        std::vector<float> all(static_cast<std::size_t>(rows * 300)), some(static_cast<std::size_t>(rows * 70));
        multiply({.rows = rows, .w = &w, .x = x.data(), .y = all.data()});
        multiply({.rows = rows, .w = &w, .x = x.data(), .y = some.data(), .outputs = 70});
        for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t o = 0; o < 70; ++o) {
                EXPECT_EQ(some[static_cast<std::size_t>(r * 70 + o)], all[static_cast<std::size_t>(r * 300 + o)]);
            }
        }
    }
}

TEST(Kernels, RmsNormAgreesWithDouble)
{
    oasis::ThreadPool threads(2);
    const auto x = random_values(3 * 50, 4), weight = random_values(50, 5);
    std::vector<float> out(x.size());
    rms_norm(threads, 3, 50, x.data(), weight.data(), 1e-5F, out.data());
    for (std::size_t r = 0; r < 3; ++r) {
        double squares = 0;
        for (std::size_t i = 0; i < 50; ++i) {
            squares += static_cast<double>(x[r * 50 + i]) * static_cast<double>(x[r * 50 + i]);
        }
        for (std::size_t i = 0; i < 50; ++i) {
            EXPECT_NEAR(out[r * 50 + i],
                        static_cast<double>(x[r * 50 + i]) / std::sqrt(squares / 50 + 1e-5) *
                            static_cast<double>(weight[i]),
                        1e-5);
        }
    }
}

TEST(Kernels, RopePairsTheHalves)
{
    const float in[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const float cosine[2] = {0.0F, 1.0F}, sine[2] = {1.0F, 0.0F};
    float out[8];
    rotate_heads(2, 4, in, cosine, sine, out);
    const std::vector<float> expected = {-3, 2, 1, 4, -7, 6, 5, 8};
    EXPECT_EQ(std::vector<float>(out, out + 8), expected);
}

} // namespace
} // namespace oasis_decode::test
