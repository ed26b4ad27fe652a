#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/data/tokenizers: small vocabularies, texts, and the ids that they should give.

The ids come from the plainest algorithm there is (cut by the expression, then merge the best pair of the whole piece,
again and again) and, for every text, from the libraries `tokenizers` and `sentencepiece`: where the two differ, the
script stops. Needs the Python packages regex, tokenizers and sentencepiece.

usage: make_tokenizer_cases.py [--texts N] [--out FOLDER]      the tests read FOLDER/cases.json if OASIS_TOKENIZER_CASES names it
"""
import argparse
import json
import pathlib
import random
import struct
import unicodedata

import regex
import sentencepiece
import tokenizers

SPACE = "\u2581"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}{{1,3}}|{REST}"
QWEN2 = rf"{CONTRACTIONS}|{LETTERS}|\p{{N}}|{REST}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split_stage(expression, behaviour="Isolated"):
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": behaviour, "invert": False}


def byte_level(use_regex, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def sequence(*stages):
    return {"type": "Sequence", "pretokenizers": list(stages)}


# name, pre_tokenizer of tokenizer.json, normalizer, ignore_merges, tokenizer.ggml.pre, expressions in order
FAMILIES = [
    ("gpt2", byte_level(True), None, False, "gpt-2", [GPT2]),
    ("smollm", sequence({"type": "Digits", "individual_digits": True}, byte_level(True)), None, False, "smollm",
     [r"\p{N}", GPT2]),
    ("llama3", sequence(split_stage(LLAMA3), byte_level(False)), None, True, "llama-bpe", [LLAMA3]),
    ("qwen2", sequence(split_stage(QWEN2), byte_level(False)), {"type": "NFC"}, False, None, [QWEN2]),
    ("qwen2-gguf", sequence(split_stage(QWEN2), byte_level(False)), None, False, "qwen2", [QWEN2]),
    ("tekken", sequence(split_stage(TEKKEN), byte_level(False)), None, True, "tekken", [TEKKEN]),
]

WORDS = (
    "the quick brown fox jumps over the lazy dog and then returns to its den because it is cold outside "
    "straße über größer schön été déjà naïve façade año mañana vida съешь ещё этих мягких булок да выпей чаю "
    "γρήγορη αλεπού 日本語の文章です 中文分词测试 한국어 문장 العربية نص עברית हिन्दी ไทย def return print import class "
    "12 345 6789 2024 don't we'll they've I'm you're it's he'd ISN'T WE'LL"
).split()


def byte_alphabet():
    """The byte-level alphabet: printable Latin-1 as it is, the rest from U+0100."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in kept}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(0x100 + len(table) - len(kept))
    return table


ALPHABET = byte_alphabet()


def written(data):
    return "".join(ALPHABET[byte] for byte in data)


def most_frequent_merges(symbols, count):
    """Byte-pair training on one long list of symbols, by counting again after each merge."""
    merges = []
    for _ in range(count):
        pairs = {}
        for pair in zip(symbols, symbols[1:]):
            pairs[pair] = pairs.get(pair, 0) + 1
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        if pairs[best] < 2:
            break
        merges.append(best)
        symbols = merge_all(symbols, best)
    return merges


def merge_all(symbols, pair):
    out, at = [], 0
    while at < len(symbols):
        if tuple(symbols[at:at + 2]) == pair:
            out.append(pair[0] + pair[1])
            at += 2
        else:
            out.append(symbols[at])
            at += 1
    return out


def merge_by_rank(symbols, ranks):
    """Merges the pair of the lowest rank, the leftmost of equals, one at a time."""
    symbols = list(symbols)
    while True:
        found = [(ranks[pair], at) for at, pair in enumerate(zip(symbols, symbols[1:])) if pair in ranks]
        if not found:
            return symbols
        at = min(found)[1]
        symbols[at:at + 2] = [symbols[at] + symbols[at + 1]]


