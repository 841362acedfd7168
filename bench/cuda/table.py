#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a Markdown table of what time_kernels, race_torch.py and race_layer.py print.

table.py TIMES RACE CARD [--into docs/performance.md]    CARD: a line about the card, the driver, the date and the command;
                                                         --into puts the table between <!-- cuda --> and <!-- end -->
"""

import argparse
import pathlib
import re
import sys

RIVAL = re.compile(r"(heed|cudnn|flash|efficient|torch) ([\d.]+) us")


def in_words(us):
    return f"{us:.3g}" if us < 100 else f"{us:.0f}"


def times(path):
    """{name: (microseconds, TFLOP/s, TB/s)} of time_kernels."""
    line = re.compile(r"(\S+/\S+)  ([\d.]+) us  ([\d.]+) TFLOP/s  ([\d.]+) TB/s")
    return {m[1]: tuple(map(float, m.groups()[1:])) for m in line.finditer(path.read_text(encoding="utf-8"))}


def rivals(path):
    """The first line, and {name: {rival: microseconds}}."""
    first, *lines = path.read_text(encoding="utf-8").splitlines()
    return first, {line.split()[0]: {m[1]: float(m[2]) for m in RIVAL.finditer(line)} for line in lines if "/" in line}


def table(ours, theirs):
    names = [name for name in ("cudnn", "flash", "efficient", "torch") if any(name in found for found in theirs.values())]
    rows = [["case", "heed, µs", "rate", *(f"× {name}" for name in names)], ["---"] + ["--:"] * (2 + len(names))]
    for case, (alone, tflops, tbs) in ours.items():
        found = theirs.get(case, {})
        us = found.get("heed", alone)  # in turns with the others, where it was
        tflops, tbs = tflops * alone / us, tbs * alone / us
        rate = f"{tbs:.2f} TB/s" if case.startswith("decode/") else f"{tflops:.0f} TFLOP/s"
        cells = [f"{found[name] / us:.2f} ({in_words(found[name])} µs)" if name in found else "–" for name in names]
        rows.append([f"`{case}`", in_words(us), rate, *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("times", type=pathlib.Path)
    parser.add_argument("race", type=pathlib.Path)
    parser.add_argument("card")
    parser.add_argument("--into", metavar="MARKDOWN", type=pathlib.Path)
    options = parser.parse_args(arguments)
    versions, theirs = rivals(options.race)
    made = f"{options.card}: {versions}.\n\n{table(times(options.times), theirs)}"
    if not options.into:
        print(made)
        return
    text = options.into.read_text(encoding="utf-8")
    marks = re.compile(r"(<!-- cuda -->\n).*?(<!-- end -->)", re.DOTALL)
    if not marks.search(text):
        sys.exit("table: there is no <!-- cuda --> ... <!-- end --> to fill")
    options.into.write_text(marks.sub(lambda m: f"{m[1]}{made}\n{m[2]}", text, count=1), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
