#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every program of docs/c.md is compiled or interpreted, run, and prints what the page says.

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
import readme  # noqa: E402  the README is cut into blocks in the same way


def run_c(block, folder, compile_command):
    source = folder / f"block_{block.line}.c"
    source.write_text(block.text)
    program = source.with_suffix("")
    command = [compile_command[0], str(source), "-o", str(program), *compile_command[1:]]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode:
        return built
    return subprocess.run([program], cwd=folder, capture_output=True, text=True, timeout=60)


def run_python(block, folder, library):
    paths = [library, os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths))}
    return subprocess.run(
        [sys.executable, "-c", block.text], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--library", required=True)
    parser.add_argument("compile_command", nargs="+")
    arguments = parser.parse_args()
    blocks = readme.blocks_of((arguments.root / "docs/c.md").read_text())
    problems, run = [], 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for block, after in zip(blocks, [*blocks[1:], None]):
            if block.language not in ("c", "python"):
                continue
            if after is None or after.language != "text":
                problems.append(f"docs/c.md:{block.line}: the page does not show what it prints")
                continue
            if block.language == "c":
                ran = run_c(block, folder, arguments.compile_command)
            else:
                ran = run_python(block, folder, arguments.library)
            run += 1
            if ran.returncode:
                problems.append(f"docs/c.md:{block.line}: status {ran.returncode}: {ran.stderr}")
            elif ran.stdout != after.text:
                problems.append(f"docs/c.md:{block.line}: prints {ran.stdout!r}, the page shows {after.text!r}")
    for problem in problems:
        print(problem)
    print(f"{run} programs, {len(problems)} problems")
    return 1 if problems or run < 3 else 0


if __name__ == "__main__":
    sys.exit(main())
