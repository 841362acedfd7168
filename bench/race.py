#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Races PyTorch, ONNX Runtime and NumPy against heed on this machine, in turns, on the cases of `heed bench`.

heed is its Python package, in the process of its rivals and on PyTorch's tensors. Every result is compared with float64 before it
is timed; a wrong one gets no figure and ends the race with status 1. A contestant that offers several ways runs its fastest.
A ratio is the rival's time over heed's, the median of turns: above 1, heed is faster. The one at best is of the least times, which
a machine with neighbours disturbs less than medians.

    pip install . -r bench/requirements.txt
    python bench/race.py --json race.json
    python bench/race.py --suite cuda --json race.json    # on a GPU; heed is built with -DHEED_CUDA=ON

A projection is one of the four of a layer with a little attention between them, for everybody; a quarter of its time is shown.
--suite calls --every-way shows what a small call costs from Python, way by way.
"""

import argparse
import dataclasses
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

import cases
import records

RIVALS = {"cpu": ("torch", "torch-regrouped", "onnxruntime", "numpy"), "cuda": ("torch", "cudnn", "flash", "efficient")}
HOPELESS = 10  # a rival this many times slower than heed has one turn


def options_of(arguments):
    suites = (*cases.suites(), "all")
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", choices=suites, default="quick", help="of cli/bench/cases.txt; default: %(default)s")
    parser.add_argument("--filter", default="", help="the cases whose name matches this regular expression")
    every = " or, of cuda, ".join(",".join(names) for names in RIVALS.values())
    parser.add_argument("--rivals", help=f"comma-separated; default: {every}")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="turns that each contestant has; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn; default: %(default)s")
    parser.add_argument("--every-way", action="store_true", help="not the fastest way of each contestant, but all")
    parser.add_argument("--heed", default=shutil.which("heed"), help="the tool, for the machine's limits; default: the one on the PATH")
    parser.add_argument("--json", metavar="FILE", help="also write everything there, as records.py says")
    options = parser.parse_args(arguments)
    options.device = "cuda" if options.suite == "cuda" else "cpu"
    options.rivals = options.rivals.split(",") if options.rivals else list(RIVALS[options.device])
    check(parser, options)
    return options


def check(parser, options):
    """Before a race that takes minutes."""
    known = RIVALS[options.device]
    unknown = set(options.rivals) - set(known)
    if unknown:
        parser.error(f"--rivals: {', '.join(sorted(unknown))}: not one of {', '.join(known)}")
    for name in ("threads", "rounds"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: {getattr(options, name)} is less than 1")
    if not 0 < options.seconds < math.inf:
        parser.error(f"--seconds: {options.seconds} is no time to run")
    try:
        re.compile(options.filter)
    except re.error as error:
        parser.error(f"--filter: {options.filter} is no regular expression: {error}")
    if options.heed and not shutil.which(options.heed):
        parser.error(f"--heed: {options.heed} is not there, or cannot be run")
    if options.json and not os.access(os.path.dirname(options.json) or ".", os.W_OK):
        parser.error(f"--json: {options.json} cannot be written")


def on_cpu(options):
    """An empty run with what the tool says of the machine, where there is one."""
    if not options.heed:
        return records.run("", {"name": "unknown", "threads": options.threads}, {})
    words = [options.heed, "bench", "--suite", "limits", "--threads", str(options.threads), "--json"]
    ended = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"race: {shlex.join(words)} ended with status {ended.returncode}")
    return json.loads(ended.stdout)


def on_cuda(_options):
    """An empty run with the rates of a product of matrices and of a copy, bytes read and written, by PyTorch: the limits here."""
    import torch
    from turns import OnCuda

    clock = OnCuda(0.05)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = clock.ready(lambda: a @ b)
    source = torch.empty(1 << 31, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    copy = clock.ready(lambda: target.copy_(source))
    seconds = {name: min(clock.turn(graph)[0] for _ in range(5)) for name, graph in (("product", product), ("copy", copy))}
    limits = {
        "bf16_flops": {"all_threads": 2 * 8192**3 / seconds["product"], "instruction": "a product of 8192 x 8192 by PyTorch"},
        "dram_bytes_per_second": {"all_threads": 2 * source.numel() / seconds["copy"]},
    }
    return records.run("", {"name": torch.cuda.get_device_name(), "threads": 1}, {"cudnn": str(torch.backends.cudnn.version())}, limits)


def inputs_of(case, device):
    if device == "cpu":
        import problem

        return problem.inputs_of(case)
    import torch
    from contestant_torch import TORCH_TYPE
    from problem import shapes_of

    torch.manual_seed(0)
    made = {}
    for name, (shape, scale) in shapes_of(case).items():
        # Heads lie inside the length, as projections leave them; a decoding step finds them in a cache, the other way round.
        is_inside = case.role == "prefill" and len(shape) == 4
        memory = (shape[0], shape[2], shape[1], shape[3]) if is_inside else shape
        array = torch.randn(memory, device=device, dtype=TORCH_TYPE[case.dtype]) * scale
        made[name] = array.transpose(1, 2) if is_inside else array
    return made


@dataclasses.dataclass
class Contestant:
    """One way of one library, or why there is none."""

    by: str
    how: str | None = None
    ready: object = None  # what the clock runs
    error: float | None = None  # of a result, as a share of its row's largest; beyond the tolerance it is wrong
    checked: int = 0  # elements
    remark: str = ""
    turns: list = dataclasses.field(default_factory=list)  # seconds of each call, turn by turn

    @property
    def seconds(self):
        return [seconds for turn in self.turns for seconds in turn]


def load(options):
    """{name: (module, ways)} of those that are installed, heed first."""
    loaded = {}
    for name in ("heed", *options.rivals):
        module_name = "torch" if name in ("torch-regrouped", "cudnn", "flash", "efficient") else name
        try:
            module = importlib.import_module("contestant_" + module_name)
        except ImportError as missing:
            if name == "heed":
                sys.exit(f"race: heed's package is not installed ({missing})")
            print(f"{name}: skipped, it is not installed ({missing})")
            continue
        ways = module.ways
        if name == "torch-regrouped":
            ways = module.regrouped_ways
        elif module_name != name:
            ways = lambda case, arrays, _, backend=name, of=module.backend_ways: of(backend, case, arrays)  # noqa: E731
        elif options.device == "cuda" and name == "torch":  # of attention alone its backends are contestants
            ways = lambda case, arrays, threads, of=module.ways: of(case, arrays, threads) if case.role == "layer" else ()  # noqa: E731
        loaded[name] = (module, ways)
    return loaded


def right_ways(by, loaded, case, field):
    """The contestants that are right, and those that are not with a remark. No way at all: none."""
    from problem import TOLERANCE, checked_elements, largest_error

    module, ways = loaded
    checked, found = checked_elements(field["expected"]), []
    try:
        for how, run in ways(case, field["arrays"], field["threads"]):
            result = getattr(module, "to_array", lambda given, _: given)(run(), case)
            error = largest_error(field["expected"], result)
            if error <= TOLERANCE[case.dtype]:
                found.append(Contestant(by, how, field["clock"].ready(run), error, checked))
            else:
                found.append(Contestant(by, how, error=error, checked=checked))
    except (NotImplementedError, RuntimeError) as refusal:
        if not found:
            return [Contestant(by, remark=str(refusal).splitlines()[0][:100])]
    return found


def chosen_ways(found, clock, every_way):
    """The fastest of the right ones, or all; the wrong ones always, so that they are seen."""
    right = [each for each in found if each.ready is not None]
    if len(right) > 1 and not every_way:
        right = [min(right, key=lambda each: min(clock.turn(each.ready)))]
    return right + [each for each in found if each.error is not None and each.ready is None] if right else found


def race_case(case, loaded, clock, options):
    """The case's contestants with their times, heed first."""
    from problem import expected_rows

    arrays = inputs_of(case, options.device)
    field = {"arrays": arrays, "expected": expected_rows(case, arrays), "threads": options.threads, "clock": clock}
    contestants = []
    for by, each in loaded.items():
        contestants += chosen_ways(right_ways(by, each, case, field), clock, options.every_way)
    take_turns(contestants, clock, options.rounds)
    if case.role == "projection":
        for each in contestants:
            each.turns = [[s / cases.PROJECTIONS_OF_A_LAYER for s in turn] for turn in each.turns]
    return contestants


