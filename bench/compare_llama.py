# SPDX-License-Identifier: Apache-2.0
"""The measurement of compare_llama.sh, which sets the environment and calls it with the path of the result."""

import ctypes
import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

import llama_cpp
import numpy

CONTEXTS = (16, 2048, 4096, 7168)
PREFILL = 2048
DECODED = 64
BATCH = 512
FLASH = {"flash attention auto": -1, "flash attention off": 0}  # on a CPU the one prefills faster, the other decodes faster


def ours(context: int) -> dict:
    """One run of the example decoder: the text up to `context`, then DECODED tokens."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder, "out.json")
        command = [os.environ["OASIS_DECODE"], "run", os.environ["MODEL"], "--file", os.environ["TEXT"],
                   "--tokens", str(context), "--max-tokens", str(DECODED + 1), "--dense-column", "off",
                   "--threads", os.environ["THREADS"], "--json", str(report), *shlex.split(os.environ["OPTIONS"])]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        result = json.loads(report.read_text())
    run = result["configurations"][0]
    if run["steps"] < DECODED // 2:
        sys.exit(f"oasis-decode ended after {run['steps']} tokens at context {context}: too few to measure")
    return {"decode": run["tokens_per_second"], "prefill": run["prefill_tokens_per_second"], "report": result}


class Llama:
    """llama.cpp by its C interface, so that no Python lies between the steps that are timed."""

    def __init__(self, flash: int) -> None:
        quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        self.quiet = quiet
        llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(os.environ["MODEL"].encode(), llama_cpp.llama_model_default_params())
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = max(CONTEXTS) + DECODED
        params.n_batch = params.n_ubatch = BATCH
        params.flash_attn_type = flash
        params.n_threads = params.n_threads_batch = int(os.environ["THREADS"])
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        text = pathlib.Path(os.environ["TEXT"]).read_bytes()
        tokens = (llama_cpp.llama_token * len(text))()
        count = llama_cpp.llama_tokenize(self.vocab, text, len(text), tokens, len(text), True, False)
        self.tokens = list(tokens[:count])
        if count < max(CONTEXTS):
            sys.exit(f"{os.environ['TEXT']} has {count} tokens, fewer than {max(CONTEXTS)}")

    def feed(self, tokens: list) -> float:
        """Seconds that the tokens take."""
        seconds = 0.0
        for first in range(0, len(tokens), BATCH):
            part = tokens[first:first + BATCH]
            ids = (llama_cpp.llama_token * len(part))(*part)  # the batch points to it
            batch = llama_cpp.llama_batch_get_one(ids, len(part))
            begin = time.perf_counter()
            if llama_cpp.llama_decode(self.context, batch) != 0:
                sys.exit("llama_decode failed")
            llama_cpp.llama_synchronize(self.context)
            seconds += time.perf_counter() - begin
        return seconds

    def best(self) -> int:
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return int(numpy.ctypeslib.as_array(logits, (self.size,)).argmax())

    def decode(self) -> float:
        """Tokens per second of DECODED greedy steps; choosing the token is not timed."""
        seconds = 0.0
        for _ in range(DECODED):
            seconds += self.feed([self.best()])
        return DECODED / seconds

    def run(self) -> dict:
        memory = llama_cpp.llama_get_memory(self.context)
        llama_cpp.llama_memory_clear(memory, True)  # or a short context is searched among the cells of a longer one before it
        result = {"decode": {}, "prefill": 0.0}
        filled = 0
        for context in CONTEXTS:
            if context == PREFILL:  # the whole prefill that is timed
                llama_cpp.llama_memory_clear(memory, True)
                filled = 0
            seconds = self.feed(self.tokens[filled:context])
            if context == PREFILL:
                result["prefill"] = PREFILL / seconds
            result["decode"][context] = self.decode()
            llama_cpp.llama_memory_seq_rm(memory, 0, context, -1)
            filled = context
        return result


def main() -> None:
    out = pathlib.Path(sys.argv[1])
    llamas = {name: Llama(flash) for name, flash in FLASH.items()}
    mine, theirs = [], {name: [] for name in llamas}
    for _ in range(int(os.environ["REPETITIONS"])):  # interleaved, so that all see the same neighbours
        mine.append({context: ours(context) for context in CONTEXTS})
        for name, llama in llamas.items():
            theirs[name].append(llama.run())

    def fastest(rate) -> float:
        return max(statistics.median(rate(run) for run in runs) for runs in theirs.values())

    rows = []
    for context in CONTEXTS:
        rows.append((f"decode_{context}", statistics.median(run[context]["decode"] for run in mine),
                     fastest(lambda run, context=context: run["decode"][context])))
    rows.append((f"prefill_{PREFILL}", statistics.median(run[PREFILL]["prefill"] for run in mine), fastest(lambda run: run["prefill"])))
    reference = mine[0][PREFILL]["report"]
    summary = {
        "commit": reference["commit"],
        "command": "bench/compare_llama.sh",
        "machine": {**reference["machine"], "system": platform.release()},
        "model": reference["model"]["name"],
        "text": os.environ["TEXT"],
        "threads": int(os.environ["THREADS"]),
        "repetitions": int(os.environ["REPETITIONS"]),
        "decoded_tokens": DECODED,
        "oasis_decode_options": os.environ["OPTIONS"],
        "llama_cpp_python": llama_cpp.__version__,
        "llama_cpp_options": f"n_batch = n_ubatch = {BATCH}, f16 K and V; for each figure the faster of: {', '.join(FLASH)}",
        "llama_cpp_system": llama_cpp.llama_print_system_info().decode().strip(),
    }
    print(f"{'tokens/s':16}{'oasis-decode':>14}{'llama.cpp':>14}{'ratio':>9}")
    for name, own, other in rows:
        kind, context = name.split("_")
        summary[f"{kind}_ratio_{context}"] = round(own / other, 3)
        print(f"{name.replace('_', ' '):16}{own:14.1f}{other:14.1f}{own / other:9.2f}")
    summary["tokens_per_second"] = {name: {"oasis_decode": round(own, 2), "llama_cpp": round(other, 2)} for name, own, other in rows}
    summary["runs"] = {
        "oasis_decode": [{str(context): {"decode": round(run[context]["decode"], 2), "prefill": round(run[context]["prefill"], 2)}
                          for context in CONTEXTS} for run in mine],
        "llama_cpp": {name: [{"decode": {str(context): round(rate, 2) for context, rate in run["decode"].items()},
                              "prefill": round(run["prefill"], 2)} for run in runs] for name, runs in theirs.items()},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
