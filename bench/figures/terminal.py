#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs oasis-decode on a terminal of its own and keeps what stands there at the end, with the commit and the machine.

  bench/figures/terminal.py OUT.json --program PATH --folder WORKING_FOLDER -- ARGUMENTS...

`draw.py` makes a figure of it."""
import argparse
import fcntl
import json
import os
import pathlib
import pty
import re
import shlex
import struct
import tempfile
import termios
import textwrap

from svg import Drawing, MONO, WIDTH

COLUMNS = 100


def screen(text):
    """The lines that a terminal shows: what carriage returns and erasures took away is gone."""
    lines = [""]
    column = 0
    for piece in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", text):
        if piece == "\n":
            lines.append("")
            column = 0
        elif piece == "\r":
            column = 0
        elif piece.startswith("\x1b"):
            if piece.endswith("K"):
                lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column].ljust(column) + piece + lines[-1][column + len(piece):]
            column += len(piece)
    return [line.rstrip() for line in lines]


def run(program, arguments, folder):
    """What the program wrote to its terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.environ["TERM"] = "xterm-256color"
        os.execv(program, [program, *arguments])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    written = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:
            break
        written += part
    _, status = os.waitpid(child, 0)
    text = written.decode("utf-8", errors="replace")
    if status != 0:
        raise SystemExit(f"{program} failed ({os.waitstatus_to_exitcode(status)}):\n{text}")
    return text


def wrapped(lines):
    for line in lines:
        yield from textwrap.wrap(line, COLUMNS, drop_whitespace=True, replace_whitespace=False) if len(line) > COLUMNS else [line]


def filled(arguments):
    """The command in lines, none of which ends between an option and its value."""
    pieces = ["oasis-decode"]
    for word in arguments:
        if word.startswith("--"):
            pieces.append(word)
        else:
            pieces[-1] += " " + shlex.quote(word)
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if len(lines[-1]) + len(piece) + 1 <= COLUMNS - 6:
            lines[-1] += " " + piece
        else:
            lines.append(piece)
    return lines


def draw(theme, capture):
    command = filled(capture["arguments"])
    lines = [f"{'$' if i == 0 else '>'} {part}" + (" \\" if i + 1 < len(command) else "") for i, part in enumerate(command)]
    prompts = len(lines)
    lines += list(wrapped(capture["lines"]))
    out = Drawing(theme, 56 + 18 * len(lines), "A run of oasis-decode in a terminal", [capture])
    out.shape("rect", x=0.5, y=0.5, width=WIDTH - 1, height=77 + 18 * len(lines), rx=6, fill="none", stroke=theme.grid)
    for i in range(3):
        out.shape("circle", cx=22 + 20 * i, cy=20, r=6, fill=theme.grid)
    for i, line in enumerate(lines):
        if i < prompts:
            out.text(20, 52 + 18 * i, line[0], family=MONO, size=13, fill=theme.green, weight="bold")
            out.text(20 + 2 * 7.8, 52 + 18 * i, line[2:], family=MONO, size=13, weight="bold", keep_spaces=True)
        elif line:
            out.text(20, 52 + 18 * i, line, family=MONO, size=13, keep_spaces=True)
    return out.done()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--program", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("arguments", nargs="+")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        path = pathlib.Path(work) / "report.json"
        text = run(options.program, [*options.arguments, "--json", str(path)], options.folder)
        report = json.loads(path.read_text())
    kept = {key: report[key] for key in ("schema_version", "program", "version", "commit", "machine", "model")}
    lines = screen(text)
    while lines and not lines[-1]:
        lines.pop()
    kept.update(arguments=options.arguments, lines=lines)
    options.out.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
