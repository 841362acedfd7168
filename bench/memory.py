#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much memory a call takes beside its inputs and output, by length: heed, PyTorch and the textbook in NumPy.

Each is a process of its own: it calls once on a few tokens, so that libraries are loaded and threads exist, then once on all of
them, and the system says how much resident memory the process had at its peak. Needs Linux.

    python bench/memory.py --json memory.json
"""

import argparse
import ctypes
import gc
import json
import pathlib
import platform
import subprocess
import sys

import cases
import records

CONTESTANTS = ("heed", "torch", "numpy")
NAME = "prefill/f32/1x1x1x{0}x{0}x64/causal"


def resident_bytes(field):
    """VmRSS: now; VmHWM: the most so far."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith(field + ":"))
    return 1024 * int(line.split()[1])


def peak_bytes(by, length, threads):
    """Of one call in this process, without its inputs and its output; and the contestant's version."""
    import importlib

    import problem

    module = importlib.import_module("contestant_" + by)

    def call(tokens):
        case = cases.parse(NAME.format(tokens))
        _, run = next(iter(module.ways(case, problem.inputs_of(case), threads)))
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what was freed is not there for the call to use again
        pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the most so far is what there is now
        before = resident_bytes("VmRSS")
        result = run()
        peak = resident_bytes("VmHWM") - before
        return peak - 4 * tokens * 64, result

    call(16)
    return max(0, call(length)[0]), str(module.version())


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", default="1024,2048,4096,8192,16384,32768,65536,131072", help="default: %(default)s")
    parser.add_argument("--largest", type=float, default=4e9, help="bytes: who has taken a quarter of it stops; default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="also write everything there, as records.py says")
    parser.add_argument("--one", nargs=2, metavar=("BY", "LENGTH"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(peak_bytes(options.one[0], int(options.one[1]), options.threads)))
        return
    document = records.run("bench/memory.py " + " ".join(arguments), {"name": platform.machine(), "threads": options.threads}, {})
    for by in CONTESTANTS:
        for length in map(int, options.lengths.split(",")):
            words = [sys.executable, __file__, "--one", by, str(length), "--threads", str(options.threads)]
            taken, document["versions"][by] = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
            name = NAME.format(length)
            print(f"{name:48} {by:8} {taken / 2**20:10.1f} MiB", flush=True)
            made = {"name": name, **records.described(name), "by": by, "how": None, "right": True, "peak_bytes": taken}
            document["cases"].append(made)
            if 4 * taken > options.largest:
                break
    if options.json:
        records.write(options.json, document)


if __name__ == "__main__":
    main(sys.argv[1:])