def take_turns(contestants, clock, rounds):
    ours = contestants[0]
    for _ in range(rounds):
        for each in contestants:
            is_hopeless = each.turns and each.turns[0][0] > HOPELESS * ours.turns[0][0]
            if each.ready is not None and not is_hopeless:
                each.turns.append(clock.turn(each.ready))


def records_of(case, contestants, limits):
    """The first is heed, which the others are compared with."""
    ours, made = contestants[0], []
    for each in contestants:
        if each.error is None:  # it does not take the case
            continue
        error = each.error if math.isfinite(each.error) else None
        more = {"error": error, "checked_elements": each.checked, "turns": len(each.turns)}
        record = records.record(case.name, each.by, each.how, each.seconds, **more)
        if each is not ours and ours.turns and each.turns:
            pairs = zip(each.turns, ours.turns)
            record["ratio"] = statistics.median(statistics.median(t) / statistics.median(o) for t, o in pairs)
            record["best_ratio"] = min(each.seconds) / min(ours.seconds)
        made.append(record | share_of(case, record, limits))
    return made


def share_of(case, record, limits):
    """Of a GPU's limits; those of a CPU are for `heed bench`, which measures them in turns with the case."""
    limit = "dram" if case.bytes is not None else case.dtype
    rate = (limits or {}).get(f"{limit}_bytes_per_second" if limit == "dram" else f"{limit}_flops")
    if rate is None or "one_thread" in rate or "flops" not in record and "bytes_per_second" not in record:
        return {}
    return {"limit": limit, "share_of_limit": record.get("flops", record.get("bytes_per_second")) / rate["all_threads"]}


