# SPDX-License-Identifier: Apache-2.0
"""Writes the hand-made seeds of the fuzz targets, corpus/<target>/seed-*: small files that are right, or wrong in one
place, so that a target starts behind the first checks. What a target finds is kept beside them under another name."""
import json
import lzma
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"
U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9


def text(value):
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def array(kind, values, form):
    return struct.pack("<IQ", kind, len(values)) + b"".join(
        text(v) if kind == STRING else struct.pack(form, v) for v in values)


def value(kind, v):
    """One metadata value: its type and its bytes."""
    if kind == STRING:
        return struct.pack("<I", STRING) + text(v)
    if kind == ARRAY:
        return struct.pack("<I", ARRAY) + v
    return struct.pack("<I", kind) + struct.pack({U32: "<I", F32: "<f", BOOL: "<B"}[kind], v)


def gguf(keys, tensors, version=3, alignment=32):
    """tensors: (name, extents with the innermost first, type, bytes)"""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    head += b"".join(text(name) + v for name, v in keys)
    data = b""
    for name, extents, kind, content in tensors:
        data += b"\0" * (-len(data) % alignment)
        head += text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, len(data))
        data += content
    return head + b"\0" * (-len(head) % alignment) + data


def floats(count):
    return struct.pack(f"<{count}f", *((i % 7 - 3) / 4 for i in range(count)))


def llama_keys(tokenizer):
    return [("general.architecture", value(STRING, "llama")), ("llama.block_count", value(U32, 1)),
            ("llama.context_length", value(U32, 64)), ("llama.embedding_length", value(U32, 2)),
            ("llama.feed_forward_length", value(U32, 2)), ("llama.attention.head_count", value(U32, 1)),
            ("llama.attention.layer_norm_rms_epsilon", value(F32, 1e-5))] + tokenizer


def gpt2_tokenizer(pre):
    return [("tokenizer.ggml.model", value(STRING, "gpt2")), ("tokenizer.ggml.pre", value(STRING, pre)),
            ("tokenizer.ggml.tokens", value(ARRAY, array(STRING, ["a", "b", "\u0120", "ab", "<s>"], None))),
            ("tokenizer.ggml.token_type", value(ARRAY, array(5, [1, 1, 1, 1, 3], "<i"))),
            ("tokenizer.ggml.merges", value(ARRAY, array(STRING, ["a b"], None))),
            ("tokenizer.ggml.bos_token_id", value(U32, 4)), ("tokenizer.ggml.add_bos_token", value(BOOL, 1))]


def sentencepiece_tokenizer():
    tokens = ["<unk>", "<s>", "<0x0A>", "\u2581", "a", "b", "ab"]
    return [("tokenizer.ggml.model", value(STRING, "llama")),
            ("tokenizer.ggml.tokens", value(ARRAY, array(STRING, tokens, None))),
            ("tokenizer.ggml.scores", value(ARRAY, array(F32, [0, 0, 0, -1, -2, -3, -4], "<f"))),
            ("tokenizer.ggml.token_type", value(ARRAY, array(5, [2, 3, 6, 1, 1, 1, 1], "<i"))),
            ("tokenizer.ggml.bos_token_id", value(U32, 1)), ("tokenizer.ggml.unknown_token_id", value(U32, 0))]


def llama_tensors(vocabulary):
    names = [f"blk.0.{n}.weight" for n in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")]
    norms = ["output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"]
    return ([("token_embd.weight", (2, vocabulary), 0, floats(2 * vocabulary))] + [(n, (2, 2), 0, floats(4)) for n in names] +
            [(n, (2,), 0, floats(2)) for n in norms])


def typed_tensors():
    """One block of every type that has a number in the format: (type, elements, bytes)."""
    blocks = [(0, 1, 4), (1, 1, 2), (2, 32, 18), (3, 32, 20), (6, 32, 22), (7, 32, 24), (8, 32, 34), (12, 256, 144),
              (13, 256, 176), (14, 256, 210), (30, 1, 2)]
    return [(kind, (elements, 1), bytes((7 * i + kind) % 60 for i in range(size))) for kind, elements, size in blocks]


def safetensors(header, data):
    head = json.dumps(header, separators=(",", ":")).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(head)) + head + data


