#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the pictures and the tables of docs/performance.md from the runs in bench/results. Needs nothing installed.

    python3 bench/plots.py           writes docs/pictures/*.svg and what stands between <!-- NAME --> and <!-- end --> in the page
    python3 bench/plots.py --check   writes nothing, and fails where that would change something
    python3 bench/plots.py --table FILE...   prints a table of each run

A run replaces another by its name: `heed bench … --json > bench/results/xeon-16-bench.json`.
"""

import argparse
import pathlib
import re
import sys

import cases
import records
import svg

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS, PICTURES, PAGE = ROOT / "bench/results", ROOT / "docs/pictures", ROOT / "docs/performance.md"
MACHINES = {
    "n1-race": "Neoverse N1, two cores",
    "xeon-16-race": "Xeon with AMX, 16 threads",
    "xeon-2-race": "Xeon with AMX, two threads",
    "h200-race": "NVIDIA H200",
}
LENGTHS, ERRORS, PLATEAU = "xeon-16-lengths", "errors", "h200-plateau"
SHOWN_ON_CPU = cases.suites()["quick"]
SHOWN_ON_GPU = [
    "prefill/bf16/4x64x8x1024x1024x128",
    "prefill/bf16/1x64x8x4096x4096x128",
    "prefill/bf16/1x64x8x16384x16384x128",
    "prefill/bf16/1x64x8x16384x16384x128/causal",
    "prefill/bf16/1x64x64x4096x4096x64",
    "prefill/bf16/1x64x64x4096x4096x64/causal",
    "prefill/bf16/1x32x8x4096x4096x256",
    "decode/bf16/64x32x8x1x4096x128",
    "decode/bf16/1x32x8x1x4096x128",
    "decode/bf16/64x32x1x1x4096x128",
    "prefill/f32/1x32x32x8192x8192x64",
    "layer/bf16/1x32x8x4096x4096x128",
]


class Runs:
    """The files of bench/results, each read once."""

    def __init__(self, folder):
        self.documents = {path.stem: records.read(path) for path in sorted(folder.glob("*.json"))}

    def __getitem__(self, name):
        return self.documents[name]

    def __contains__(self, name):
        return name in self.documents

    def by_case(self, name):
        """{case: {contestant: record}}, of a contestant's ways the first."""
        found = {}
        for record in self[name]["cases"]:
            found.setdefault(record["name"], {}).setdefault(record["by"], record)
        return found


def in_words(name):
    """"prefill/f32/1x32x8x2048x2048x128/causal" -> "f32, 32/8 heads of 128, 2048 tokens, causal"."""
    case = cases.parse(name)
    batch, heads, kv_heads, queries, keys, dim = case.shape
    role = "" if case.role in ("prefill", "decode") else f"{case.role} "
    if case.role == "projection":
        return f"{role}{case.dtype}, {batch * queries} x {case.width} x {case.width}"
    shared = "" if heads == kv_heads else f"/{kv_heads}"
    length = f"one query, {keys} keys" if queries == 1 else f"{queries} tokens"
    several = f"{batch} x " if batch > 1 else ""
    return f"{role}{case.dtype}, {heads}{shared} heads of {dim}, {several}{length}" + (", causal" if case.causal else "")


def source(document):
    told = {name: version for name, version in document["versions"].items() if name not in ("torch-regrouped", "compiler")}
    versions = ", ".join(f"{name} {re.split('[+ ]', version)[0]}" for name, version in told.items())
    machine = document["machine"]
    threads = f", {machine['threads']} threads" if machine["threads"] > 1 else ""
    return f"{machine['name']}{threads}, {document['date']}: {versions}"


def shown_of(race):
    return SHOWN_ON_GPU if race == "h200-race" else SHOWN_ON_CPU


# Pictures.


def speed(runs, name):
    found = runs.by_case(name)
    rows = []
    for case in shown_of(name):
        ratios = {by: record["ratio"] for by, record in found.get(case, {}).items() if "ratio" in record}
        if ratios:
            rows.append((in_words(case), ratios))
    names = [by for by in svg.COLORS if any(by in ratios for _, ratios in rows)]
    title = f"Others take this many times as long: {MACHINES[name]}"
    return svg.bars(title, source(runs[name]), "times as long as heed", rows, names, 4 if name != "h200-race" else 3)


def share_by_length(runs):
    series = {}
    for record in runs[LENGTHS]["cases"]:
        series.setdefault(record["dtype"], []).append((record["shape"][3], 100 * record["share_of_limit"]))
    limits = ", ".join(dict.fromkeys(f"{record['dtype']} of {record['limit']}" for record in runs[LENGTHS]["cases"]))
    title = f"Share of the machine's arithmetic: 12 heads of 64; {limits}"
    ticks = [(n, f"{n} %") for n in range(0, 101, 20)]
    return svg.lines(title, source(runs[LENGTHS]), ("tokens", "measured in turns with the limit"), series, ticks)


def errors(runs):
    rows = []
    for case, found in runs.by_case(ERRORS).items():
        values = {by: found[by]["error"] for by in ("heed", "torch") if by in found and found[by].get("error")}
        if len(values) == 2:
            rows.append((in_words(case), values))
    title = "The largest error against float64, heed's and PyTorch's"
    return svg.dots(title, source(runs[ERRORS]), "as a share of the row's largest element, six rows", rows, ["heed", "torch"])


def memory(runs):
    series = {}
    for record in runs["memory"]["cases"]:
        series.setdefault(record["by"], []).append((record["shape"][3], max(record["peak_bytes"] / 2**20, 0.1)))
    title = "Memory of a call beside its inputs and output: one head of 64, f32, causal"
    ticks = [(0.1, "0.1"), (1, "1"), (10, "10"), (100, "100"), (1000, "1 000"), (10000, "10 000")]
    return svg.lines(title, source(runs["memory"]), ("tokens", "MiB, 0.1 or more"), series, ticks, is_logarithmic=True)


def plateau(runs):
    series = {}
    for case, found in runs.by_case("h200-race").items():
        parsed = cases.parse(case)
        if parsed.role != "prefill" or parsed.shape[1:3] != (64, 8) or parsed.shape[5] != 128:
            continue
        for by in ("heed", "cudnn", "flash"):
            if by in found:
                key = by + (" causal" if parsed.causal else "")
                series.setdefault(key, []).append((parsed.shape[3], found[by]["flops"] / 1e12))
    title = "The plateau of a GPU: bf16, 64/8 heads of 128, dashed: causal"
    ticks = [(n, str(n)) for n in range(0, 801, 200)]
    return svg.lines(title, source(runs["h200-race"]), ("tokens", "TFLOP/s"), series, ticks)


def every_call(runs):
    """A column for each call of plateau.py."""
    groups = {}
    for record in runs[PLATEAU]["cases"]:
        if "ratio" in record:
            groups.setdefault(record["group"], []).append(record["ratio"])
    title = f"The fastest of PyTorch's backends takes this many times as long: {sum(map(len, groups.values()))} calls"
    return svg.columns(title, source(runs[PLATEAU]), "times as long as heed", list(groups.items()), "heed", 4)


# Of three races a call each, and against whom.
THREE = (
    ("xeon-16-race", "prefill/f32/1x12x12x1024x1024x64/causal", "torch", "Xeon, 16 threads"),
    ("xeon-16-race", "backward/bf16/1x32x8x2048x2048x128/causal", "torch", "its gradients, AMX"),
    ("h200-race", "prefill/bf16/1x64x8x16384x16384x128/causal", "cudnn", "H200"),
)


def three_times(runs):
    rows = []
    for race, case, rival, where in THREE:
        found = runs.by_case(race)[case]
        times = [(svg.WHO[by], readable(found[by]["median_seconds"]), found[by]["median_seconds"]) for by in ("heed", rival)]
        rows.append((f"{where}: {in_words(case).removeprefix('backward ')}", times))
    return svg.pairs("Times of heed and of PyTorch for three calls: shorter is better", rows)


def pictures(runs):
    """{file: text}"""
    made = {f"speed-{name.removesuffix('-race')}.svg": speed(runs, name) for name in MACHINES if name != "xeon-2-race"}
    return made | {
        "share-by-length.svg": share_by_length(runs),
        "error.svg": errors(runs),
        "memory-by-length.svg": memory(runs),
        "gpu-plateau.svg": plateau(runs),
        "gpu-calls.svg": every_call(runs),
        "times.svg": three_times(runs),
    }


# Tables.


def markdown(headings, rows):
    lines = [headings, ["---"] + ["--:"] * (len(headings) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def readable(seconds):
    for unit, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size or unit == "µs":
            value = seconds / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return ""


def rate(record):
    if "flops" in record:
        giga = record["flops"] * 1e-9
        return f"{giga:.0f} GFLOP/s" if giga < 1e4 else f"{giga * 1e-3:.0f} TFLOP/s"
    giga = record["bytes_per_second"] * 1e-9
    return f"{giga:.1f} GB/s" if giga < 1e3 else f"{giga * 1e-3:.2f} TB/s"


def race_table(document, shown=None):
    """Of a race: heed's times and rates, and how many times as long the others take."""
    found = {}
    for record in document["cases"]:
        found.setdefault(record["name"], {}).setdefault(record["by"], record)
    rivals = list(dict.fromkeys(record["by"] for record in document["cases"] if record["by"] != "heed"))
    rows = []
    for case, who in found.items():
        if shown is not None and case not in shown or not who["heed"]["right"]:
            continue
        cells = [f"{who[by]['ratio']:.2f}" if by in who and "ratio" in who[by] else "–" for by in rivals]
        rows.append([f"`{case}`", readable(who["heed"]["median_seconds"]), rate(who["heed"]), *cells])
    return markdown(["case", "heed takes", "heed's rate", *(f"{svg.WHO[by]} ×" for by in rivals)], rows)


def plateau_table(document):
    """Of plateau.py: a row for each call."""
    found = {}
    for record in document["cases"]:
        found.setdefault(record["name"], {})[record["by"]] = record
    rows = []
    for name, who in found.items():
        ours, theirs = who["heed"], who.get("torch")
        figures = [readable(ours["median_seconds"]), rate(ours)] if ours["right"] else ["wrong", ""]
        ratio = f"{theirs['ratio']:.2f} {theirs['how']}" if theirs else "–"
        share = f"{100 * ours['share_of_plain']:.0f} %" if "share_of_plain" in ours else "–"
        rows.append([f"`{name}`", f"`{ours['how']}`", *figures, ratio, share])
    return markdown(["call", "heed's kernel", "heed takes", "heed's rate", "PyTorch's fastest ×", "share of a plain call"], rows)


def share_table(document):
    """Of `heed bench`: what share of the limit."""
    rows = []
    for record in document["cases"]:
        share = record.get("share_of_limit")
        cell = "–" if share is None else f"{100 * share:.0f} % of {record['limit']}"
        figures = [readable(record["median_seconds"]), rate(record)] if record["right"] else ["wrong", ""]
        rows.append([f"`{record['name']}`", f"`{record['how']}`" if record.get("how") else "–", *figures, cell])
    return markdown(["case", "kernel", "median", "rate", "share of the limit"], rows)


def field_table(fields):
    kinds = {int: "integer", float: "number", str: "text", bool: "true or false", dict: "object", list: "list"}
    rows = [[f"`{name}`" + ("" if required else ", optional"), kinds[kind], meaning] for name, (kind, required, meaning) in fields.items()]
    return "\n".join("| " + " | ".join(row) + " |" for row in [["field", "type", "meaning"], ["---"] * 3, *rows])


def run_list(runs):
    """Of every run its machine and the command that made it."""
    made = []
    for name, document in runs.documents.items():
        made.append(f"- **{name}**: {source(document)}. {document.get('note', '')}".rstrip() + f"\n  `{document['command']}`")
    return "\n".join(made)


def tables(runs):
    """{mark: text} of what the page holds between <!-- MARK --> and <!-- end -->."""
    made = {name: race_table(runs[name], shown_of(name)) for name in MACHINES}
    made |= {name: share_table(runs[name]) for name in ("n1-bench", "xeon-16-bench") if name in runs}
    made[PLATEAU] = plateau_table(runs[PLATEAU])
    return made | {"fields of a run": field_table(records.RUN), "fields of a record": field_table(records.RECORD), "runs": run_list(runs)}


def filled(page, made):
    """The page with every table in its place. A mark that names no table, or a table without a mark, is an error."""
    marks = re.compile(r"<!-- (.+?) -->\n.*?<!-- end -->", re.DOTALL)
    found = [mark[1] for mark in marks.finditer(page)]
    if sorted(found) != sorted(made):
        sys.exit(f"plots: the page has the marks {sorted(found)}, the tables are {sorted(made)}")
    return marks.sub(lambda mark: f"<!-- {mark[1]} -->\n{made[mark[1]]}\n<!-- end -->", page)


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the files are not what would be written")
    parser.add_argument("--table", nargs="+", metavar="FILE", help="print a table of each run, and nothing else")
    options = parser.parse_args(arguments)
    try:
        if options.table:
            for file in options.table:
                document = records.read(file)
                is_race = any("ratio" in record for record in document["cases"])
                print(f"{source(document)}; `{document['command']}`\n\n{race_table(document) if is_race else share_table(document)}\n")
            return 0
        runs = Runs(RESULTS)
    except (OSError, ValueError) as error:
        sys.exit(f"plots: {error}")
    wanted = {PICTURES / name: text for name, text in pictures(runs).items()}
    wanted[PAGE] = filled(PAGE.read_text(encoding="utf-8"), tables(runs))
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'is not what bench/plots.py makes of bench/results' if options.check else 'written'}")
        if not options.check:
            path.write_text(wanted[path], encoding="utf-8")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
