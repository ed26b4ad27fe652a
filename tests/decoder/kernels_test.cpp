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

TEST(Kernels, ProductsAgreeWithDouble)
{
    oasis::ThreadPool threads(3);
    for (const std::int64_t in : {1, 15, 32, 70, 576}) {
        for (const std::int64_t out : {1, 17, 130}) {
            for (const std::int64_t rows : {1, 2, 3, 5, 8, 9, 40}) {
                const auto x = random_values(static_cast<std::size_t>(rows * in), 1);
                const auto w = random_values(static_cast<std::size_t>(out * in), 2);
                const auto start = random_values(static_cast<std::size_t>(rows * out), 3);
                for (const bool accumulate : {false, true}) {
                    auto a = start, b = start, c = start;
                    Product product{rows, in, out, x.data(), w.data(), a.data(), accumulate};
                    multiply(threads, product);
                    product.y = b.data();
                    multiply_few(threads, product);
                    product.y = c.data();
                    multiply_blas(threads, product);
                    for (std::int64_t i = 0; i < rows * out; ++i) {
                        double exact = accumulate ? static_cast<double>(start[static_cast<std::size_t>(i)]) : 0.0;
                        for (std::int64_t j = 0; j < in; ++j) {
                            exact += static_cast<double>(x[static_cast<std::size_t>(i / out * in + j)]) * static_cast<double>(w[static_cast<std::size_t>(i % out * in + j)]);
                        }
                        for (const auto* y : {&a, &b, &c}) { ASSERT_NEAR((*y)[static_cast<std::size_t>(i)], exact, 1e-4) << rows << " x " << in << " x " << out; }
                    }
                }
            }
        }
    }
}

TEST(Kernels, SwigluAgreesWithDouble)
{
    oasis::InlineExecutor executor;
    std::vector<float> gate_up;
    for (const float g : {-1000.0F, -90.0F, -87.5F, -20.0F, -5.0F, -1.0F, -1e-6F, 0.0F, 1e-6F, 0.7F, 3.0F, 15.0F, 88.0F, 500.0F}) { gate_up.push_back(g); }
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

TEST(Kernels, RmsNormAgreesWithDouble)
{
    oasis::ThreadPool threads(2);
    const auto x = random_values(3 * 50, 4), weight = random_values(50, 5);
    std::vector<float> out(x.size());
    rms_norm(threads, 3, 50, x.data(), weight.data(), 1e-5F, out.data());
    for (std::size_t r = 0; r < 3; ++r) {
        double squares = 0;
        for (std::size_t i = 0; i < 50; ++i) { squares += static_cast<double>(x[r * 50 + i]) * static_cast<double>(x[r * 50 + i]); }
        for (std::size_t i = 0; i < 50; ++i) {
            EXPECT_NEAR(out[r * 50 + i], static_cast<double>(x[r * 50 + i]) / std::sqrt(squares / 50 + 1e-5) * static_cast<double>(weight[i]), 1e-5);
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
