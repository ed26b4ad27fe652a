// SPDX-License-Identifier: Apache-2.0
#include "model/rope.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace oasis_decode {
namespace {

/// The growth of vectors that YaRN suggests for a factor.
double yarn_growth(double factor, double slope = 1.0) noexcept
{
    return factor <= 1 ? 1.0 : 0.1 * slope * std::log(factor) + 1.0;
}

RopeScaling scaling_named(const std::string& type, std::string_view where)
{
    if (type == "default" || type == "none") { return RopeScaling::kNone; }
    for (const auto scaling : {RopeScaling::kLinear, RopeScaling::kDynamic, RopeScaling::kYarn, RopeScaling::kLlama3}) {
        if (type == name(scaling)) { return scaling; }
    }
    fail(where, " is \"", legible(type), "\"; RoPE scaling default, linear, dynamic, yarn and llama3 are supported");
}

void check(const RopeConfig& rope, const std::string& what)
{
    if (!(rope.theta > 1) || !std::isfinite(rope.theta)) {
        fail(what, ": RoPE theta is ", rope.theta, ", not a number above 1");
    }
    if (!(rope.factor >= 1) || !std::isfinite(rope.factor)) {
        fail(what, ": the factor of RoPE scaling is ", rope.factor, ", less than 1");
    }
    if (rope.scaling == RopeScaling::kYarn && !(rope.beta_fast > rope.beta_slow && rope.beta_slow > 0)) {
        fail(what, ": RoPE scaling yarn with beta_fast ", rope.beta_fast, " not above beta_slow ", rope.beta_slow);
    }
    if (rope.scaling == RopeScaling::kYarn && !(rope.attention_factor > 0 && std::isfinite(rope.attention_factor))) {
        fail(what, ": RoPE scaling yarn with an attention factor of ", rope.attention_factor);
    }
    if (rope.scaling == RopeScaling::kLlama3 && !(rope.high_factor > rope.low_factor && rope.low_factor > 0)) {
        fail(what, ": RoPE scaling llama3 with high_freq_factor ", rope.high_factor, " not above low_freq_factor ",
             rope.low_factor);
    }
}

/// A setting that is not known could change the angles.
void refuse_unknown(const Json& scaling, const char* key, const std::string& what)
{
    static constexpr std::array kKnown = {"rope_type",
                                          "type",
                                          "rope_theta",
                                          "factor",
                                          "original_max_position_embeddings",
                                          "low_freq_factor",
                                          "high_freq_factor",
                                          "attention_factor",
                                          "beta_fast",
                                          "beta_slow",
                                          "mscale",
                                          "mscale_all_dim",
                                          "truncate",
                                          "finetuned",
                                          "partial_rotary_factor"};
    for (const auto& [setting, value] : scaling.items()) {
        if (value.is_object()) {
            fail(what, ": \"", key, "\" has settings of its own for \"", legible(setting),
                 "\", which is not supported");
        }
        if (std::find(kKnown.begin(), kKnown.end(), setting) == kKnown.end()) {
            fail(what, ": setting \"", legible(setting), "\" in \"", key, "\" is not supported");
        }
    }
}

double number_or(const Json& json, const char* key, double absent, const std::string& what)
{
    return member(json, key) ? positive_member(json, key, what) : absent;
}

void read_yarn(const Json& json, std::int64_t context, const std::string& what, RopeConfig& rope)
{
    if (!member(json, "factor") && rope.original_context > 0) {
        rope.factor = static_cast<double>(context) / static_cast<double>(rope.original_context);
    }
    rope.beta_fast = number_or(json, "beta_fast", rope.beta_fast, what);
    rope.beta_slow = number_or(json, "beta_slow", rope.beta_slow, what);
    rope.truncate = flag_member(json, "truncate", true, what);
    const double slope = number_or(json, "mscale", 0, what);
    const double slope_all = number_or(json, "mscale_all_dim", 0, what);
    const double suggested = slope > 0 && slope_all > 0
                                 ? yarn_growth(rope.factor, slope) / yarn_growth(rope.factor, slope_all)
                                 : yarn_growth(rope.factor);
    rope.attention_factor = number_or(json, "attention_factor", suggested, what);
}

void read_scaling(const Json& json, const char* key, std::int64_t context, const std::string& what, RopeConfig& rope)
{
    if (!json.is_object()) { fail(what, ": \"", key, "\" is ", shown(json), ", not an object"); }
    const char* type_key = member(json, "rope_type") ? "rope_type" : "type"; // older files say "type"
    rope.scaling = scaling_named(string_member(json, type_key, "default", what),
                                 fmt::format("{}: \"{}\" in \"{}\"", what, type_key, key));
    refuse_unknown(json, key, what);
    if (rope.scaling == RopeScaling::kNone) { return; }
    if (member(json, "original_max_position_embeddings")) {
        rope.original_context = integer_member(json, "original_max_position_embeddings", 1, kMostContext, what);
    }
    if (member(json, "factor") || rope.scaling != RopeScaling::kYarn || rope.original_context == 0) {
        rope.factor = positive_member(json, "factor", what);
    }
    if (rope.scaling == RopeScaling::kYarn) { read_yarn(json, context, what, rope); }
    if (rope.scaling == RopeScaling::kLlama3) {
        rope.low_factor = positive_member(json, "low_freq_factor", what);
        rope.high_factor = positive_member(json, "high_freq_factor", what);
        if (rope.original_context == 0) {
            fail(what, ": \"original_max_position_embeddings\" is missing in \"", key, "\"");
        }
    }
    if (rope.original_context == 0) { rope.original_context = context; }
}

double number_or(const GgufFile& file, const std::string& key, double absent)
{
    return file.number(key).value_or(absent);
}

/// Settings that no known converter writes for these models; another value than the one here would be ignored.
void refuse_gguf_variants(const GgufFile& file, const std::string& rope)
{
    const struct {
        const char* key;
        double neutral;
    } settings[] = {
        {"scaling.yarn_ext_factor", 1}, {"scaling.yarn_attn_factor", 1}, {"scaling.yarn_log_multiplier", 0}};
    for (const auto& [key, neutral] : settings) {
        if (const double value = number_or(file, rope + key, neutral); value != neutral) {
            fail(file.label(), ": key ", rope, key, " is ", value, ", which is not supported");
        }
    }
    for (const char* tensor : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
        if (file.find(tensor)) { fail(file.label(), ": RoPE scaling longrope (tensor ", tensor, ") is not supported"); }
    }
}

std::vector<float> read_divisors(const GgufFile& file, std::int32_t head_dim)
{
    const TensorView* tensor = file.find("rope_freqs.weight");
    if (!tensor) { return {}; }
    if (tensor->shape != std::vector<std::int64_t>{head_dim / 2}) {
        fail(file.label(), ": tensor rope_freqs.weight has shape ", tensor->shape_text(), ", not [", head_dim / 2, "]");
    }
    std::vector<float> divisors(static_cast<std::size_t>(head_dim / 2));
    dequantise(*tensor, divisors);
    for (const float divisor : divisors) {
        if (!(divisor > 0) || !std::isfinite(divisor)) {
            fail(file.label(), ": tensor rope_freqs.weight holds ", divisor, ", not a positive number");
        }
    }
    return divisors;
}

} // namespace

