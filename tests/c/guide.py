#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every program of docs/c.md, and in C of docs/start.md, is compiled or interpreted, run, and prints what the page says.

guide.py ROOT --library FOLDER -- COMPILER FLAGS...   (the flags include the library, after the source; FOLDER holds the
shared one)
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "structure"))
import pages  # noqa: E402  all pages are cut into blocks in the same way


def run_c(block, folder, compile_command, environment):
    source = folder / f"{block.place.replace('/', '_').replace(':', '_')}.c"
    source.write_text(block.text)
    program = source.with_suffix("")
    command = [compile_command[0], str(source), "-o", str(program), *compile_command[1:]]
    built = subprocess.run(command, capture_output=True, text=True)
    return built if built.returncode else run([program], folder, environment)


def run(command, folder, environment):
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--library", required=True)
    parser.add_argument("compile_command", nargs="+")
    arguments = parser.parse_args()
    guides = [(page, (arguments.root / page).read_text()) for page in ("docs/c.md", "docs/start.md")]
    blocks = [block for page, text in guides for block in pages.blocks_of(text, page)]
    paths = [arguments.library, os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths))}
    problems, programs = [], 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for block in blocks:
            if block.language not in ("c", "python"):
                continue
            if block.output is None:
                problems.append(f"{block.place}: the page does not show what it prints")
                continue
            if block.language == "c":
                ran = run_c(block, folder, arguments.compile_command, environment)
            else:
                ran = run([sys.executable, "-c", block.text], folder, environment)
            programs += 1
            if ran.returncode:
                problems.append(f"{block.place}: status {ran.returncode}: {ran.stderr}")
            elif ran.stdout != block.output:
                problems.append(f"{block.place}: prints {ran.stdout!r}, the page shows {block.output!r}")
    for problem in problems:
        print(problem)
    print(f"{programs} programs, {len(problems)} problems")
    return 1 if problems or programs < 4 else 0


if __name__ == "__main__":
    sys.exit(main())
