#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reference logits of tiny models, one for each architecture, RoPE scaling and type of weights that the decoder reads.

Weights are no files: they follow from the names of their tensors by the rules of `floats` and `coded`, which
tiny_family.hpp repeats. The forward pass is float64 and shares nothing with the decoder.

usage: make_references.py > ../data/model-references.json      (needs numpy)
"""
import json
import sys

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


# --- weights -----------------------------------------------------------------------------------------------------

def stream(name, count):
    """`count` 64-bit words: splitmix64, seeded with the FNV-1a hash of the name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def spread_of(name):
    """Mean and half width of a tensor's uniform distribution."""
    if name.endswith("norm.weight"):
        return 1.0, 0.5
    if name.endswith(".bias"):
        return 0.0, 0.5
    return 0.0, 0.25 if name in ("model.embed_tokens.weight", "lm_head.weight") else 0.125


def floats(name, shape):
    mean, half = spread_of(name)
    unit = (stream(name, int(np.prod(shape))) >> np.uint64(40)).astype(np.float64) / 2**23 - 1
    return (mean + half * unit).astype(np.float32).reshape(shape)


def to_f16(x):
    return x.astype(np.float16).astype(np.float32)


def to_bf16(x):
    bits = x.view(np.uint32)
    bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


# Elements and bytes of a block; for each half float of it, where it lies and its sign and exponent: the ten bits of
# the mantissa are random, and so are all other bytes.
BLOCKS = {
    "Q8_0": (32, 34, [(0, 0x1000)]),
    "Q4_0": (32, 18, [(0, 0x2000)]),
    "Q4_1": (32, 20, [(0, 0x2000), (2, 0xAC00)]),
    "Q5_0": (32, 22, [(0, 0x1C00)]),
    "Q5_1": (32, 24, [(0, 0x1C00), (2, 0xAC00)]),
    "Q4_K": (256, 144, [(0, 0x0C00), (2, 0x1800)]),
    "Q5_K": (256, 176, [(0, 0x0800), (2, 0x1800)]),
    "Q6_K": (256, 210, [(208, 0x0000)]),
}