def cut(text, expressions):
    pieces = [text]
    for expression in expressions:
        compiled = regex.compile(expression)
        out = []
        for piece in pieces:
            done = 0
            for match in compiled.finditer(piece):
                out += [piece[done:match.start()], match.group()]
                done = match.end()
            out.append(piece[done:])
        pieces = [piece for piece in out if piece]
    return pieces


def byte_level_ids(text, family, vocabulary, ranks):
    _, _, normalizer, whole_first, _, expressions = family
    if normalizer:
        text = unicodedata.normalize("NFC", text)
    ids = []
    for piece in cut(text, expressions):
        symbols = written(piece.encode())
        whole = whole_first and symbols in vocabulary
        ids += [vocabulary[s] for s in ([symbols] if whole else merge_by_rank(symbols, ranks))]
    return ids


def piece_ids(text, pieces, prefix=True):
    """SentencePiece: user-defined pieces first, then the best score, then bytes for what is no piece."""
    by_text = {text: (score, id) for id, (text, score, type) in enumerate(pieces) if type == 1}
    user = {text: id for id, (text, _, type) in enumerate(pieces) if type == 4}
    bytes_ = {int(text[3:5], 16): id for id, (text, _, type) in enumerate(pieces) if type == 6}
    text = ((SPACE if prefix else "") + text.replace(" ", SPACE)) if text else ""
    ids, run = [], ""

    def flush():
        symbols = list(run)
        while True:
            found = [(-by_text[a + b][0], at) for at, (a, b) in enumerate(zip(symbols, symbols[1:])) if a + b in by_text]
            if not found:
                break
            at = min(found)[1]
            symbols[at:at + 2] = [symbols[at] + symbols[at + 1]]
        for symbol in symbols:
            ids.extend([by_text[symbol][1]] if symbol in by_text else [bytes_[b] for b in symbol.encode()])

    at = 0
    while at < len(text):
        match = max((u for u in user if text.startswith(u, at)), key=len, default=None)
        if match:
            flush()
            run = ""
            ids.append(user[match])
            at += len(match)
        else:
            run += text[at]
            at += 1
    flush()
    return ids


def varint(value):
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def model_proto(pieces):
    out = b"".join(field(1, field(1, t.encode()) + field(2, float(s)) + field(3, k)) for t, s, k in pieces)
    trainer = field(3, 2) + field(35, 1) + field(40, 0) + field(41, 1) + field(42, 2)
    normalizer = field(1, b"identity") + field(3, 1) + field(4, 0) + field(5, 1)
    return out + field(2, trainer) + field(3, normalizer)


