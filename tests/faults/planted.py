#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults planted in the kernels, one at a time, to see which tests notice.

planted.py check                  every fault has its marker in the source, and can be planted (a test of the suite)
planted.py run [--only NAME] ...  copies the tree; breaks, builds and tests the copy for each fault
planted.py list                   the table

A fault that no test notices fails the run. It takes a while, so it is no part of the suite.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from table import FAULTS  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPIED = ["CMakeLists.txt", "cmake", "include", "src", "tests", "examples"]
TESTS = ["conformance", "laws", "simd", "laws_of_one_answer", "laws_of_extremes", "laws_of_caches",
         "gradients", "laws_of_gradients", "layer_gradients", "layer", "backend", "threads", "digests"]  # the digests notice everything
MARKED_LINES = 14  # that of the marker, and those that follow
CUDA_TEST = "cuda_emulated"  # asked alone about faults in CUDA kernels
HOPPER_TEST, HOPPER_CLAIMS = "cuda", ["gradients"]  # asked alone about faults in kernels of Hopper's matrix units
EMULATOR = ["qemu-aarch64", "-cpu", "max"]  # has Arm's bf16 instructions


def markers(root):
    """{name of a fault: [(file, offset of the marked lines)]} of all comments `// fault: NAME, NAME` in the source."""
    found = {}
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in (".hpp", ".cpp", ".cuh", ".cu"):
            continue
        for marker in re.finditer(r"^.*// fault: (.+)$", path.read_text(), re.MULTILINE):
            for name in marker[1].split(", "):
                found.setdefault(name, []).append((path, marker.start()))
    return found


def plant(fault, path, start):
    """The file's text with the fault in it, or None where the marked lines do not hold its text exactly once."""
    text = path.read_text()
    end = start
    for _ in range(MARKED_LINES):
        end = text.find("\n", end) + 1 or len(text)
    marked = text[start:end]
    without_names = re.sub(r"// fault: .+", lambda name: " " * len(name[0]), marked)
    if without_names.count(fault.old) != 1:
        return None
    at = start + without_names.index(fault.old)
    return text[:at] + fault.new + text[at + len(fault.old) :]


def check(root):
    """Sentences about faults that cannot be planted, and markers of none."""
    problems = []
    names = [fault.name for fault in FAULTS]
    problems += [f"{name}: the name is taken twice" for name in sorted(set(names)) if names.count(name) > 1]
    marked = markers(root)
    problems += [f"{name}: marked in {marked[name][0][0]}, but no fault" for name in sorted(set(marked) - set(names))]
    for fault in FAULTS:
        places = marked.get(fault.name, [])
        if len(places) != 1:
            problems.append(f"{fault.name}: marked {len(places)} times in src/, not once")
        elif plant(fault, *places[0]) is None:
            problems.append(f"{fault.name}: {fault.old!r} is not once in the lines behind its marker in {places[0][0]}")
        if fault.old == fault.new:
            problems.append(f"{fault.name}: changes nothing")
    return problems


def applies(fault):
    if fault.emulated and not shutil.which(EMULATOR[0]):
        return False
    if fault.hopper and not (shutil.which("nvcc") and shutil.which("nvidia-smi")):
        return False
    return not fault.machine or os.uname().machine in fault.machine


