#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nothing calls upward: what an object file of one folder of src/ needs is defined in that folder or in one below it. The
linker would not mind, so this asks the object files themselves.

    layers.py [--nm NM] OBJECT...    of src/, each of one folder: src/.../cpu/... or src/.../unity_cache_cxx.cxx.o
"""
import pathlib
import re
import subprocess
import sys

# From top to bottom. Folders of one line do not know each other.
ORDER = (
    ("c",),
    ("layer",),
    ("api",),
    ("call",),
    ("cache",),
    ("backend",),
    ("cpu", "cuda", "reference"),
    ("problem",),
    ("rotary", "softmax"),
    ("files",),
    ("threads",),
    ("refusal",),
    ("system",),
)
DEPTH = {folder: depth for depth, folders in enumerate(ORDER) for folder in folders}


def folder_of(path):
    """That of src/ which an object file belongs to, or None."""
    together = re.fullmatch(r"unity_(\w+?)_cxx\.cxx\.\w+", path.name)
    if together:
        return together[1]
    return next((part for part in reversed(path.parts[:-1]) if part in DEPTH), None)


def symbols(nm, path):
    """(defined, needed) names of an object file; those that the linker may take from any of several are no call."""
    listing = subprocess.run([nm, path], check=True, capture_output=True, text=True).stdout
    found = re.findall(r"^[0-9a-f]* +([A-Za-z]) (\S+)$", listing, re.MULTILINE)
    return {name for kind, name in found if kind in "TDBR"}, {name for kind, name in found if kind == "U"}


def upward(objects):
    """objects: {folder: (defined, needed)}. Sentences about calls to a folder that is not below."""
    owner = {name: folder for folder, (defined, _) in objects.items() for name in defined}
    problems = []
    for folder, (_, needed) in sorted(objects.items()):
        for name in sorted(needed):
            other = owner.get(name, folder)
            if other != folder and DEPTH[other] <= DEPTH[folder]:
                problems.append((folder, other, name))
    return problems


def checker_can_fail():
    objects = {"api": ({"attention"}, {"run"}), "cpu": ({"run"}, {"attention", "malloc"})}
    return upward(objects) == [("cpu", "api", "attention")]


def main(arguments):
    nm = "nm"
    if arguments[:1] == ["--nm"]:
        nm, arguments = arguments[1], arguments[2:]
    if not checker_can_fail():
        print("the checker misses a planted call upward")
        return 1
    objects, unknown = {}, []
    for path in map(pathlib.Path, arguments):
        folder = folder_of(path)
        if folder not in DEPTH:
            unknown.append(path)
            continue
        defined, needed = symbols(nm, path)
        all_defined, all_needed = objects.setdefault(folder, (set(), set()))
        all_defined |= defined
        all_needed |= needed
    problems = upward(objects)
    names = subprocess.run(["c++filt"], input="\n".join(name for *_, name in problems), text=True, capture_output=True)
    for (folder, other, _), name in zip(problems, names.stdout.splitlines()):
        print(f"src/{folder} calls upward: {name} of src/{other}")
    for path in unknown:
        print(f"{path}: of no folder that this test knows")
    print(f"{len(objects)} folders, {len(problems)} calls upward")
    return 1 if problems or unknown or len(objects) < 8 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
