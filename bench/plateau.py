#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a list of calls on a GPU, each in turns with the fastest of PyTorch's backends that takes it: is there one that falls?

The list has every option by itself and the pairs that models use, heads of 32 to 256 in steps of 8, values of another width,
caches, and 1 to 512 queries over a long context. Every result is compared with float64 before it is timed, and a wrong one ends
the run with status 1. A ratio is PyTorch's time over heed's. A share is heed's rate over that of the plain call with heads of the
same size: operations a second, where each query sees what it sees; of one query, bytes of keys and values a second. Calls of 2 to
256 queries have none: neither operations nor bytes bound them.

    python bench/plateau.py --json plateau.json       # heed is built with -DHEED_CUDA=ON
"""

import argparse
import dataclasses
import functools
import math
import re
import shlex
import statistics
import sys
import warnings

import records

SAMPLES = 6
TOLERANCE = 1e-1  # of a checked element, as a share of its row's largest (problem.py)
PAGE = 64
PLAIN = "plain"


@dataclasses.dataclass(frozen=True)
class Call:
    """Options are names of functions below; `cache` is None, "bfloat16" or "int8"."""

    group: str
    options: tuple = ()
    batch: int = 1
    heads: int = 32
    kv_heads: int = 8
    queries: int = 4096
    keys: int = 4096
    dim: int = 128
    value_dim: int = 0  # 0: as dim
    cache: str | None = None
    dtype: str = "bfloat16"

    @property
    def widths(self):
        return self.dim, self.value_dim or self.dim

    @property
    def name(self):
        shape = "x".join(str(n) for n in (self.batch, self.heads, self.kv_heads, self.queries, self.keys, *dict.fromkeys(self.widths)))
        pages = {None: (), "bfloat16": ("pages",), "int8": ("int8 pages",)}[self.cache]
        kind = {"bfloat16": "bf16", "float16": "f16"}[self.dtype]
        return "/".join((kind, shape, " + ".join((*self.options, *pages)) or PLAIN))

    @property
    def is_bound_by_memory(self):
        return self.queries == 1

    @property
    def has_share(self):
        return self.is_bound_by_memory or self.queries >= 512


def calls():
    causal = ("causal",)
    yield from (Call("options"), Call("options", causal), Call("options", dtype="float16"), Call("options", causal, dtype="float16"))
    alone = ("bias", "bias of heads", "keep", "padding", "lengths", "window", "documents")
    yield from (Call("options", (option,)) for option in alone)
    yield from (Call("options", ("causal", option)) for option in ("dropout", "alibi", "softcap", "sink", "log-sum-exp"))
    yield from (Call("pairs", ("causal", option)) for option in ("keep", "padding", "bias"))
    yield from (Call("pairs", ("window", option)) for option in ("softcap", "sink", "padding", "documents"))
    yield from (Call("pairs", ("causal", "padding", option)) for option in ("softcap", "alibi", "dropout"))
    yield from (Call("heads", causal, dim=dim) for dim in range(32, 257, 8) if dim != 128)
    yield from (Call("heads", dim=dim) for dim in (64, 80, 96, 192, 256))
    yield from (Call("heads", causal, dim=dim, value_dim=width) for dim, width in ((192, 128), (64, 128), (128, 64), (512, 0), (100, 0)))
    yield from (Call("heads", causal, kv_heads=kv_heads) for kv_heads in (1, 32))
    for queries in (512, 2048):
        yield from (Call("caches", ("causal ends",), queries=queries, keys=8192, cache=cache) for cache in (None, "bfloat16", "int8"))
    yield from (Call("caches", ("causal ends",), queries=512, keys=8192, dim=dim, cache="bfloat16") for dim in (64, 96, 256))
    yield from (Call("few queries", queries=queries, keys=8192) for queries in (2, 4, 8, 16, 32, 64, 128, 256, 512))
    yield from (Call("few queries", queries=queries, keys=8192, cache=cache) for queries in (16, 128) for cache in ("bfloat16", "int8"))
    for dim in (64, 80, 96, 128, 256):
        yield from (Call("one query", batch=64, queries=1, dim=dim, cache=cache) for cache in (None, "bfloat16"))
    yield from (Call("one query", batch=64, queries=1, dim=dim, cache="int8") for dim in (64, 96, 128, 256))
    yield from (Call("one query", queries=1, keys=32768), Call("one query", batch=64, kv_heads=1, queries=1))
    yield from (Call("one query", (option,), batch=64, queries=1) for option in ("lengths", "padding", "window"))


# What an option is, for heed, for PyTorch and for the float64 that judges both.


class Inputs:
    """Tensors of a call. Heads lie inside the length, as projections leave them; one query finds them in a cache, the other way
    round."""

    def __init__(self, call):
        import torch

        self.call, self.torch = call, torch
        torch.manual_seed(0)
        dtype = getattr(torch, call.dtype)
        dim, value_dim = call.widths

        def made(heads, length, width):
            shape = (call.batch, heads, length, width) if call.queries == 1 else (call.batch, length, heads, width)
            x = torch.randn(shape, device="cuda", dtype=dtype)
            return x if call.queries == 1 else x.transpose(1, 2)

        self.q = made(call.heads, call.queries, dim)
        self.k, self.v = (made(call.kv_heads, call.keys, width) for width in (dim, value_dim))

    def random(self, *shape):
        generator = self.torch.Generator("cuda").manual_seed(1)
        return self.torch.randn(shape, device="cuda", generator=generator)

    def range(self, count):
        return self.torch.arange(count, device="cuda")

    @property
    def distance(self):
        """Of a query to a key before it; queries stand at the end of the keys."""
        first = self.call.keys - self.call.queries
        return (self.range(self.call.queries) + first)[:, None] - self.range(self.call.keys)

    @functools.cached_property
    def bias(self):
        return self.random(1, 1, self.call.queries, self.call.keys).to(self.q.dtype)

    @functools.cached_property
    def bias_of_heads(self):
        return self.random(1, self.call.heads, self.call.queries, self.call.keys).to(self.q.dtype)

    @functools.cached_property
    def keep(self):
        return self.random(1, 1, self.call.queries, self.call.keys) > -1

    @functools.cached_property
    def padding(self):
        return (self.range(self.call.keys) >= self.call.keys // 16)[None, None, None]

    @property
    def length(self):
        return self.call.keys - self.call.keys // 16

    @functools.cached_property
    def slopes(self):
        return 2.0 ** (-8.0 * (self.range(self.call.heads) + 1) / self.call.heads)

    @functools.cached_property
    def sinks(self):
        return self.random(self.call.heads)

    @property
    def document(self):
        return self.range(self.call.keys) // 512


WINDOW, SOFTCAP, DROPOUT, SEED = 1024, 30.0, 0.1, 5


@dataclasses.dataclass(frozen=True)
class Option:
    """Functions of the inputs: heed's arguments; which keys a query sees, (queries, keys); what is added to scores, (heads, queries,
    keys). PyTorch gets a mask of the last two."""

    heed: object
    seen: object = None
    added: object = None


OPTIONS = {
    "causal": Option(lambda x: {"causal": "starts"}, seen=lambda x: x.distance >= 0),
    "causal ends": Option(lambda x: {"causal": "ends"}, seen=lambda x: x.distance >= 0),
    "window": Option(lambda x: {"window": (WINDOW, 0, "ends")}, seen=lambda x: (x.distance >= 0) & (x.distance <= WINDOW)),
    "keep": Option(lambda x: {"keep": x.keep}, seen=lambda x: x.keep[0, 0]),
    "padding": Option(lambda x: {"keep": x.padding}, seen=lambda x: x.padding[0, 0]),
    "lengths": Option(lambda x: {"key_lengths": [x.length] * x.call.batch}, seen=lambda x: (x.range(x.call.keys) < x.length)[None]),
    "documents": Option(
        lambda x: {"causal": "starts", "document": x.document.tolist()},
        seen=lambda x: (x.document[:, None] == x.document) & (x.distance >= 0),
    ),
    "bias": Option(lambda x: {"bias": x.bias}, added=lambda x: x.bias[0]),
    "bias of heads": Option(lambda x: {"bias": x.bias_of_heads}, added=lambda x: x.bias_of_heads[0]),
    "alibi": Option(lambda x: {"alibi": x.slopes.tolist()}, added=lambda x: -x.slopes[:, None, None] * x.distance.abs()),
    "softcap": Option(lambda x: {"softcap": SOFTCAP}),
    "dropout": Option(lambda x: {"dropout": DROPOUT, "seed": SEED}),
    "sink": Option(lambda x: {"sink": x.sinks}),
    "log-sum-exp": Option(lambda x: {"return_lse": True}),
}


def seen_by(inputs):
    """(queries, keys), or None where every query sees every key."""
    found = [OPTIONS[name].seen(inputs) for name in inputs.call.options if OPTIONS[name].seen]
    return functools.reduce(lambda a, b: a & b, found) if found else None


def added_to(inputs):
    found = [OPTIONS[name].added(inputs) for name in inputs.call.options if OPTIONS[name].added]
    return found[0] if found else None


# Contestants.


def heed_way(inputs):
    """(kernel, run)"""
    import heed

    call = inputs.call
    options = {key: value for name in call.options for key, value in OPTIONS[name].heed(inputs).items()}
    keys = {"k": inputs.k, "v": inputs.v}
    if call.cache:
        dim, value_dim = call.widths
        held = {"quantize": "int8"} if call.cache == "int8" else {"dtype": call.cache}
        cache = heed.KvCache(call.batch, call.kv_heads, call.keys, dim, value_dim=value_dim, page_size=PAGE, device="cuda", **held)
        cache.append(inputs.k, inputs.v)
        keys = {"cache": cache}
    planned = heed.plan(inputs.q, **keys, **options)
    kernel = next(verdict.kernel for verdict in planned if verdict.choice == "taken")
    if "return_lse" in options:
        return kernel, lambda: heed.attention(inputs.q, **keys, **options)[0]
    return kernel, lambda: heed.attention(inputs.q, **keys, **options)


def torch_ways(inputs):
    """{backend: run}. What PyTorch has no argument for is a mask of booleans, or a bias; a softcap and a sink it does not have at
    all, so that its time is that of the call without them."""
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    call = inputs.call
    arguments = {"enable_gqa": call.heads != call.kv_heads, "dropout_p": DROPOUT if "dropout" in call.options else 0.0}
    rest = [name for name in call.options if OPTIONS[name].seen or OPTIONS[name].added]
    if rest == ["causal"]:
        arguments["is_causal"] = True
    elif rest == ["causal ends"]:
        arguments["attn_mask"] = causal_lower_right(call.queries, call.keys)
    elif rest:
        arguments["attn_mask"] = torch_mask(inputs)

    def with_backend(backend):
        def run():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, **arguments)

        return run

    names = {"cudnn": "CUDNN_ATTENTION", "flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
    return {name: with_backend(getattr(SDPBackend, of)) for name, of in names.items()}


def torch_mask(inputs):
    """(1, 1 or heads, 1 or queries, keys), boolean or a bias."""
    seen, added = seen_by(inputs), added_to(inputs)
    if added is None:
        return seen[None, None]
    added = added.to(inputs.q.dtype)
    return (added if seen is None else added.masked_fill(~seen, -math.inf))[None]


# Judgement.


def expected_rows(inputs):
    """[((entry, head, query), float64 row)], spread over the result."""
    call, torch = inputs.call, inputs.torch
    if "dropout" in call.options:
        return rows_of_f32(inputs)
    seen, added = seen_by(inputs), added_to(inputs)
    found = []
    for b, h, i in sampled(call):
        kv_head = h // (call.heads // call.kv_heads)
        scores = inputs.k[b, kv_head].double() @ inputs.q[b, h, i].double() / math.sqrt(call.dim)
        if "softcap" in call.options:
            scores = SOFTCAP * torch.tanh(scores / SOFTCAP)
        if added is not None:
            scores += added[h if len(added) > 1 else 0, i].double()
        if seen is not None:
            scores = scores.masked_fill(~seen[i if len(seen) > 1 else 0], -math.inf)
        if "sink" in call.options:
            scores = torch.cat([scores, inputs.sinks[h : h + 1].double()])
        weights = torch.softmax(scores, 0)[: call.keys].nan_to_num(0.0)  # a query that sees no key has 0
        found.append(((b, h, i), weights @ inputs.v[b, kv_head].double()))
    return found


def rows_of_f32(inputs):
    """Which weights drop is heed's own choice: its kernel that computes with f32 as the CPU does judges."""
    import heed

    options = {key: value for name in inputs.call.options for key, value in OPTIONS[name].heed(inputs).items()}
    out = heed.attention(inputs.q.float(), inputs.k.float(), inputs.v.float(), **options)
    return [(index, out[index].double()) for index in sampled(inputs.call)]