def show(case, contestants, made):
    print(case.name)
    for record in made:
        ratio = f"{record['ratio']:8.2f} x, {record['best_ratio']:.2f} at best" if "ratio" in record else ""
        time = f"{1e3 * record['median_seconds']:10.4g} ms" if record["right"] else "     WRONG"
        error = math.inf if record["error"] is None else record["error"]
        print(f"    {record['by']:16} {time}  error {error:.1e}{ratio}  ({record['how']})")
    for each in contestants:
        if each.error is None and each.remark:
            print(f"    {each.by:16} {each.remark}")
    sys.stdout.flush()


def main(arguments):
    options = options_of(arguments)
    # Before NumPy is imported: its BLAS reads them once.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(options.threads)
    chosen = [case for case in cases.raced(options.suite) if re.search(options.filter, case.name)]
    if not chosen:
        sys.exit(f"race: --filter {options.filter} matches no case of {options.suite}")
    import turns

    loaded = load(options)
    clock = (turns.OnCuda if options.device == "cuda" else turns.OnCpu)(options.seconds)
    document = (on_cuda if options.device == "cuda" else on_cpu)(options)
    document["command"] = shlex.join(["bench/race.py", *arguments])
    document["versions"] |= {name: str(module.version()) for name, (module, _) in loaded.items()}
    for case in chosen:
        contestants = race_case(case, loaded, clock, options)
        made = records_of(case, contestants, document["limits"])
        show(case, contestants, made)
        document["cases"] += made
        if options.json:  # whoever ends the race early has what there is
            records.write(options.json, document)
    for rival in loaded:
        ratios = [record["ratio"] for record in document["cases"] if record["by"] == rival and "ratio" in record]
        if ratios:
            print(f"median of {len(ratios)} ratios to {rival}: {statistics.median(ratios):.2f}")
    return 0 if all(record["right"] for record in document["cases"]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