def make_pieces(corpus):
    symbols = [SPACE if c == " " else c for c in corpus]
    merges = most_frequent_merges(symbols, 300)
    pieces = [["<unk>", 0.0, 2], ["<s>", 0.0, 3], ["</s>", 0.0, 3], ["[INST]", 0.0, 3], ["[/INST]", 0.0, 3],
              ["<sep>", 0.0, 4], ["<sep>x", 0.0, 4]]
    pieces += [[f"<0x{byte:02X}>", 0.0, 6] for byte in range(256)]
    seen = set()
    for rank, (a, b) in enumerate(merges):
        if a + b not in seen:  # several in a row have one score: ties go to the left
            pieces.append([a + b, float(-(rank // 3)), 1])
            seen.add(a + b)
    pieces += [[c, -1000.0 - i, 1] for i, c in enumerate(sorted(set(symbols)))]
    return pieces


def assigned(rng):
    """A character of Unicode 13 or older, of any kind but surrogates and private use."""
    while True:
        code = rng.choice((rng.randrange(0x80, 0x3000), rng.randrange(0x10000), rng.randrange(0x20000)))
        if unicodedata.ucd_3_2_0.category(chr(code)) not in ("Cn", "Cs", "Co") and chr(code) != SPACE:
            return chr(code)


def random_text(rng):
    parts = (
        lambda: rng.choice(WORDS),
        lambda: " " + rng.choice(WORDS),
        lambda: rng.choice(WORDS).upper(),
        lambda: rng.choice(WORDS).title(),
        lambda: rng.choice(" \t\n\r\u00a0\u3000\u1680\u180e\u0085\u2028\u200b\x1c\x0b") * rng.randint(1, 4),
        lambda: " " * rng.randint(1, 6),
        lambda: rng.choice(("\n", "\r\n", "\n\n", " \n ", "\n  ")),
        lambda: str(rng.randrange(10 ** rng.randint(1, 9))),
        lambda: "".join(rng.choice("٣४๕½Ⅷ²9") for _ in range(rng.randint(1, 4))),
        lambda: rng.choice(("'s", "'S", "'\u017f", "'LL", "'Re", "'d", "\u2019s", "''", "'x")),
        lambda: "".join(rng.choice("!?.,:;/()[]{}<>=+-*_#@%&|~`$^\"\\") for _ in range(rng.randint(1, 4))),
        lambda: rng.choice(("e\u0301", "a\u030a\u0327", "\u1100\u1161", "\u212b", "q\u0323\u0307", "\u0958")),
        lambda: rng.choice(("\U0001f600", "\U0001f468\u200d\U0001f469", "\U0001f1e9\U0001f1ea", "\ufeff", "\0")),
        lambda: "".join(assigned(rng) for _ in range(rng.randint(1, 3))),
    )
    return "".join(rng.choice(parts)() for _ in range(rng.randint(1, 8)))


FIXED = ["", " ", "  ", "\n", " a", "a ", "Hello, world!", "1234567", "x = 12;\n\n\ny = 3 ", "<sep>x<sep> x", "a<s>b"]

ADDED = [
    {"id": 9000, "content": "<|mark|>", "special": True, "normalized": False},
    {"id": 9001, "content": "<left>", "lstrip": True, "normalized": False},
    {"id": 9002, "content": "<right>", "rstrip": True, "normalized": False, "special": True},
    {"id": 9003, "content": "word", "single_word": True, "normalized": False},
    {"id": 9004, "content": "norm\u00e9", "normalized": True},
    {"id": 9005, "content": "<|mark|>more", "normalized": False},
]


def added_tokens(offset):
    keys = ("special", "normalized", "single_word", "lstrip", "rstrip")
    return [{**{k: False for k in keys}, **token, "id": offset + token["id"] - 9000} for token in ADDED]


def added_text(rng):
    return "".join(
        rng.choice(("<|mark|>", "<left>", "<right>", "word", "words", "norm\u00e9", "norme\u0301", "<|mark|>more", " ", "  ",
                    "a", "\n", "_", "9", "\u3000", "<", "<|mark"))
        for _ in range(rng.randint(1, 8)))


def hf_json(model, pre_tokenizer, normalizer, added):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": None, "model": model}


def bpe(vocabulary, merges, **options):
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocabulary, "merges": merges, **options}


def library(document):
    return tokenizers.Tokenizer.from_str(json.dumps(document))


def library_ids(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def expect_equal(ours, theirs, name, text):
    if ours != theirs:
        raise SystemExit(f"{name}: {text!r}\n  plain algorithm {ours}\n  library         {theirs}")


def json_of_pieces(pieces):
    """The same model as tokenizer.json: merges in the order of scores."""
    vocabulary = {text: id for id, (text, _, _) in enumerate(pieces)}
    by_text = {text: (score, id) for id, (text, score, type) in enumerate(pieces) if type == 1}
    merges = []
    for text, (score, id) in by_text.items():
        for at in range(1, len(text)):
            if text[:at] in by_text and text[at:] in by_text:
                merges.append((-score, id, at, [text[:at], text[at:]]))
    return vocabulary, [merge[3] for merge in sorted(merges)]


SPACE_JSON = {
    "prepend": (None, {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": SPACE}, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]}),
    "metaspace-first": ({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}, None),
    "metaspace-always": ({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}, None),
    "metaspace-never": ({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "never", "split": True}, None),
}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--texts", type=int, default=110)
    arguments.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "data/tokenizers")
    options = arguments.parse_args()
    folder = options.out
    folder.mkdir(exist_ok=True)
    rng = random.Random(5)
    corpus = " ".join(rng.choice(WORDS) + rng.choice(("", "", "", ".", ",\n", "  ", "\n\n", "!?")) for _ in range(2500))
    texts = FIXED + [random_text(rng) for _ in range(options.texts)]
    marked = [added_text(rng) for _ in range(options.texts // 2)]

    merges = most_frequent_merges(list(written(corpus.encode())), 400)
    vocabulary = {ALPHABET[byte]: byte for byte in range(256)}
    for a, b in merges:
        vocabulary.setdefault(a + b, len(vocabulary))
    # Tokens that no merge makes: only a piece that is one as a whole becomes it.
    for whole in (" returns", "straße", "WE"):
        vocabulary.setdefault(written(whole.encode()), len(vocabulary))
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    families = []
    added = added_tokens(len(vocabulary))
    for family in FAMILIES:
        name, pre_tokenizer, normalizer, whole_first, gguf, _ = family
        model = bpe(vocabulary, [list(pair) for pair in merges], ignore_merges=whole_first)
        theirs = library(hf_json(model, pre_tokenizer, normalizer, []))
        for text in texts:
            expect_equal(byte_level_ids(text, family, vocabulary, ranks), library_ids(theirs, text), name, text)
        theirs_marked = library(hf_json(model, pre_tokenizer, normalizer, added))
        families.append({"name": name, "pre_tokenizer": pre_tokenizer, "normalizer": normalizer,
                         "ignore_merges": whole_first, "gguf": gguf,
                         "ids": [byte_level_ids(text, family, vocabulary, ranks) for text in texts],
                         "marked_ids": [library_ids(theirs_marked, text) for text in marked]})
    model = bpe(vocabulary, [list(pair) for pair in merges])
    spaced = library(hf_json(model, byte_level(True, True), None, []))
    families.append({"name": "prefix", "pre_tokenizer": byte_level(True, True), "normalizer": None, "gguf": None,
                     "ignore_merges": False, "ids": [library_ids(spaced, text) for text in texts]})

    pieces = make_pieces(corpus)
    proto = model_proto(pieces)
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    for text in texts:
        if "\0" not in text:
            expect_equal(piece_ids(text, pieces), processor.encode(text), "sentencepiece", text)
    space_vocabulary, space_merges = json_of_pieces(pieces)
    space_added = [{"id": i, "content": pieces[i][0], "special": True, "normalized": False, "single_word": False,
                    "lstrip": False, "rstrip": False} for i in range(5)]
    space_added += added_tokens(len(pieces))
    space_model = bpe(space_vocabulary, space_merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    spaces = []
    for name, (pre_tokenizer, normalizer) in SPACE_JSON.items():
        theirs = library(hf_json(space_model, pre_tokenizer, normalizer, space_added))
        spaces.append({"name": name, "pre_tokenizer": pre_tokenizer, "normalizer": normalizer,
                       "ids": [library_ids(theirs, text) for text in texts],
                       "marked_ids": [library_ids(theirs, text) for text in marked]})
    (folder / "pieces.model").write_bytes(proto)
    document = {"texts": texts, "marked_texts": marked, "vocab": vocabulary, "merges": [list(p) for p in merges],
                "added_tokens": added, "families": families, "pieces": pieces, "space_merges": space_merges,
                "space_added_tokens": space_added, "piece_ids": [piece_ids(text, pieces) for text in texts],
                "spaces": spaces}
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=True)}" for key, value in document.items()]
    (folder / "cases.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