std::string_view name(RopeScaling scaling) noexcept
{
    switch (scaling) {
    case RopeScaling::kNone: return "none";
    case RopeScaling::kLinear: return "linear";
    case RopeScaling::kDynamic: return "dynamic";
    case RopeScaling::kYarn: return "yarn";
    case RopeScaling::kLlama3: return "llama3";
    }
    return "?";
}

std::string RopeConfig::text() const
{
    std::string out = fmt::format("theta {:g}", theta);
    if (scaling != RopeScaling::kNone) {
        out += fmt::format(", {} {:g} x {} tokens", name(scaling), factor, original_context);
    }
    if (!divisors.empty()) { out += ", frequency factors"; }
    return out;
}

std::int64_t RopeConfig::reach(std::int64_t context) const noexcept
{
    if (scaling == RopeScaling::kNone || scaling == RopeScaling::kLlama3) { return context; }
    const double stretched = static_cast<double>(original_context) * factor;
    return std::max(context, static_cast<std::int64_t>(std::min(stretched, static_cast<double>(kMostContext))));
}

RopeConfig rope_from_json(const Json& config, std::int64_t context, const std::string& what)
{
    RopeConfig rope;
    const Json* parameters = member(config, "rope_parameters");
    const Json* scaling = member(config, "rope_scaling");
    if (scaling) { read_scaling(*scaling, "rope_scaling", context, what, rope); }
    if (parameters) {
        const RopeScaling before = rope.scaling;
        rope = {};
        read_scaling(*parameters, "rope_parameters", context, what, rope);
        if (scaling && before != rope.scaling) {
            fail(what, ": \"rope_scaling\" is ", name(before), ", but \"rope_parameters\" is ", name(rope.scaling));
        }
    }
    rope.theta = number_or(config, "rope_theta", rope.theta, what);
    if (parameters) { rope.theta = number_or(*parameters, "rope_theta", rope.theta, what); }
    for (const Json* place : {&config, parameters, scaling}) {
        const double rotated = place ? number_or(*place, "partial_rotary_factor", 1, what) : 1;
        if (rotated != 1) { fail(what, ": \"partial_rotary_factor\" is ", rotated, "; only 1 is supported"); }
    }
    check(rope, what);
    return rope;
}