def head_of_two():
    """A draft head of two channels."""
    shapes = {"hnorm": [2], "enorm": [2], "norm": [2], "proj": [2, 4], "layers.0.input_layernorm": [2],
              "layers.0.post_attention_layernorm": [2]}
    shapes |= {f"layers.0.self_attn.{n}_proj": [2, 2] for n in "qkvo"} | {f"layers.0.mlp.{n}_proj": [2, 2] for n in ("gate", "up", "down")}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[f"mtp.{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return safetensors(header, floats(at // 4))


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def tokenizer_json(**changes):
    letters = {"a": 0, "b": 1, "\u0120": 2, "ab": 3, "\u0120ab": 4, "1": 5, "2": 6}
    out = {"model": {"type": "BPE", "vocab": letters, "merges": ["a b", "\u0120 ab"]},
           "added_tokens": [{"id": 7, "content": "<s>", "special": True}],
           "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}
    return json.dumps(out | changes, separators=(",", ":"), ensure_ascii=False).encode()


def tokenizers():
    split = {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?\\p{L}+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": False}
    literal = {"type": "Split", "pattern": {"String": "a"}, "behavior": "MergedWithNext"}
    bytes_only = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}
    digits = {"type": "Digits", "individual_digits": True}
    pieces = {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "\u2581": 3, "a": 4, "b": 5, "ab": 6}
    yield "plain", tokenizer_json()
    yield "split", tokenizer_json(pre_tokenizer={"type": "Sequence", "pretokenizers": [split, bytes_only]}, post_processor=template)
    yield "literal", tokenizer_json(pre_tokenizer={"type": "Sequence", "pretokenizers": [literal, digits, bytes_only]})
    yield "nfc", tokenizer_json(normalizer={"type": "NFC"}, post_processor={"type": "ByteLevel"})
    yield "pairs", tokenizer_json(model={"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], "ignore_merges": True})
    spaces = [{"type": "Prepend", "prepend": "\u2581"},
              {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
    fallback = {"type": "BPE", "vocab": pieces, "merges": ["a b"], "byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
    yield "prepend", tokenizer_json(model=fallback, normalizer={"type": "Sequence", "normalizers": spaces}, pre_tokenizer=None)
    yield "metaspace", tokenizer_json(
        model=fallback, pre_tokenizer={"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False})
    yield "added", tokenizer_json(added_tokens=[{"id": 7, "content": "<s>", "special": True, "lstrip": True},
                                                {"id": 8, "content": "ab", "special": False, "single_word": True, "rstrip": True}])


def varint(n):
    return bytes([n & 127 | 128]) + varint(n >> 7) if n > 127 else bytes([n])


def field(number, wire, content):
    """A field of a protobuf message."""
    return varint(number << 3 | wire) + (varint(len(content)) + content if wire == 2 else content)


def piece(content, score, kind):
    return field(1, 2, field(1, 2, content.encode()) + field(2, 5, struct.pack("<f", score)) + field(3, 0, bytes([kind])))


def sentencepiece(model_type=2):
    pieces = [("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), ("<0x0A>", 0, 6), ("\u2581", -1, 1), ("a", -2, 1),
              ("b", -3, 1), ("ab", -4, 1)]
    trainer = field(3, 0, bytes([model_type])) + field(35, 0, b"\1") # byte_fallback
    normaliser = field(1, 2, b"identity") + field(3, 0, b"\1") + field(4, 0, b"\0") + field(5, 0, b"\1")
    return b"".join(piece(*p) for p in pieces) + field(2, 2, trainer) + field(3, 2, normaliser)


def tasks():
    line = json.dumps({"id": "a", "task": "list", "length": 2048, "prompt": "P", "answer": "A"}).encode()
    yield "lines", b"t" + line + b"\n" + line + b"\n"
    yield "field", b'{"task":"list","length":"long"}'.join([b"t", b"\n"])
    yield "packed", b"x" + lzma.compress(line, preset=0)
    yield "cut", b"x" + lzma.compress(line, preset=0)[:-9]
    yield "items", b'i[{"file":"t.jsonl.xz","line":2,"id":"b"}]'
    yield "generate", b"gkv_dense:8192:4,json:4096,all"


def seeds():
    small = [("general.architecture", value(STRING, "llama"))]
    yield "gguf", "model", gguf(llama_keys(gpt2_tokenizer("smollm")), llama_tensors(5))
    yield "gguf", "pieces", gguf(llama_keys(sentencepiece_tokenizer()), llama_tensors(7))
    yield "gguf", "version-2", gguf(small + [("general.alignment", value(U32, 64))], [("x", (2,), 0, floats(2))], 2, 64)
    for kind, extents, content in typed_tensors():
        yield "gguf", f"type-{kind}", gguf(small, [("x", extents, kind, content)])
    yield "gguf", "overlap", gguf(small, [("x", (64,), 0, b""), ("y", (2,), 0, floats(64))])
    yield "safetensors", "head", head_of_two()
    yield "safetensors", "types", safetensors(
        {"__metadata__": {"format": "pt"}, "a": entry("F32", [2], 0, 8), "b": entry("F16", [1, 2], 8, 12),
         "c": entry("BF16", [], 12, 14)}, floats(4))
    yield "safetensors", "empty", safetensors({}, b"")
    yield "safetensors", "overlap", safetensors({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, floats(3))
    yield "safetensors", "twice", safetensors(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{}}', floats(1))
    for name, content in tokenizers():
        yield "tokenizer_json", name, content
    yield "tokenizer_model", "bpe", sentencepiece()
    yield "tokenizer_model", "unigram", sentencepiece(1)
    for name, content in tasks():
        yield "tasks", name, content


def main():
    for target, name, content in seeds():
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
        (CORPUS / target / f"seed-{name}").write_bytes(content)


if __name__ == "__main__":
    main()
