#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Races PyTorch, ONNX Runtime and NumPy against heed on this machine, alternately, on the cases of `heed bench`.

Every round runs heed and then each rival on the same case, so that whatever else the machine does meets all of
them. heed's result is compared with its reference by `heed bench` itself, a rival's with float64; a wrong result
gets no figure and ends the race with status 1. A ratio above 1 means that heed is faster; the one at best is of
the least times of all rounds, which a machine with neighbours disturbs less than medians.

    python3 -m venv build/race && build/race/bin/pip install -r bench/requirements.txt
    build/race/bin/python bench/race.py --heed build/release/bin/heed --quick --json race.json
    python3 bench/table.py race.json

--mode says how they alternate. "tool", unless said: heed is its tool, in a process of its own. "blocks" and
"turns": heed is its Python package, in the process of the rivals and handed PyTorch's tensors, which is how a
program has both; in each round every contestant runs for its time in one piece, or they take turns call by call.
The package has no projection alone: there all run a layer of four with a little attention between them, and a
quarter of its time is shown.
"""

import argparse
import datetime
import importlib
import json
import math
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time

from times import LONG, seconds_of, take_turns, times_of

RIVALS = ("torch", "torch-regrouped", "onnxruntime", "numpy")
# What --quick races: one case of every kind that the other options race at length.
QUICK = re.compile(
    r"prefill/f32/2x12x6x.*|layer/f32/2x12x6x.*|prefill/(f32|bf16)/1x12x12x[^/]*|prefill/f32/1x16x16x.*"
    r"|prefill/f32/1x12x12x.*/causal|prefill/f32/1x32x8x.*/causal|(backward|training)/f32/.*"
    r"|decode/(f32|bf16)/1x32x8x1x32768x128|projection/f32/.*"
)
TRAINING = ["training/f32/2x12x6x1024x1024x64"]  # the seeds' layer, there and back
NOT_FOR_THIS = "not for this case"
HOPELESS = 10  # a rival this many times slower than heed runs in the first round only


def options_of(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--heed", default=os.environ.get("HEED_TOOL", "build/release/bin/heed"), help="the tool"
    )
    parser.add_argument("--rivals", default=",".join(RIVALS), help="comma-separated; default: %(default)s")
    parser.add_argument(
        "--filter", default="", help="the cases whose name matches this regular expression; default: all, few if quick"
    )
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: %(default)s"
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument(
        "--mode", choices=("tool", "blocks", "turns"), default="tool", help="how they alternate"
    )
    parser.add_argument(
        "--seconds", type=float, help="per case, round and rival; default: 0.5, 0.15 if quick"
    )
    parser.add_argument("--runs", type=int, default=1, help="of each in a round, at least; default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter cases: under three minutes")
    parser.add_argument("--json", metavar="FILE", help="also write everything there")
    options = parser.parse_args(arguments)
    if options.seconds is None:
        options.seconds = 0.15 if options.quick else 0.5
    check(parser, options)
    return options


def check(parser, options):
    """Before a race that takes minutes."""
    unknown = set(options.rivals.split(",")) - set(RIVALS)
    if unknown:
        parser.error(f"--rivals: {', '.join(sorted(unknown))}: not one of {', '.join(RIVALS)}")
    for name in ("threads", "rounds", "runs"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: {getattr(options, name)} is less than 1")
    if not 0 < options.seconds < math.inf:
        parser.error(f"--seconds: {options.seconds} is no time to run")
    try:
        re.compile(options.filter)
    except re.error as error:
        parser.error(f"--filter: {options.filter} is no regular expression: {error}")
    if not shutil.which(options.heed):
        parser.error(f"--heed: {options.heed} is not there, or cannot be run")
    if options.json and not os.access(os.path.dirname(options.json) or ".", os.W_OK):
        parser.error(f"--json: {options.json} cannot be written")


def heed(options, *words):
    """The object that a command of the tool prints, and whether the command was content."""
    command = [options.heed, *words, "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode not in (0, 1):
        sys.exit(f"race: {shlex.join(command)} ended with status {ended.returncode}")
    return json.loads(ended.stdout), ended.returncode == 0


def cases_of(options):
    size = ["--quick"] if options.quick else []
    names = heed(options, "bench", "--suite", "all", "--list", *size)[0]["cases"]
    # Rivals have no caches; what a bias or a mask costs is shown beside the case without one.
    names = [name for name in names if not re.match("(cache|step)/|.*/(bias|keep)$", name)]
    if options.mode != "tool":  # autograd is the package's
        names += TRAINING
    if options.quick and not options.filter:
        return [name for name in names if QUICK.fullmatch(name)]
    return [name for name in names if re.search(options.filter, name)]


def load_rivals(options):
    """{name: (module, function that yields its ways)} of those that are installed."""
    loaded = {}
    for name in options.rivals.split(","):
        module_name = "rival_" + name.partition("-")[0]
        try:
            module = importlib.import_module(module_name)
        except ImportError as missing:
            print(f"{name}: skipped, it is not installed ({missing})")
            continue
        loaded[name] = (module, module.regrouped_ways if name == "torch-regrouped" else module.ways)
    return loaded


def tool_times(options, name):
    """((median, least), kernel) of one case, or None if its result is wrong; heed has said so on stderr."""
    size = ["--quick"] if options.quick else []
    answer, is_right = heed(
        options, "bench", "--suite", "all", "--filter", f"^{name}$", "--skip-limits", *size,
        "--threads", str(options.threads), "--seconds", str(options.seconds),
    )  # fmt: skip
    case = answer["cases"][0]
    return ((case["median_seconds"], case["min_seconds"]), case["kernel"]) if is_right else None


def right_ways(rival, case, threads):
    """[(seconds, way, run)] of the ways whose result is right, a sentence for every wrong one, and the refusal if
    the rival does not take the case at all."""
    from problem import misses

    module, ways = rival
    right, remarks = [], []
    try:
        for way, run in ways(case["problem"], case["arrays"], threads):
            start = time.perf_counter()
            result = run()
            first = time.perf_counter() - start
            off = misses(case["problem"], case["expected"], module.to_array(result, case["problem"]))
            if off:
                remarks.append(f"{way}: {off} elements of the sampled rows are wrong")
            else:
                right.append((first if first > LONG else seconds_of(run), way, run))
    except (NotImplementedError, RuntimeError) as refusal:
        if not right:
            return [], [], str(refusal)
    return right, remarks, None


def fastest_way(rival, case, threads):
    """{"way", "run"} of the rival's fastest right way, {"wrong"} if all ways err, {"skipped"} if it has none."""
    right, remarks, refusal = right_ways(rival, case, threads)
    if right:
        _, way, run = min(right, key=lambda found: found[0])
        return {"way": way, "run": run, "seconds": [], "least": [], "remarks": remarks}
    return {"wrong": "; ".join(remarks)} if remarks else {"skipped": refusal or NOT_FOR_THIS}


