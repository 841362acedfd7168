# SPDX-License-Identifier: Apache-2.0
"""No code for a wide instruction set may reach a machine that lacks it: whatever the object file of a target leaves for the
linker to share must lie in that target's own namespace. An inline function of the standard library, compiled with AVX-512
and kept by the linker for everybody, would crash elsewhere.

    wide_code.py [--nm NM] OBJECT...    objects outside cpu/isa/ are passed over
"""
import pathlib
import re
import subprocess
import sys

TARGETS = {"scalar", "neon", "neon_bf16", "avx2", "avx512", "amx"}


def shared_symbols(listing):
    """Names of the weak and unique symbols that an `nm -C --defined-only` listing defines."""
    return [m[1] for m in (re.match(r"[0-9a-f]+ [WVu] (.+)", line) for line in listing.splitlines()) if m]


def leaks(target, listing):
    own = re.compile(rf"\bheed::cpu::{target}::|\b{target}_target\b")
    # DW.ref.* is a pointer, not code.
    return [name for name in shared_symbols(listing) if not own.search(name) and not name.startswith("DW.ref.")]


def checker_can_fail():
    listing = (
        "00 W void heed::cpu::avx512::advance<heed::cpu::avx512::Avx512>(int)\n00 W std::max<float>(float, float)\n"
        "00 W heed::cpu::Call::group() const\n00 T f()"
    )
    return leaks("avx512", listing) == ["std::max<float>(float, float)", "heed::cpu::Call::group() const"]


def main(arguments):
    nm = "nm"
    if arguments[:1] == ["--nm"]:
        nm, arguments = arguments[1], arguments[2:]
    if not checker_can_fail():
        print("the checker misses a planted leak")
        return 1
    seen = found = 0
    for path in map(pathlib.Path, arguments):
        target = path.name.split(".")[0]
        if path.parent.name != "isa" or target not in TARGETS:
            continue
        seen += 1
        listing = subprocess.run([nm, "-C", "--defined-only", path], check=True, capture_output=True, text=True).stdout
        for name in leaks(target, listing):
            found += 1
            print(f"{path.name}: {name}")
    print(f"{seen} targets, {found} symbols that could leak")
    return 0 if seen and not found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