class Copy:
    """A copy of the tree with its build, kept between faults so that only what a fault touches is built again."""

    def __init__(self, folder, jobs, tests):
        self.tree, self.build, self.jobs, self.tests = folder / "tree", folder / "build", jobs, tests
        self.hopper_build = folder / "hopper"
        self.tree.mkdir(parents=True, exist_ok=True)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.tree / name, dirs_exist_ok=True)
            else:
                shutil.copy2(source, self.tree / name)
        self.configure(self.build)

    def configure(self, build, *options):
        launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        self.call(
            "cmake",
            "-G",
            "Ninja",
            "-S",
            self.tree,
            "-B",
            build,
            "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
            "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1",
            "-DHEED_BUILD_TOOL=OFF",
            "-DHEED_BUILD_TESTS=ON",
            "-DHEED_RANKS=OFF",
            "-DHEED_VIEW=OFF",
            "-DHEED_SPOIL_SCRATCH=ON",
            *launcher,
            *options,
        )

    @staticmethod
    def call(*command):
        done = subprocess.run(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode != 0:
            raise RuntimeError(done.stdout[-4000:])

    def noticed_by(self, everybody, before, fault=None):
        """{test program: claims that fail, but not before}, of the first program that has any or of everybody."""
        is_hopper = fault is not None and fault.hopper
        is_cuda = is_hopper or (fault is not None and fault.cuda)
        prefix, options = [], HOPPER_CLAIMS if is_hopper else [] if is_cuda else ["--gtest_brief=1"]
        build, tests = self.build, [CUDA_TEST] if is_cuda else self.tests
        if is_hopper:
            build, tests = self.hopper_build, [HOPPER_TEST]
            if not build.exists():
                self.configure(build, "-DHEED_CUDA=ON", "-DHEED_CUDA_ARCHITECTURES=90a")
        if fault is not None and fault.emulated:
            prefix, options = EMULATOR, [*options, "--gtest_filter=*neon_bf16*:*Bfmmla*"]
        found = {}
        for name in tests:
            if found and not everybody:
                break
            self.call("ninja", "-C", build, "-j", self.jobs, f"test_{name}")
            program = next(path for path in build.rglob(f"test_{name}") if path.is_file())
            environment = {**os.environ, "HEED_TEST_SELECTION": "small"}
            try:
                done = subprocess.run(
                    [*prefix, program, *options],
                    env=environment,
                    text=True,
                    timeout=900,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            except subprocess.TimeoutExpired:
                found[name] = ["(no end)"]
                continue
            if done.returncode != 0:
                gtest, plain = r"^\[  FAILED  \] (?:\w+/)?(\w+\.\w+)", r"^(\w+)\n  FAILED"  # plain: tests/cuda/claims.hpp
                claims = re.findall(plain if is_cuda else gtest, done.stdout, re.MULTILINE)
                claims = set(claims or [f"(ended with status {done.returncode})"]) - before
                if claims:
                    found[name] = sorted(claims)
        return found

    def with_fault(self, fault, everybody, before):
        ((path, start),) = markers(self.tree)[fault.name]
        healthy = path.read_text()
        path.write_text(plant(fault, path, start))
        try:
            return self.noticed_by(everybody, before, fault)
        finally:
            path.write_text(healthy)


def run(arguments, folder):
    copy = Copy(folder, arguments.jobs, arguments.tests.split(","))
    before = {claim for claims in copy.noticed_by(True, set()).values() for claim in claims}
    if before:
        print(f"these fail without any fault and notice nothing: {', '.join(sorted(before))}", flush=True)
    missed = 0
    for fault in FAULTS:
        if (arguments.only and fault.name not in arguments.only) or not applies(fault):
            continue
        found = copy.with_fault(fault, arguments.everybody, before)
        missed += not found
        claims = "; ".join(
            f"{name}: {', '.join(names[:2])}" + (f" and {len(names) - 2} more" if len(names) > 2 else "")
            for name, names in found.items()
        )
        print(f"{fault.name} | {fault.breaks} | {claims or 'NOT NOTICED'}", flush=True)
    print(f"{missed} faults were not noticed")
    return 1 if missed else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["check", "run", "list"])
    parser.add_argument("--only", action="append", help="the name of a fault; may be repeated")
    parser.add_argument(
        "--everybody", action="store_true", help="run the other tests too once one has noticed"
    )
    parser.add_argument("--tests", default=",".join(TESTS), help="whom to ask, in this order; default: %(default)s")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=pathlib.Path, help="keep the copy and its build here")
    arguments = parser.parse_args()
    if arguments.what == "list":
        for fault in FAULTS:
            print(f"{fault.name} | {fault.breaks}")
        return 0
    problems = check(ROOT)
    for problem in problems:
        print(problem)
    if problems or arguments.what == "check":
        print(f"{len(FAULTS)} faults, {len(problems)} that cannot be planted")
        return 1 if problems else 0
    if arguments.folder:
        return run(arguments, arguments.folder)
    with tempfile.TemporaryDirectory(prefix="heed-faults-") as folder:
        return run(arguments, pathlib.Path(folder))


if __name__ == "__main__":
    sys.exit(main())