def rival_heed():
    return importlib.import_module("rival_heed")


def race_round(options, record, runners, package):
    """Adds everybody's times of one round; False if heed's result is wrong."""
    ours = tool_times(options, record["name"]) if package is None else (None, package.get("way"))
    if ours is None or (package is not None and "run" not in package):
        return False
    record["kernel"] = ours[1]
    first = record["heed_seconds"][:1]
    racing = {
        rival: runner
        for rival, runner in runners.items()
        if "run" in runner and not (runner["seconds"] and runner["seconds"][0] > HOPELESS * first[0])
    }
    if options.mode == "turns":
        runs = {rival: runner["run"] for rival, runner in racing.items()}
        times = take_turns({"heed": package["run"]} | runs, options)
    else:
        times = {"heed": ours[0] if package is None else times_of(package["run"], options)}
        times |= {rival: times_of(runner["run"], options) for rival, runner in racing.items()}
    times = {name: [seconds / record["cases_of_a_run"] for seconds in pair] for name, pair in times.items()}
    median, least = times.pop("heed")
    record["heed_seconds"].append(median)
    record["heed_least"].append(least)
    for rival, (median, least) in times.items():
        racing[rival]["seconds"].append(median)
        racing[rival]["least"].append(least)
    return True


def race_case(options, name, rivals):
    """The case's record: heed's times and each rival's, round by round."""
    from problem import PROJECTIONS_OF_A_LAYER, expected_rows, in_a_layer, inputs_of, parse

    problem = parse(name)
    is_in_a_layer = problem.role == "projection" and options.mode != "tool"
    if is_in_a_layer:
        problem = in_a_layer(problem)
    arrays = inputs_of(problem)
    case = {"problem": problem, "arrays": arrays, "expected": expected_rows(problem, arrays)}
    runners = {rival: fastest_way(rivals[rival], case, options.threads) for rival in rivals}
    record = {"name": name, "kernel": None, "heed_seconds": [], "heed_least": [], "rivals": {}, "right": True}
    record["cases_of_a_run"] = PROJECTIONS_OF_A_LAYER if is_in_a_layer else 1
    package = None
    if options.mode != "tool":
        package = fastest_way((rival_heed(), rival_heed().ways), case, options.threads)
    for _ in range(options.rounds):
        if not race_round(options, record, runners, package):
            record["right"] = False
            break
    for rival, runner in runners.items():
        runner.pop("run", None)
        pairs = zip(runner.get("seconds", []), record["heed_seconds"])
        ratios = [theirs / ours for theirs, ours in pairs]
        if ratios:
            best = min(runner["least"]) / min(record["heed_least"])
            runner |= {"ratio": statistics.median(ratios), "best_ratio": best}
        record["rivals"][rival] = runner
        record["right"] &= "wrong" not in runner
    return record


