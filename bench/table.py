#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes Markdown tables of what race.py and `heed bench --json` write.

table.py FILE...                     prints one table after the other
table.py --into docs/performance.md FILE...
                                     puts each between the file's <!-- race --> or <!-- bench --> and the next
                                     <!-- end -->; with --machine NAME after <!-- race NAME -->
"""

import argparse
import json
import pathlib
import re
import statistics
import sys


def milliseconds(seconds):
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def markdown(headings, rows):
    lines = [headings, ["---"] + ["--:"] * (len(headings) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rates(limits):
    """The limits as one sentence."""
    units = {
        "fp32_flops": ("fp32", "GFLOP/s"),
        "bf16_flops": ("bf16", "GFLOP/s"),
        "int8_ops": ("int8", "GOP/s"),
        "l2_bytes_per_second": ("L2", "GB/s"),
        "l3_bytes_per_second": ("L3", "GB/s"),
        "dram_bytes_per_second": ("DRAM", "GB/s"),
    }
    measured = [
        f"{name} {limits[key]['all_threads'] * 1e-9:.1f} {unit}"
        for key, (name, unit) in units.items()
        if limits.get(key)
    ]
    missing = [name for key, (name, _) in units.items() if not limits.get(key)]
    return ", ".join(measured) + (f"; none of {', '.join(missing)}" if missing else "")


def race_cell(found):
    if "ratio" in found:
        ratios = f"{found['ratio']:.2f}, {found['best_ratio']:.2f}"
        return f"{ratios} ({milliseconds(statistics.median(found['seconds']))} ms)"
    return "wrong" if "wrong" in found else "–"


def race_table(race):
    rivals = [name for name in race["versions"] if name != "heed"]
    rows = [
        [
            f"`{record['name']}`",
            milliseconds(statistics.median(record["heed_seconds"])) if record["heed_seconds"] else "wrong",
            *(race_cell(record["rivals"][rival]) for rival in rivals),
        ]
        for record in race["cases"]
    ]
    rows.append(
        ["median of the ratios", ""]
        + [
            f"{race['median_ratios'][rival]:.2f}" if rival in race["median_ratios"] else "–"
            for rival in rivals
        ]
    )
    versions = ", ".join(f"{name} {version}" for name, version in race["versions"].items())
    return (
        f"{race['cpu']}, {race['machine']['threads']} threads, {race['compiler']}, {race['date']}: {versions}; "
        f"`{race['command']}`, {race['seconds']:.0f} s.\nMeasured limits, all threads: {rates(race['limits'])}.\n\n"
        + markdown(["case", "heed, ms", *(f"× {rival}" for rival in rivals)], rows)
    )


def rate_of(case):
    if case["flops"] is not None:
        return f"{case['flops'] * 1e-9:.1f} GFLOP/s"
    return f"{case['bytes_per_second'] * 1e-9:.1f} GB/s"


def bench_table(bench):
    rows = []
    for case in bench["cases"]:
        figures = ["wrong", "", "", ""]
        if case["right"]:
            share = case["share_of_limit"]
            figures = [
                milliseconds(case["median_seconds"]),
                milliseconds(case["min_seconds"]),
                rate_of(case),
                "–" if share is None else f"{100 * share:.0f} % of {case['limit']}",
            ]
        rows.append([f"`{case['name']}`", f"`{case['kernel']}`" if case["kernel"] else "–", *figures])
    limits = f"Measured limits, all threads: {rates(bench['limits'])}.\n\n" if bench["limits"] else ""
    headings = ["case", "kernel", "median, ms", "min, ms", "rate", "share of the limit"]
    return f"{bench['machine']['threads']} threads. {limits}" + markdown(headings, rows)


def insert(text, mark, table):
    """`text` with the table between its marks, which must be there."""
    pattern = re.compile(rf"(<!-- {re.escape(mark)} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(text):
        sys.exit(f"table: there is no <!-- {mark} --> ... <!-- end --> to fill")
    return pattern.sub(lambda marks: f"{marks[1]}{table}\n{marks[2]}", text, count=1)


def table_of(file):
    """What wrote the file, "race" or "bench", and its table."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        kind = "race" if "median_ratios" in document else "bench"
        return kind, race_table(document) if kind == "race" else bench_table(document)
    except OSError as error:
        sys.exit(f"table: {file}: {error.strerror}")
    except (ValueError, LookupError, TypeError, AttributeError):
        sys.exit(f"table: {file}: is not what race.py --json or heed bench --json writes")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", metavar="MARKDOWN", type=pathlib.Path)
    parser.add_argument("--machine", metavar="NAME", default="", help="whose tables --into fills")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    options = parser.parse_args(arguments)
    if options.into and not options.into.is_file():
        parser.error(f"--into: {options.into} is no file")
    for file in options.files:
        kind, table = table_of(file)
        if options.into:
            mark = f"{kind} {options.machine}".strip()
            text = options.into.read_text(encoding="utf-8")
            options.into.write_text(insert(text, mark, table), encoding="utf-8")
        else:
            print(table + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
