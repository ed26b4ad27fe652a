#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles all installed headers under strict flags, and builds and runs the consumer with the headers alone."""
import argparse
import pathlib
import subprocess

STRICT = ["-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wnon-virtual-dtor", "-Werror", "-fno-rtti"]


def main():
    parser = argparse.ArgumentParser()
    for name in ("compiler", "include", "app", "work"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    include = pathlib.Path(arguments.include)
    work = pathlib.Path(arguments.work)
    work.mkdir(parents=True, exist_ok=True)
    # Those of the CUDA backend need the toolkit; the build checks them.
    headers = sorted(str(path.relative_to(include)) for path in include.glob("oasis/**/*.hpp") if path.parent.name != "cuda")
    assert headers, f"no headers below {include}"

    for order, names in (("forward", headers), ("backward", headers[::-1])):
        source = work / f"{order}.cpp"
        # Each header twice: the second time must add nothing.
        source.write_text("".join(f"#include <{name}>\n" for name in names + names))
        for definitions in ([], ["-DOASIS_COMPILED=1"]):
            command = [arguments.compiler, *STRICT, *definitions, f"-I{include}", "-fsyntax-only", str(source)]
            subprocess.run(command, check=True)

    app = work / "consumer"
    sources = [str(path) for path in sorted(pathlib.Path(arguments.app).glob("*.cpp"))]
    subprocess.run([arguments.compiler, *STRICT, "-O1", f"-I{include}", *sources, "-pthread", "-o", str(app)], check=True)
    subprocess.run([str(app)], check=True)


main()