def show(record):
    if not record["heed_seconds"]:
        print(f"{record['name']}: heed's result is wrong")
        return
    print(
        f"{record['name']}: heed {1e3 * statistics.median(record['heed_seconds']):.3f} ms ({record['kernel'] or '-'})"
    )
    for rival, found in record["rivals"].items():
        if "ratio" in found:
            milliseconds = 1e3 * statistics.median(found["seconds"])
            times = f"{milliseconds:10.3f} ms, {found['best_ratio']:.2f} at best"
            print(f"    {found['ratio']:6.2f} x {rival:16} {times} ({found['way']})")
            for remark in found["remarks"]:
                print(f"           {rival:16} left out {remark}")
        elif found.get("skipped") != NOT_FOR_THIS:
            print(f"           {rival:16} " + (found.get("skipped") or "WRONG: " + found["wrong"]))
    sys.stdout.flush()


def median_ratios(records):
    """{rival: (median of its ratios, how many)}"""
    ratios = {}
    for record in records:
        for rival, found in record["rivals"].items():
            if "ratio" in found:
                ratios.setdefault(rival, []).append(found["ratio"])
    return {rival: (statistics.median(values), len(values)) for rival, values in ratios.items()}


def main(arguments):
    options = options_of(arguments)
    # Before NumPy is imported: its BLAS reads them once.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    names = cases_of(options)
    if not names:
        sys.exit(f"race: --filter {options.filter} matches no case")
    rivals = load_rivals(options)
    start = time.monotonic()
    doctor = heed(options, "doctor")[0]
    machine = heed(options, "bench", "--suite", "limits", "--threads", str(options.threads))[0]
    records = []
    for name in names:
        records.append(race_case(options, name, rivals))
        show(records[-1])
    medians = median_ratios(records)
    for rival, (ratio, count) in medians.items():
        print(f"median of {count} ratios to {rival}: {ratio:.2f}")
    if options.json:
        document = {
            "date": datetime.date.today().isoformat(),
            "command": shlex.join(["bench/race.py", *arguments]),
            "seconds": round(time.monotonic() - start, 1),
            "cpu": doctor["cpu"],
            "compiler": doctor["compiler"],
            "machine": machine["machine"],
            "limits": machine["limits"],
            "versions": {"heed": doctor["version"]} | {rival: rivals[rival][0].version() for rival in rivals},
            "cases": records,
            "median_ratios": {rival: ratio for rival, (ratio, _) in medians.items()},
        }
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
            file.write("\n")
    return 0 if all(record["right"] for record in records) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
