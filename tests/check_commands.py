# SPDX-License-Identifier: Apache-2.0
"""Checks the commands in ```sh blocks of Markdown files: a script that is named exists and can be run, and what
scripts/run_example.sh hands to oasis-decode is a command that oasis-decode takes (with --dry-run: its files are there, its
options are right, its memory is counted, nothing is computed)."""
import argparse
import os
import pathlib
import re
import shlex
import subprocess
import sys

BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def check(root, decode, models, words):
    """What is wrong with a command; empty when nothing is, None when it cannot be said."""
    program = root / words[0]
    if words[0].startswith(("scripts/", "bench/")) and not (program.is_file() and program.stat().st_mode & 0o100):
        return f"{words[0]} is no program"
    if words[0] != "scripts/run_example.sh" or len(words) < 3 or decode is None:
        return ""
    model = pathlib.Path(words[2])
    if not (root / model).exists():
        if not models or not (models / model.name).exists():
            return None
        words = [*words[:2], str(models / model.name), *words[3:]]
    ran = subprocess.run([decode, *words[1:], *([] if words[1] == "inspect" else ["--dry-run"])], cwd=root, capture_output=True, text=True)
    return "" if ran.returncode == 0 else ran.stderr.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("pages", nargs="+", help="Markdown files, relative to the root")
    parser.add_argument("--decode", help="the program oasis-decode")
    options = parser.parse_args()
    models = os.environ.get("OASIS_TEST_MODEL_DIR")  # has what the repository does not
    problems = commands = 0
    for page in options.pages:
        for block in BLOCK.findall((options.root / page).read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if not words:
                    continue
                commands += 1
                problem = check(options.root, options.decode, models and pathlib.Path(models), words)
                if problem is None:
                    print(f"{page}: not checked, its model is not here: {line}")
                elif problem:
                    print(f"{page}: {line}\n    {problem}")
                    problems += 1
    if commands == 0:
        print("no commands were found")
    return 1 if problems or commands == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
