#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether clang-format would leave every C++ and CUDA file as it is. `format.py ROOT` names those it would change;
`format.py ROOT --mend` changes them."""

import pathlib
import shutil
import subprocess
import sys

FOLDERS = ("include", "src", "ranks", "view", "cli", "python", "playground", "examples", "tests")
SUFFIXES = {".hpp", ".cpp", ".h", ".c", ".cu", ".cuh"}


def files(root):
    return [str(path) for folder in FOLDERS for path in sorted((root / folder).rglob("*")) if path.suffix in SUFFIXES]


def main():
    root = pathlib.Path(sys.argv[1])
    tool = shutil.which("clang-format", path=str(pathlib.Path(sys.executable).parent)) or shutil.which("clang-format")
    if tool is None:
        print("clang-format is not there (pip install clang-format==19.1.7): nothing was looked at")
        return 77
    if "--mend" in sys.argv:
        return subprocess.run([tool, "-i", *files(root)]).returncode
    done = subprocess.run([tool, "-n", "--Werror", *files(root)], stderr=subprocess.PIPE, text=True)
    changed = sorted({line.split(":")[0] for line in done.stderr.splitlines() if "[-Wclang-format" in line})
    for path in changed:
        print(f"{path}: not as clang-format has it; tests/structure/format.py . --mend")
    return 1 if changed or done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
