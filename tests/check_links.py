# SPDX-License-Identifier: Apache-2.0
"""Checks every Markdown file of the project: relative links and their anchors lead somewhere, and tests that are
named in backticks as Suite.Name (a trailing * stands for anything) exist."""
import argparse
import pathlib
import re
import sys

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
TEST = re.compile(r"`([A-Z]\w+)\.([A-Z]\w*)(\*?)`")
MACRO = re.compile(r"\b(?:TYPED_)?TEST(?:_P|_F)?\(\s*(\w+),\s*(\w+)\s*\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SKIPPED = {".git", "build"}


def files(root, pattern):
    for path in sorted(root.rglob(pattern)):
        parts = path.relative_to(root).parts
        if not any(part in SKIPPED or part.startswith(("build-", ".")) for part in parts):
            yield path


def anchor(heading):
    text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(path):
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    return {anchor(line.lstrip("#")) for line in text.splitlines() if line.startswith("#")}


def check_links(path, text):
    for target in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        to = (path.parent / name) if name else path
        if not to.exists():
            yield f"{path}: link to {target}: there is no {name}"
        elif fragment and to.suffix == ".md" and fragment not in anchors(to):
            yield f"{path}: link to {target}: {to} has no heading #{fragment}"


def check_tests(path, text, known):
    for suite, name, star in TEST.findall(text):
        if not any(s == suite and (t.startswith(name) if star else t == name) for s, t in known):
            yield f"{path}: there is no test {suite}.{name}{star}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=pathlib.Path)
    root = parser.parse_args().root.resolve()
    known = set()
    for pattern in ("*.cpp", "*.cu", "*.hpp"):
        for path in files(root / "tests", pattern):
            known.update(MACRO.findall(path.read_text(encoding="utf-8")))
    problems = []
    count = 0
    for path in files(root, "*.md"):
        count += 1
        text = path.read_text(encoding="utf-8")
        problems += check_links(path, text)
        problems += check_tests(path, text, known)
    print("\n".join(problems) or f"{count} files, no broken link or test name")
    return 1 if problems or count == 0 or not known else 0


if __name__ == "__main__":
    sys.exit(main())