RopeConfig rope_from_gguf(const GgufFile& file, const std::string& prefix, std::int64_t context, std::int32_t head_dim)
{
    const std::string keys = prefix + ".rope.";
    RopeConfig rope;
    rope.theta = number_or(file, keys + "freq_base", rope.theta);
    const double factor = number_or(file, keys + "scaling.factor", number_or(file, keys + "scale_linear", 0));
    rope.scaling = scaling_named(file.string(keys + "scaling.type").value_or(factor > 0 ? "linear" : "none"),
                                 fmt::format("{}: key {}scaling.type", file.label(), keys));
    refuse_gguf_variants(file, keys);
    if (rope.scaling == RopeScaling::kDynamic || rope.scaling == RopeScaling::kLlama3) {
        fail(file.label(), ": RoPE scaling ", name(rope.scaling),
             " in a GGUF file (llama3 comes as rope_freqs.weight)");
    }
    if (rope.scaling != RopeScaling::kNone) {
        if (factor != 0) { rope.factor = factor; }
        rope.original_context = file.integer(keys + "scaling.original_context_length").value_or(context);
        if (rope.original_context < 1 || rope.original_context > kMostContext) {
            fail(file.label(), ": key ", keys, "scaling.original_context_length is ", rope.original_context);
        }
    }
    const double attention_factor = number_or(file, keys + "scaling.attn_factor", 1);
    if (rope.scaling == RopeScaling::kYarn) {
        rope.beta_fast = number_or(file, keys + "scaling.yarn_beta_fast", rope.beta_fast);
        rope.beta_slow = number_or(file, keys + "scaling.yarn_beta_slow", rope.beta_slow);
        rope.attention_factor = attention_factor * yarn_growth(rope.factor);
    } else if (attention_factor != 1) {
        fail(file.label(), ": key ", keys, "scaling.attn_factor is ", attention_factor, " with RoPE scaling ",
             name(rope.scaling), ", which is not supported");
    }
    rope.divisors = read_divisors(file, head_dim);
    check(rope, file.label());
    return rope;
}

Rope::Rope(RopeConfig config, std::int32_t head_dim) : config_(std::move(config)), head_dim_(head_dim)
{
    for (std::int32_t i = 0; i < head_dim / 2; ++i) {
        const double divisor =
            config_.divisors.empty() ? 1.0 : static_cast<double>(config_.divisors[static_cast<std::size_t>(i)]);
        frequencies_.push_back(std::pow(config_.theta, -2.0 * i / head_dim) / divisor);
    }
    switch (config_.scaling) {
    case RopeScaling::kNone:
    case RopeScaling::kDynamic: break;
    case RopeScaling::kLinear:
        for (double& frequency : frequencies_) { frequency /= config_.factor; }
        break;
    case RopeScaling::kYarn: stretch_yarn(); break;
    case RopeScaling::kLlama3: stretch_llama3(); break;
    }
}

void Rope::stretch_yarn()
{
    // The pair that turns `turns` times in the original context, as a real number.
    const auto pair_of = [&](double turns) {
        const double tokens_a_radian = static_cast<double>(config_.original_context) / (turns * 2 * std::numbers::pi);
        return head_dim_ * std::log(tokens_a_radian) / (2 * std::log(config_.theta));
    };
    double first = pair_of(config_.beta_fast);
    double last = pair_of(config_.beta_slow);
    if (config_.truncate) {
        first = std::floor(first);
        last = std::ceil(last);
    }
    first = std::max(first, 0.0);
    last = std::min(last, static_cast<double>(head_dim_ - 1));
    const double width = first == last ? 0.001 : last - first;
    for (std::size_t i = 0; i < frequencies_.size(); ++i) {
        const double slow = std::clamp((static_cast<double>(i) - first) / width, 0.0, 1.0);
        frequencies_[i] *= slow / config_.factor + (1 - slow);
    }
}

void Rope::stretch_llama3()
{
    for (double& frequency : frequencies_) {
        const double turns = static_cast<double>(config_.original_context) * frequency / (2 * std::numbers::pi);
        const double fast =
            std::clamp((turns - config_.low_factor) / (config_.high_factor - config_.low_factor), 0.0, 1.0);
        frequency *= (1 - fast) / config_.factor + fast;
    }
}

void Rope::angles(std::int64_t position, std::int64_t length, float* cosine, float* sine) const
{
    // Dynamic: theta grows by s^(d / (d - 2)), which slows pair i by s^(-2 i / (d - 2)).
    double growth = 1;
    if (config_.scaling == RopeScaling::kDynamic && length > config_.original_context) {
        growth = config_.factor * static_cast<double>(length) / static_cast<double>(config_.original_context) -
                 (config_.factor - 1);
    }
    for (std::size_t i = 0; i < frequencies_.size(); ++i) {
        double angle = static_cast<double>(position) * frequencies_[i];
        if (growth != 1) { angle *= std::pow(growth, -2.0 * static_cast<double>(i) / (head_dim_ - 2)); }
        cosine[i] = static_cast<float>(std::cos(angle) * config_.attention_factor);
        sine[i] = static_cast<float>(std::sin(angle) * config_.attention_factor);
    }
}

} // namespace oasis_decode