def sampled(call):
    rows = call.batch * call.heads * call.queries
    for row in sorted({n * (rows - 1) // (SAMPLES - 1) for n in range(SAMPLES)}):
        yield row // (call.heads * call.queries), row // call.queries % call.heads, row % call.queries


def largest_error(expected, result):
    errors = [((result[index].double() - row).abs().max() / row.abs().max().clamp(min=1e-9)).item() for index, row in expected]
    return max(errors) if all(math.isfinite(error) for error in errors) else math.inf


def work_of(inputs):
    """{"operations": …} of the products that masks of ranges leave, or {"bytes": …}."""
    call, seen = inputs.call, seen_by(inputs)
    pairs = call.queries * call.keys if seen is None or "keep" in call.options else seen.expand(call.queries, call.keys).sum().item()
    if call.is_bound_by_memory:
        element = 1 if call.cache == "int8" else 2
        scales = 8 if call.cache == "int8" else 0
        return {"bytes": float(call.batch * call.kv_heads * pairs * (sum(call.widths) * element + scales))}
    return {"operations": 2.0 * call.batch * call.heads * pairs * sum(call.widths)}


def fastest_of_torch(inputs, clock):
    """(backend, what a turn takes) of those that take the call; a slow one that needs much memory only where no other does."""
    ways = torch_ways(inputs)
    found = {}
    for name in ("cudnn", "flash", "efficient", "math"):
        if name == "math" and found:
            break
        try:
            ready = clock.ready(ways[name])
            found[name] = (min(clock.turn(ready)[0] for _ in range(2)), ready)
        except (RuntimeError, inputs.torch.OutOfMemoryError):
            inputs.torch.cuda.synchronize()
    if not found:
        return None, None
    name = min(found, key=lambda each: found[each][0])
    return name, found[name][1]


def timed(call, clock, rounds):
    """Records of heed and of PyTorch."""
    inputs = Inputs(call)
    kernel, run = heed_way(inputs)
    expected = expected_rows(inputs)
    error = largest_error(expected, run())
    more = {"error": error if math.isfinite(error) else None, "checked_elements": sum(row.numel() for _, row in expected), **work_of(inputs)}
    if not error <= TOLERANCE:
        return [records.record(call.name, "heed", kernel, [], **more)]
    ours = clock.ready(run)
    backend, theirs = fastest_of_torch(inputs, clock)
    turns = [(clock.turn(ours)[0], clock.turn(theirs)[0] if theirs else None) for _ in range(rounds)]
    made = [records.record(call.name, "heed", kernel, [own for own, _ in turns], turns=rounds, **more)]
    if theirs:
        record = records.record(call.name, "torch", backend, [other for _, other in turns], turns=rounds)
        record["ratio"] = statistics.median(other / own for own, other in turns)
        record["best_ratio"] = min(other for _, other in turns) / min(own for own, _ in turns)
        made.append(record)
    return made


def add_shares(found):
    """found: {call: records}"""
    plain = {}
    for call, (ours, *_) in found.items():
        if not call.cache and ours["right"] and (call.is_bound_by_memory or set(call.options) <= {"causal"}):
            kind = (call.widths, call.is_bound_by_memory)
            plain[kind] = max(plain.get(kind, 0), ours.get("flops", ours.get("bytes_per_second")))
    for call, (ours, *_) in found.items():
        kind = (call.widths, call.is_bound_by_memory)
        if call.has_share and ours["right"] and kind in plain:
            ours["share_of_plain"] = ours.get("flops", ours.get("bytes_per_second")) / plain[kind]


def shown(call, made):
    ours, others = made[0], made[1:]
    if not ours["right"]:
        return f"{call.name:58} WRONG: error {ours['error']}  ({ours['how']})"
    rate = f"{ours['flops'] * 1e-12:5.0f} TFLOP/s" if "flops" in ours else f"{ours['bytes_per_second'] * 1e-12:5.2f} TB/s   "
    line = f"{call.name:58} {1e6 * ours['median_seconds']:8.1f} us {rate}"
    line += "".join(f" {each['ratio']:6.2f} x {each['how']:9}" for each in others) or " " * 19
    return f"{line} {ours['error']:.0e}  {ours['how']}"


def least(found):
    """Lines for the least of both figures."""
    ratios = {call: made[1]["ratio"] for call, made in found.items() if len(made) > 1}
    shares = {call: made[0]["share_of_plain"] for call, made in found.items() if "share_of_plain" in made[0]}
    for what, figures in (("ratio to PyTorch's fastest", ratios), ("share of the plain call's rate", shares)):
        for call in sorted(figures, key=figures.get)[:8]:
            yield f"{figures[call]:6.2f}  {what}: {call.name}"


def options_of(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--filter", default="", help="the calls whose name matches this regular expression")
    parser.add_argument("--rounds", type=int, default=5, help="turns that each contestant has; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.004, help="of a turn; default: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="also write everything there, as records.py says")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds: {options.rounds} is less than 1")
    if not 0 < options.seconds < math.inf:
        parser.error(f"--seconds: {options.seconds} is no time to run")
    try:
        re.compile(options.filter)
    except re.error as error:
        parser.error(f"--filter: {options.filter} is no regular expression: {error}")
    return options


def main(arguments):
    options = options_of(arguments)
    chosen = [call for call in calls() if re.search(options.filter, call.name)]
    if not chosen:
        sys.exit(f"plateau: --filter {options.filter} matches no call")
    warnings.simplefilter("ignore")  # PyTorch says at every call why a backend does not take it
    import heed
    import torch
    import turns

    clock = turns.OnCuda(options.seconds)
    versions = {"heed": heed.__version__, "torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version())}
    document = records.run("", {"name": torch.cuda.get_device_name(), "threads": 1}, versions)
    document["command"] = shlex.join(["bench/plateau.py", *arguments])
    found = {}
    for call in chosen:
        found[call] = timed(call, clock, options.rounds)
        print(shown(call, found[call]), flush=True)
        add_shares(found)
        document["cases"] = [{**record, "group": call.group} for call, made in found.items() for record in made]
        if options.json:  # whoever ends it early has what there is
            records.write(options.json, document)
    print(*least(found), sep="\n")
    return 0 if all(made[0]["right"] for made in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
