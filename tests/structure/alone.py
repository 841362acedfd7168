# SPDX-License-Identifier: Apache-2.0
"""Every file of the library compiles by itself, with the headers of heed that it includes and no others. A build that compiles
several files as one does not notice when a file has a header only from its neighbours.

    alone.py SRC FILE... -- COMPILER FLAGS...    SRC is the folder of the sources; files with flags of their own are passed over

The standard headers are precompiled, all those that heed uses: each file takes a third of the time, and a standard header
that is missing goes unnoticed.
"""
import pathlib
import re
import subprocess
import sys
import tempfile


def standard_headers(src):
    """The `#include <...>` of all sources that stand at the beginning of a line and before any condition."""
    found = set()
    for path in [*src.rglob("*.?pp"), *(src.parent / "include").rglob("*.hpp")]:
        if path.is_relative_to(src / "cuda"):
            continue
        before_conditions = re.split(r"^#\s*if", path.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)[0]
        found |= set(re.findall(r"^#include <([a-z_]+)>$", before_conditions, re.MULTILINE))
    return sorted(found)


def precompiled(compiler, src, folder):
    header = folder / "standard.hpp"
    header.write_text("".join(f"#include <{name}>\n" for name in standard_headers(src)), encoding="utf-8")
    subprocess.run([*compiler, "-x", "c++-header", header, "-o", f"{header}.gch"], check=True)
    return header


def complaint(compiler, file):
    """What the compiler says against this file alone; empty when it has nothing to say."""
    run = subprocess.run([*compiler, "-fsyntax-only", file], stderr=subprocess.PIPE, text=True, check=False)
    return run.stderr if run.returncode else ""


def checker_can_fail(compiler, folder):
    """A file that uses what it does not include is found, and the same file with the include is not."""
    use = "heed::Shape f(heed::Shape shape) { return shape; }\n"
    lacking, whole = folder / "lacking.cpp", folder / "whole.cpp"
    lacking.write_text(use, encoding="utf-8")
    whole.write_text('#include "heed/tensor.hpp"\n' + use, encoding="utf-8")
    return complaint(compiler, lacking) and not complaint(compiler, whole)


def main(arguments):
    cut = arguments.index("--")
    src, files, compiler = pathlib.Path(arguments[0]), arguments[1:cut], arguments[cut + 1 :]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        compiler += ["-include", precompiled(compiler, src, folder)]
        if not checker_can_fail(compiler, folder):
            print("the checker takes a file that lacks a header for whole, or a whole one for lacking")
            return 1
        found = [text for text in (complaint(compiler, file) for file in files) if text]
    print(*found, f"{len(files)} files by themselves, {len(found)} do not compile", sep="\n")
    return 1 if found or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