def coded(name, kind, shape):
    """The blocks of a tensor, [blocks, bytes]."""
    elements, size, halves = BLOCKS[kind]
    blocks = int(np.prod(shape)) // elements
    raw = stream(name + ":" + kind, (blocks * size + 7) // 8).view(np.uint8)[: blocks * size].reshape(blocks, size).copy()
    for offset, base in halves:
        raw[:, offset + 1] = (raw[:, offset + 1] & 3) | (base >> 8)
    return raw


def half(block, offset):
    return float(block[offset : offset + 2].copy().view(np.float16)[0])


def bits(data, start, count):
    """An unsigned number of `count` bits at bit `start` of little-endian bytes."""
    return int.from_bytes(bytes(data), "little") >> start & ((1 << count) - 1)


def k_scales(packed):
    """Eight pairs of six bits: (scale, minimum) of each part."""
    out = []
    for part in range(4):
        out.append((packed[part] % 64, packed[4 + part] % 64))
    for part in range(4):
        low, high_scale, high_minimum = packed[8 + part], packed[part] // 64, packed[4 + part] // 64
        out.append((low % 16 + 16 * high_scale, low // 16 + 16 * high_minimum))
    return out


def decode(kind, block):
    """The values of one block, from the format's description, in double."""
    b = [int(x) for x in block]
    if kind == "Q8_0":
        return [half(block, 0) * (x - 256 if x > 127 else x) for x in b[2:]]
    if kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        fifth = kind.startswith("Q5")
        least = half(block, 2) if kind.endswith("1") else -half(block, 0) * (16 if fifth else 8)
        rest = b[4 if kind.endswith("1") else 2 :]
        high = bits(rest[:4], 0, 32) if fifth else 0
        nibbles = rest[4:] if fifth else rest
        low = [x % 16 for x in nibbles] + [x // 16 for x in nibbles]
        return [half(block, 0) * (low[i] + 16 * (high >> i & 1)) + least for i in range(32)]
    if kind in ("Q4_K", "Q5_K"):
        nibbles = b[16:] if kind == "Q4_K" else b[48:]
        out = []
        for part, (scale, minimum) in enumerate(k_scales(b[4:16])):
            for i in range(32):
                pair = nibbles[32 * (part // 2) + i]
                code = pair // 16 if part % 2 else pair % 16
                if kind == "Q5_K":
                    code += 16 * (b[16 + i] >> part & 1)
                out.append(half(block, 0) * scale * code - half(block, 2) * minimum)
        return out
    assert kind == "Q6_K"
    out = []
    for i in range(256):
        upper, rest = divmod(i, 128)
        part, place = divmod(rest, 32)
        pair = b[64 * upper + 32 * (part % 2) + place]
        low = pair // 16 if part >= 2 else pair % 16
        high = b[128 + 32 * upper + place] >> (2 * part) & 3
        scale = b[192 + i // 16]
        out.append(half(block, 208) * (scale - 256 if scale > 127 else scale) * (low + 16 * high - 32))
    return out


class Weights:
    """Tensors by name, as the decoder should see them."""

    def __init__(self, types):
        self.types = types

    def type_of(self, name):
        for part, kind in self.types.items():
            if part != "" and part in name:
                return kind
        return self.types[""]

    def __call__(self, name, *shape):
        kind = self.type_of(name) if len(shape) == 2 else "F32"
        if kind in BLOCKS:
            return np.array([decode(kind, block) for block in coded(name, kind, shape)]).reshape(shape)
        values = floats(name, shape)
        if kind != "F32":
            values = to_f16(values) if kind == "F16" else to_bf16(values)
        return values.astype(np.float64)


# --- the forward pass --------------------------------------------------------------------------------------------

def inverse_frequencies(config, length):
    """Of each pair, and the factor of cosines and sines."""
    d = config["head_dim"]
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = scaling.get("rope_theta", config.get("rope_theta"))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    pairs = np.arange(d // 2)
    plain = 1.0 / theta ** (2 * pairs / d)
    factor = scaling.get("factor", 1.0)
    original = scaling.get("original_max_position_embeddings", config["max_position_embeddings"])
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "dynamic":
        length = max(length, original)
        base = theta * (factor * length / original - (factor - 1)) ** (d / (d - 2))
        return base ** (-2 * pairs / d), 1.0
    if kind == "llama3":
        out = []
        for frequency in plain:
            wavelength = 2 * np.pi / frequency
            if wavelength < original / scaling["high_freq_factor"]:
                out.append(frequency)
            elif wavelength > original / scaling["low_freq_factor"]:
                out.append(frequency / factor)
            else:
                smooth = (original / wavelength - scaling["low_freq_factor"]) / (
                    scaling["high_freq_factor"] - scaling["low_freq_factor"])
                out.append((1 - smooth) * frequency / factor + smooth * frequency)
        return np.array(out), 1.0
    assert kind == "yarn"

    def dimension(turns):
        return d * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(theta))

    low, high = dimension(scaling.get("beta_fast", 32)), dimension(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    ramp = np.minimum(np.maximum((pairs - low) / (high - low), 0), 1)

    def growth(slope):
        return 0.1 * slope * np.log(factor) + 1

    attention = growth(1.0)
    if "mscale" in scaling:
        attention = growth(scaling["mscale"]) / growth(scaling["mscale_all_dim"])
    return plain / factor * ramp + plain * (1 - ramp), scaling.get("attention_factor", attention)


def rotate(x, config, prompt):
    """[tokens, heads, d]: channel i goes with channel i + d/2. A prompt turns as one text, later tokens one by one."""
    out = np.empty_like(x)
    for t in range(x.shape[0]):
        frequencies, growth = inverse_frequencies(config, max(prompt, t + 1))
        low, high = np.split(x[t], 2, axis=-1)
        turned = (low + 1j * high) * np.exp(1j * t * frequencies) * growth
        out[t] = np.concatenate([turned.real, turned.imag], axis=-1)
    return out


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def windows_of(config):
    window = config.get("sliding_window") or 0
    if config["model_type"].startswith("qwen"):
        first = config["max_window_layers"] if config.get("use_sliding_window") else config["num_hidden_layers"]
    else:
        first = 0
    return [window if layer >= first else 0 for layer in range(config["num_hidden_layers"])]


def attention(q, k, v, window):
    tokens, heads, d = q.shape
    group = heads // k.shape[1]
    out = np.empty_like(q)
    behind = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]
    hidden = (behind < 0) | ((behind >= window) if window else False)
    for head in range(heads):
        scores = q[:, head] @ k[:, head // group].T / np.sqrt(d)
        scores[hidden] = -np.inf
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[:, head] = p / p.sum(axis=-1, keepdims=True) @ v[:, head // group]
    return out.reshape(tokens, heads * d)


def logits_of(config, types, tokens, prompt):
    w = Weights(types)
    hidden, inner, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads, eps = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]
    qkv_bias = config.get("attention_bias", False) or config["model_type"] == "qwen2"
    embedding = w("model.embed_tokens.weight", config["vocab_size"], hidden)
    x = embedding[tokens]
    for layer, window in enumerate(windows_of(config)):
        prefix = f"model.layers.{layer}."

        def project(name, count):
            out = normed @ w(f"{prefix}self_attn.{name}_proj.weight", count * d, hidden).T
            if qkv_bias:
                out = out + w(f"{prefix}self_attn.{name}_proj.bias", count * d)
            return out.reshape(len(tokens), count, d)

        normed = rms_norm(x, w(prefix + "input_layernorm.weight", hidden), eps)
        q, k, v = project("q", heads), project("k", kv_heads), project("v", kv_heads)
        if config["model_type"] == "qwen3":
            q = rms_norm(q, w(prefix + "self_attn.q_norm.weight", d), eps)
            k = rms_norm(k, w(prefix + "self_attn.k_norm.weight", d), eps)
        mixed = attention(rotate(q, config, prompt), rotate(k, config, prompt), v, window)
        x = x + mixed @ w(prefix + "self_attn.o_proj.weight", hidden, heads * d).T
        if config.get("attention_bias", False):
            x = x + w(prefix + "self_attn.o_proj.bias", hidden)
        normed = rms_norm(x, w(prefix + "post_attention_layernorm.weight", hidden), eps)
        gate = normed @ w(prefix + "mlp.gate_proj.weight", inner, hidden).T
        up = normed @ w(prefix + "mlp.up_proj.weight", inner, hidden).T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w(prefix + "mlp.down_proj.weight", hidden, inner).T
    x = rms_norm(x, w("model.norm.weight", hidden), eps)
    head = embedding if config["tie_word_embeddings"] else w("lm_head.weight", config["vocab_size"], hidden)
    return x @ head.T


# --- cases -------------------------------------------------------------------------------------------------------

CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
           "qwen3": "Qwen3ForCausalLM"}
TOKENS = [(i * i * 37 + 11 * i + 5) % 257 for i in range(96)]


def case(name, family="llama", prompt=80, types="F32", gguf=None, only_gguf=False, rope_freqs=None, without="",
         **settings):
    """`gguf`: the keys beside those that every file has, without the architecture; False: no GGUF form."""
    config = {"architectures": [CLASSES[family]], "model_type": family, "num_hidden_layers": 2, "hidden_size": 256,
              "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 256,
              "vocab_size": 259, "max_position_embeddings": 256, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
              "tie_word_embeddings": True, "bos_token_id": 257, "eos_token_id": 258}
    config.update(settings)
    config.pop(without, None)
    if not isinstance(types, dict):
        types = {"": types}
    logits = logits_of(config, types, TOKENS, prompt)
    expected = []
    for position in (prompt - 1, (prompt + len(TOKENS)) // 2, len(TOKENS) - 1):
        row = logits[position]
        expected.append({"position": position, "ids": list(range(3, 259, 16)),
                         "logits": [round(float(x), 6) for x in row[3::16]],
                         "logsumexp": round(float(np.log(np.sum(np.exp(row - row.max()))) + row.max()), 6)})
    print(name, np.std(logits), file=sys.stderr)
    out = {"name": name, "config": config, "types": types, "prompt": prompt, "expected": expected}
    if gguf is not False:
        out["gguf"] = gguf or {}
    if only_gguf:
        out["only_gguf"] = True
    if rope_freqs is not None:
        out["rope_freqs"] = [float(np.float32(x)) for x in rope_freqs]
    return out


def cases():
    plain, _ = inverse_frequencies({"head_dim": 32, "rope_theta": 10000.0, "max_position_embeddings": 64}, 0)
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 64}
    stretched, _ = inverse_frequencies(
        {"head_dim": 32, "rope_theta": 10000.0, "max_position_embeddings": 256, "rope_scaling": llama3}, 0)
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    yarn_keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}

    yield case("llama")
    yield case("llama-untied", tie_word_embeddings=False)
    yield case("llama-biases", attention_bias=True)
    yield case("llama-wide-heads", num_attention_heads=4, num_key_value_heads=4, head_dim=128, rope_theta=500000.0)
    yield case("llama-linear", max_position_embeddings=64, rope_scaling={"type": "linear", "factor": 4.0},
               gguf={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})
    yield case("llama-dynamic", max_position_embeddings=64, rope_scaling={"type": "dynamic", "factor": 2.0},
               gguf=False)
    yield case("llama-dynamic-grows", prompt=40, max_position_embeddings=64, gguf=False,
               rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    yield case("llama-llama3", rope_scaling=llama3, rope_freqs=plain / stretched)
    yield case("llama-yarn", rope_scaling=yarn, gguf=yarn_keys)
    yield case("llama-yarn-settings", gguf=False, rope_scaling=yarn | {
        "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False, "mscale": 1.0, "mscale_all_dim": 0.5})
    yield case("llama-yarn-attention", rope_scaling=yarn | {"attention_factor": 0.9, "beta_fast": 8.0, "beta_slow": 0.5},
               gguf=yarn_keys | {"rope.scaling.attn_factor": 0.9 / (0.1 * float(np.log(4.0)) + 1),
                                 "rope.scaling.yarn_beta_fast": 8.0, "rope.scaling.yarn_beta_slow": 0.5})
    yield case("mistral", "mistral", sliding_window=24, gguf={"attention.sliding_window": 24})
    yield case("mistral-full", "mistral", sliding_window=None)
    yield case("qwen2", "qwen2", rope_theta=1000000.0)
    yield case("qwen2-windows", "qwen2", use_sliding_window=True, sliding_window=24, max_window_layers=1, gguf=False)
    yield case("qwen2-yarn", "qwen2", rope_scaling={"type": "yarn", "factor": 4.0}, max_position_embeddings=64,
               gguf=yarn_keys)
    yield case("qwen3", "qwen3", head_dim=64, tie_word_embeddings=False)
    yield case("qwen3-yarn", "qwen3", head_dim=64, without="rope_theta", rope_parameters=yarn | {"rope_theta": 10000.0},
               gguf=yarn_keys)
    for kind in ("F16", "BF16"):
        yield case("llama-" + kind, types=kind)
    for kind in BLOCKS:
        yield case("llama-" + kind, types=kind, only_gguf=True)
    yield case("qwen2-mixed", "qwen2", only_gguf=True,
               types={"v_proj": "Q6_K", "down_proj": "Q6_K", "k_proj": "Q5_0", "up_proj": "Q8_0", "embed": "Q6_K", "": "Q4_K"})
    yield case("llama-mixed", only_gguf=True, types={"v_proj": "F16", "gate_proj": "Q5_1", "": "Q5_K"})


def blocks():
    """The first block of a tensor "block" of each type. Values are rounded to float once, as every product is exact."""
    for kind, (elements, _, _) in BLOCKS.items():
        values = np.array(decode(kind, coded("block", kind, (elements,))[0])).astype(np.float32)
        yield {"type": kind, "values": [float(f"{x:.9g}") for x in values]}


def main():
    print("{\n\"tokens\":", json.dumps(TOKENS, separators=(",", ":")), end=",\n\"blocks\": [\n")
    print(",\n".join(json.dumps(block, separators=(",", ":")) for block in blocks()), end="\n],\n\"cases\": [\n")
    print(",\n".join(json.dumps(one, separators=(",", ":")) for one in cases()), end="\n]\n}\n")


main()
