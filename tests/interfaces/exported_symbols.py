# SPDX-License-Identifier: Apache-2.0
"""What the shared library exports is the API, all of it and nothing else: functions of the namespace that its version names,
the tables of the classes that cross it, and C functions that begin with heed_.

    exported_symbols.py --nm NM --readelf READELF --version 0.3.0 SHARED STATIC
"""

import argparse
import re
import subprocess
import sys


def symbols(listing):
    """(kind, name) of each line of nm -C."""
    return [m.groups() for m in (re.match(r"[0-9a-f]* +(\w) (.+)", line) for line in listing.splitlines()) if m]


def strangers(listing, api):
    """What is exported and should not be."""
    allowed = re.compile(rf"{api}::(?!.*\bState::)|(?:vtable|typeinfo|typeinfo name) for {api}::(?!.*\bState\b)[\w:]+$|heed_\w+$")
    return sorted({name for _, name in symbols(listing) if not allowed.match(name)})


def forgotten(exported, linked, api):
    """What is defined in the namespace of the API, or in C, and not exported. Inline functions (W, V) are the users' own."""
    own = re.compile(rf"{api}::|heed_\w+$")
    names = {name for kind, name in symbols(linked) if kind in "TDBR" and own.match(name)}
    return sorted(names - {name for _, name in symbols(exported)})


def checker_can_fail():
    exported = "00 T heed::v8_9::merge(int)\n00 W std::max(int)\n00 T heed::cpu::run()\n00 V typeinfo for heed::v8_9::Error\n"
    linked = "00 T heed::v8_9::merge(int)\n00 T heed::v8_9::check(int)\n00 W heed::v8_9::bhsd()\n00 T heed::cpu::run()\n"
    return strangers(exported, "heed::v8_9") == ["heed::cpu::run()", "std::max(int)"] and forgotten(
        exported, linked, "heed::v8_9"
    ) == ["heed::v8_9::check(int)"]


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    parser = argparse.ArgumentParser()
    for option in ("--nm", "--readelf", "--version"):
        parser.add_argument(option, required=True)
    parser.add_argument("shared")
    parser.add_argument("static")
    options = parser.parse_args()
    major, minor, _ = options.version.split(".")
    api = f"heed::v{major}_{minor}"

    problems = [] if checker_can_fail() else ["the checker misses planted symbols"]
    exported = output_of(options.nm, "-DC", "--defined-only", options.shared)
    linked = output_of(options.nm, "-C", "--defined-only", "--extern-only", options.static)
    problems += [f"{name}: exported, but no part of the API" for name in strangers(exported, api)]
    problems += [f"{name}: in {api}, but not exported; HEED_API?" for name in forgotten(exported, linked, api)]
    soname = f"libheed.so.{major}.{minor}"
    if f"[{soname}]" not in output_of(options.readelf, "-d", options.shared):
        problems.append(f"the library does not call itself {soname}")
    print(*problems, f"{len(symbols(exported))} symbols, {len(problems)} problems", sep="\n")
    return 1 if problems or not symbols(exported) else 0


if __name__ == "__main__":
    sys.exit(main())
