# SPDX-License-Identifier: Apache-2.0
"""Checks that code in Markdown files is the code that is compiled. The line

    <!-- snippet: examples/quickstart/main.cpp config -->

before a code block names a file and the part of it between the lines `[config begins]` and `[config ends]`. With
--write the blocks are brought up to date instead."""
import argparse
import pathlib
import re
import sys
import textwrap

BLOCK = re.compile(r"(<!-- snippet: (\S+) (\S+) -->\n```\w*\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)


def part(path, name):
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    edges = [i for i, line in enumerate(lines) if re.match(rf"\s*(//|#) \[{re.escape(name)} (begins|ends)\]$", line)]
    if len(edges) != 2:
        raise SystemExit(f"{path}: expected one part `{name}`, found {len(edges)} of its two marker lines")
    return textwrap.dedent("".join(lines[edges[0] + 1 : edges[1]]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("pages", nargs="+", help="Markdown files, relative to the root")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    problems = 0
    for page in options.pages:
        path = options.root / page
        text = path.read_text(encoding="utf-8")
        blocks = BLOCK.findall(text)
        if len(blocks) == 0 or len(blocks) != text.count("<!-- snippet:"):
            print(f"{page}: {text.count('<!-- snippet:')} snippet comments, {len(blocks)} code blocks right after one")
            problems += 1
        fresh = BLOCK.sub(lambda m: m[1] + part(options.root / m[2], m[3]) + m[5], text)
        if options.write:
            path.write_text(fresh, encoding="utf-8")
        for _, source, name, code, _ in blocks:
            if not options.write and code != part(options.root / source, name):
                print(f"{page}: the code differs from `{name}` of {source}; run")
                print(f"    python3 tests/check_snippets.py . {page} --write")
                problems += 1
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
