# SPDX-License-Identifier: Apache-2.0
"""The one format of everything that is measured: a run, and a record for each case and contestant.

`heed bench --json` writes it, and so do race.py, plateau.py, memory.py and decode_models.py; plots.py reads it. Needs nothing installed:

    import records
    run = records.run("scripts/gpu-check", {"name": "NVIDIA H200", "threads": 1}, {"heed": "0.3.0"})
    run["cases"].append(records.record("prefill/bf16/1x64x8x4096x4096x128", "heed", "cuda.prefill.sm90", [7.5e-4, 7.4e-4]))
    records.write("plateau.json", run)
"""

import datetime
import json
import pathlib
import statistics

import cases

FORMAT = 1

# {field: (type, is required, meaning)}
RUN = {
    "format": (int, True, "1"),
    "date": (str, True, "of the run, UTC"),
    "command": (str, True, "what repeats it"),
    "machine": (dict, True, "`name` and `threads`; from the tool also `l2_bytes`, `l3_bytes`, `memory_bytes`"),
    "versions": (dict, True, "of heed, its rivals and the compiler"),
    "limits": (
        dict,
        False,
        "what the machine can do: `fp32_flops`, `bf16_flops`, `int8_ops`, `l2_bytes_per_second`, `l3_…`, `dram_…`, each with "
        "`one_thread` and `all_threads`; null: not measured",
    ),
    "cases": (list, True, "records"),
    "note": (str, False, "what a reader must know about this run"),
    "interrupted_after": (int, False, "records, where Ctrl-C ended the run"),
}
RECORD = {
    "name": (str, True, "the case, `role/dtype/shape`"),
    "by": (str, True, "who ran it: `heed`, `torch`, `onnxruntime`, …"),
    "how": (str, False, "its kernel, function or operator"),
    "role": (str, False, "`prefill`, `decode`, …"),
    "dtype": (str, False, "of the tensors, or of what a cache holds"),
    "shape": (list, False, "batch, heads, KV heads, queries, keys, dim"),
    "operations": (float, False, "counted; where the limit is arithmetic"),
    "bytes": (float, False, "counted; where the limit is memory"),
    "right": (bool, True, "whether the result was; a wrong one has no time"),
    "error": (float, False, "the largest of the checked elements, as a share of its row's largest"),
    "error_in_bounds": (float, False, "likewise, as a share of `heed::check`'s bound"),
    "checked_elements": (int, False, "compared with double precision in this run"),
    "first_miss": (str, False, "what was wrong"),
    "runs": (int, False, "calls that were timed"),
    "turns": (int, False, "in which the contestants, or a case and its limit, alternated"),
    "median_seconds": (float, False, "of a call"),
    "min_seconds": (float, False, "of a call"),
    "standard_deviation_seconds": (float, False, "of the calls"),
    "tokens_per_second": (float, False, "tokens that a call computes (batch x queries) over the median time"),
    "saved_median_seconds": (float, False, "of `heed bench --compare`: the median in the saved run"),
    "flops": (float, False, "operations over the median time"),
    "bytes_per_second": (float, False, "bytes over the median time"),
    "limit": (str, False, "which limit binds: `fp32`, `bf16`, `l3`, `dram`"),
    "share_of_limit": (float, False, "the rate over that limit, the median of turns"),
    "best_share_of_limit": (float, False, "the fastest turn over the fastest burst of the limit"),
    "share_of_first_limit": (float, False, "the rate over the limit in `limits`, measured before all cases"),
    "group": (str, False, "of plateau.py: what a call is listed under"),
    "share_of_plain": (float, False, "of plateau.py: the rate over that of the plain call with heads of the same size"),
    "ratio": (float, False, "this contestant's time over heed's, the median of turns: above 1, heed is faster"),
    "best_ratio": (float, False, "likewise, of the least times"),
    "kv_bytes_per_token": (int, False, "of decode: keys, values and scales"),
    "peak_bytes": (int, False, "memory that the call took beside its inputs and output"),
}


def run(command, machine, versions, limits=None):
    """An empty run of today."""
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return {"format": FORMAT, "date": today, "command": command, "machine": machine, "versions": versions, "limits": limits, "cases": []}


def described(name):
    """What a name says: role, dtype, shape and work, where it is the name of a case that is raced."""
    try:
        case = cases.parse(name)
    except ValueError:
        return {}
    work = {"operations": float(case.operations)} if case.bytes is None else {"bytes": float(case.bytes)}
    return {"role": case.role, "dtype": case.dtype, "shape": list(case.shape), **work}


def record(name, by, how, seconds, **more):
    """A record of calls that took so many seconds each; without times, one whose result is wrong."""
    made = {"name": name, **described(name), "by": by, "how": how, "right": bool(seconds), **more}
    if seconds:
        median = statistics.median(seconds)
        made |= {"runs": len(seconds), "median_seconds": median, "min_seconds": min(seconds)}
        if "operations" in made:
            made["flops"] = made["operations"] / median
        if "bytes" in made:
            made["bytes_per_second"] = made["bytes"] / median
    return made


def misses(document):
    """A sentence for everything in a document that is not of this format."""
    if not isinstance(document, dict):
        return ["it is no object"]
    found = _misses("the run", document, RUN)
    if document.get("format") != FORMAT:
        found.append(f"its format is {document.get('format')!r}, not {FORMAT}")
    for n, each in enumerate(document.get("cases") if isinstance(document.get("cases"), list) else []):
        where = f"record {n}"
        found += _misses(where, each, RECORD) if isinstance(each, dict) else [f"{where}: it is no object"]
        if isinstance(each, dict) and each.get("right") is False and "median_seconds" in each:
            found.append(f"{where}: a wrong result has a time")
    return found


def _misses(where, found, fields):
    sentences = [f"{where}: {name} is missing" for name, (_, required, _) in fields.items() if required and name not in found]
    for name, value in found.items():
        if name not in fields:
            sentences.append(f"{where}: {name} is not a field")
        elif not (value is None and not fields[name][1]) and not _is(value, fields[name][0]):
            sentences.append(f"{where}: {name} is {value!r}, not {fields[name][0].__name__}")
    return sentences


def _is(value, kind):
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def read(path):
    """The document in a file. ValueError where it is not of this format."""
    try:
        document = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{path}: is no JSON") from None
    found = misses(document)
    if found:
        raise ValueError(f"{path}: {found[0]}" + (f", and {len(found) - 1} more" if found[1:] else ""))
    return document


def write(path, document):
    """One record a line, so that a change shows as one."""
    head = {name: value for name, value in document.items() if name != "cases"}
    lines = ",\n  ".join(json.dumps(each, ensure_ascii=False) for each in document["cases"])
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2] + f',\n "cases": [\n  {lines}\n ]\n}}\n'
    pathlib.Path(path).write_text(text, encoding="utf-8")
