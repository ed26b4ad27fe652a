#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the symbols of the static library: none of CUDA, and only names of our own are defined."""
import argparse
import re
import subprocess
import sys

CUDA = re.compile(r"\b(cuda[A-Z]\w*|cu(Init|Mem|Ctx|Launch|Device)\w*|__cuda\w*|cublas\w*|nccl\w*)")
OWN = re.compile(r"\boasis(::|_)")
# Weak symbols of templates and inline functions that the standard library or Highway instantiates here, and the compiler's own of exceptions.
SHARED = re.compile(r"\b(std|__gnu_cxx|hwy)::|^DW\.ref\.(__gxx_personality|_ZTI)")


def symbols(nm, library):
    output = subprocess.run([nm, "-C", "--format=posix", library], check=True, capture_output=True, text=True).stdout
    for line in output.splitlines():
        match = re.match(r"^(.*?) ([A-Za-z])(?: [0-9a-f]+)*\s*$", line)
        if match:
            yield match.group(1), match.group(2)


def foreign(name, kind):
    """True for an external definition outside our namespace."""
    if kind in "TDBRGSC":
        return not OWN.search(name)
    if kind in "WVu":
        return not (OWN.search(name) or SHARED.search(name))
    return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", required=True)
    parser.add_argument("--nm", required=True)
    parser.add_argument("library")
    arguments = parser.parse_args()
    found = list(symbols(arguments.nm, arguments.library))
    if not any(OWN.search(name) and kind == "T" for name, kind in found):
        sys.exit(f"{arguments.library}: no symbol of the library was found among {len(found)}")
    if arguments.check.startswith("PKG_03"):
        wrong = [name for name, _ in found if CUDA.search(name)]
    else:
        wrong = [f"{kind} {name}" for name, kind in found if foreign(name, kind)]
    if wrong:
        sys.exit("unexpected symbols:\n" + "\n".join(wrong[:20]))


main()
