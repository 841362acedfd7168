#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Races the gradients of attention on a GPU: heed against PyTorch's backends, and against its one deterministic way.

Every contestant has a forward pass that is over, and computes the gradients by q, k and v, in turns, by replays of a graph. TFLOP/s are nominal:
10 B H S S D, half of it under a causal mask. Before that come each one's RMS errors against float64 at a length of 512, and
whether ten runs have the same bits. Then come heed's rates under each option beside the same call without it, by the pairs of a query
and a key that see each other; f32; a layer of bf16, forward and backward as one graph, beside PyTorch's operators; and f16 whose gradients by
out are not finite, beside the same call where they are.
What is timed is checked: against each other's gradients, and under an option against float64.

    PYTHONPATH=build/cuda-package python3 bench/gradients_cuda.py --json gradients.json
    HEED_CUDA_ARCH=80 ... --tokens 4096        # the general kernel
"""

import argparse
import json
import statistics
import sys

import heed.torch
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE = "cuda"  # a test of these functions says "cpu"
HEADS = ((64, 8, 128), (32, 32, 128), (64, 64, 64), (32, 8, 256))  # query heads, KV heads, dimensions
LENGTHS = ((4, 1024), (1, 4096), (1, 16384))  # batch, tokens
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "flash deterministic": SDPBackend.FLASH_ATTENTION,
}
CONTESTANTS = ("heed", *BACKENDS)


def forward(contestant, q, k, v, causal):
    options = {"is_causal": causal, "enable_gqa": q.shape[1] != k.shape[1]}
    if contestant == "heed":
        return heed.torch.scaled_dot_product_attention(q, k, v, **options)
    with sdpa_kernel([BACKENDS[contestant]]):
        return F.scaled_dot_product_attention(q, k, v, **options)


class Gradients:
    """The gradients by q, k and v of a forward pass that is over; no contestant that cannot do it."""

    def __init__(self, contestant, tensors, causal):
        *inputs, self.out_gradient = tensors
        self.is_deterministic = contestant == "flash deterministic"
        self.inputs = [x.detach().requires_grad_() for x in inputs]
        self.out = forward(contestant, *self.inputs, causal)

    def __call__(self):
        torch.use_deterministic_algorithms(self.is_deterministic)
        found = torch.autograd.grad(self.out, self.inputs, self.out_gradient, retain_graph=True)
        torch.use_deterministic_algorithms(False)
        return found


def contestants(tensors, causal):
    for name in CONTESTANTS:
        try:
            run = Gradients(name, tensors, causal)
            run()
        except RuntimeError:
            if name == "heed":
                raise
            continue
        yield name, run


def tensors_of(heads, batch, tokens):
    """q, k, v and the gradient by out."""
    query_heads, kv_heads, dim = heads
    torch.manual_seed(batch * tokens)
    shapes = [(batch, count, tokens, dim) for count in (query_heads, kv_heads, kv_heads, query_heads)]
    return [torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for shape in shapes]


def in_float64(tensors, causal):
    *inputs, out_gradient = (x.double() for x in tensors)
    groups = inputs[0].shape[1] // inputs[1].shape[1]
    q, k, v = (x.requires_grad_() for x in inputs)
    with sdpa_kernel([SDPBackend.MATH]):
        out = F.scaled_dot_product_attention(q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), is_causal=causal)
    return torch.autograd.grad(out, (q, k, v), out_gradient)


def errors_of(heads, causal):
    """{contestant: RMS errors of dQ, dK and dV over the RMS of the gradient, and whether ten runs are one}."""
    tensors = tensors_of(heads, 1, 512)
    wanted, found = in_float64(tensors, causal), {}
    for name, run in contestants(tensors, causal):
        first = run()
        rms = [float((x.double() - y).norm() / y.norm()) for x, y in zip(first, wanted, strict=True)]
        same = all(torch.equal(x, y) for _ in range(10) for x, y in zip(first, run(), strict=True))
        found[name] = {"rms": rms, "has_one_answer": same}
    return found


def events():
    return (torch.cuda.Event(enable_timing=True) for _ in range(2))


class Graph:
    """Calls one after another, as a GPU is handed them in training: what the CPU does for one hides behind the one before."""

    def __init__(self, run):
        self.run = run  # has what the graph reads
        begin, end = events()
        run()
        begin.record()
        run()
        end.record()
        end.synchronize()
        self.calls = max(1, min(20, round(12 / begin.elapsed_time(end))))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            for _ in range(self.calls):
                self.made = run()
        self.graph.replay()

    def milliseconds(self):
        begin, end = events()
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / self.calls


def in_turns(graphs, rounds):
    """{name: milliseconds of a call}, the least of the medians of three."""
    turns = [{name: statistics.median(graph.milliseconds() for _ in range(3)) for name, graph in graphs.items()} for _ in range(rounds)]
    return {name: min(turn[name] for turn in turns) for name in graphs}


def check_near(what, found, wanted, most=0.01):
    """Ends the run where one of these tensors is further from its like than that, by their norms."""
    for n, (x, y) in enumerate(zip(found, wanted, strict=True)):
        apart = float((x.detach().double() - y.detach().double()).norm() / y.detach().double().norm())
        if not apart < most:
            sys.exit(f"gradients_cuda: {what}: gradient {n} is {apart:.2g} apart")


def race(heads, batch, tokens, causal, rounds):
    """{contestant: milliseconds}."""
    tensors = tensors_of(heads, batch, tokens)
    graphs = {name: Graph(run) for name, run in contestants(tensors, causal)}
    times = in_turns(graphs, rounds)
    for name, graph in graphs.items():
        check_near(f"heed beside {name}, {heads}, {batch} x {tokens}", graphs["heed"].made, graph.made)
    return times


def show_errors(name, errors):
    for contestant, found in errors.items():
        bits = "one answer" if found["has_one_answer"] else "not the same twice"
        print(f"{name:34}{contestant:20}  RMS errors {' '.join(f'{x:.2e}' for x in found['rms'])}, {bits}")


def show_rates(name, batch, tokens, rates):
    shown = (f"{rates[each]:.0f} TFLOP/s" if each in rates else "-" for each in CONTESTANTS)
    print(f"{name:34}{batch}x{tokens:<6}" + "".join(f"{each:>22}" for each in shown), flush=True)


# Options are measured with one sequence of so many tokens, 32 query heads over 8, of 128.
TOKENS, PART = 4096, 512


def options(tokens):
    """(what, the same without it, keywords, pairs that see each other) of each."""
    starts, causal, of_parts = list(range(0, tokens + 1, PART)), tokens**2 / 2, tokens * PART / 2
    window, matrix = tokens // 4, (tokens, tokens)
    return (
        ("causal", None, {}, causal),
        ("8 x 512 causal", None, {"batch": tokens // PART}, of_parts),
        ("packed 8 x 512", "8 x 512 causal", {"query_starts": starts, "key_starts": starts}, of_parts),
        ("documents 8 x 512", "8 x 512 causal", {"document": [n // PART for n in range(tokens)]}, of_parts),
        ("a window of 1024", "causal", {"window": (window - 1, 0)}, tokens * window - window**2 / 2),
        ("sinks", "causal", {"sink": (32,)}, causal),
        ("softcap", "causal", {"softcap": 30.0}, causal),
        ("a boolean mask", "causal", {"keep": (1, 1, *matrix)}, causal),
        ("a bias for all heads", "causal", {"bias": (1, 1, *matrix)}, causal),
        ("a bias for each head", "causal", {"bias": (1, 32, *matrix)}, causal),
        ("ALiBi", "causal", {"alibi": [2 ** (-(head + 1) / 4) for head in range(32)]}, causal),
        ("dropout", "causal", {"dropout": 0.1, "seed": 7}, causal),
    )


def keywords_of(said):
    """A shape becomes a tensor; one that has a gradient is wanted too."""
    made, extra = {"causal": True}, []
    for key, value in said.items():
        if key in ("bias", "sink"):
            made[key] = torch.randn(value, device=DEVICE, dtype=torch.float32 if key == "sink" else torch.bfloat16).requires_grad_()
            extra.append(made[key])
        elif key == "keep":
            made[key] = torch.rand(value, device=DEVICE) > 0.1
        elif key != "batch":
            made[key] = value
    return made, extra


def sees(keywords, tokens):
    """(tokens, tokens): whether a query sees a key."""
    i, j = torch.arange(tokens, device=DEVICE)[:, None], torch.arange(tokens, device=DEVICE)[None]
    seen = j <= i
    if "window" in keywords:
        seen = seen & (i - j <= keywords["window"][0])
    if "document" in keywords or "query_starts" in keywords:
        seen = seen & (i // PART == j // PART)
    return seen & keywords["keep"][0, 0] if "keep" in keywords else seen


def gradients_in_float64(inputs, out_gradient, keywords):
    """By q, k and v of the first KV head and the query heads that read it, and by their bias and sinks; as a textbook has them."""
    q, k, v = inputs
    heads = q.shape[1] // k.shape[1]
    leaves = [x[:, :count].detach().double().requires_grad_() for x, count in ((q, heads), (k, 1), (v, 1))]
    scores = leaves[0] @ leaves[1].transpose(2, 3) / q.shape[3] ** 0.5
    tokens = torch.arange(q.shape[2], device=DEVICE, dtype=torch.float64)
    if "softcap" in keywords:
        scores = keywords["softcap"] * torch.tanh(scores / keywords["softcap"])
    if "bias" in keywords:
        leaves.append(keywords["bias"].detach()[:, :heads].double().requires_grad_())
        scores = scores + leaves[-1]
    if "alibi" in keywords:
        slopes = torch.tensor(keywords["alibi"][:heads], device=DEVICE, dtype=torch.float64)
        scores = scores - slopes[:, None, None] * (tokens[:, None] - tokens).abs()
    scores = scores.masked_fill(~sees(keywords, q.shape[2]), -torch.inf)
    if "sink" in keywords:
        leaves.append(keywords["sink"].detach()[:heads].double().requires_grad_())
        scores = torch.cat([scores, leaves[-1][None, :, None, None].expand(*scores.shape[:3], 1)], 3)
    weights = scores.softmax(3)[..., : k.shape[2]].nan_to_num(0.0)  # of a query that sees no key
    if "dropout" in keywords:
        with torch.no_grad():  # a weight of these numbers is 0 only where it is dropped or not seen
            weighed = heed.attention(q.detach(), k.detach(), v.detach(), return_weights=True, **keywords)[1][:, :heads]
        weights = weights * (weighed != 0) / (1 - keywords["dropout"])
    return torch.autograd.grad(weights @ leaves[2], leaves, out_gradient[:, :heads].double())


def check_option(name, gradients, wanted):
    """A bias that all heads share has gradients of heads that are not in `wanted`."""
    if name == "a bias for all heads":
        gradients, wanted = gradients[:3], wanted[:3]
    parts = [x[: len(y)] if x.ndim == 1 else x[:, : y.shape[1]] for x, y in zip(gradients, wanted, strict=True)]
    check_near(name, parts, wanted)


def call_with(said, tokens):
    """(its tensors that want gradients, the gradient by what it returns, keywords, what it returns)."""
    batch = said.get("batch", 1)
    *inputs, out_gradient = tensors_of((32, 8, 128), batch, tokens // batch)
    keywords, extra = keywords_of(said)
    inputs = [x.requires_grad_() for x in inputs]
    return (*inputs, *extra), out_gradient, keywords, heed.torch.attention(*inputs, **keywords)


def rates_of_options(rounds):
    """Shows and returns heed's TFLOP/s under each option."""
    rates = {}
    for name, beside, said, pairs in options(TOKENS):
        inputs, out_gradient, keywords, out = call_with(said, TOKENS)

        def run(out=out, inputs=inputs, out_gradient=out_gradient):
            return torch.autograd.grad(out, inputs, out_gradient, retain_graph=True)

        graph = Graph(run)
        rates[name] = 10 * 32 * pairs * 128 / in_turns({name: graph}, rounds)[name] / 1e9
        check_option(name, graph.made, gradients_in_float64(inputs[:3], out_gradient, keywords))
        share = f"{rates[name] / rates[beside]:>7.0%} of {beside}" if beside else ""
        print(f"{name:34}{rates[name]:>6.0f} TFLOP/s {share}", flush=True)
    return rates


def in_f32(rounds):
    """{contestant: milliseconds} of 32 heads, 4096 x 64."""
    *inputs, out_gradient = (x.float() for x in tensors_of((32, 32, 64), 1, TOKENS))
    runs = {}
    for name in ("heed", "efficient"):
        leaves = [x.detach().requires_grad_() for x in inputs]
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION]):
            attend = heed.torch.scaled_dot_product_attention if name == "heed" else F.scaled_dot_product_attention
            out = attend(*leaves)
        runs[name] = Graph(lambda out=out, leaves=leaves: torch.autograd.grad(out, leaves, out_gradient, retain_graph=True))
    times = in_turns(runs, rounds)
    check_near("f32", runs["heed"].made, runs["efficient"].made, 1e-4)
    print(f"f32, 32 heads, 4096 x 64: {', '.join(f'{name} {ms:.2f} ms' for name, ms in times.items())}", flush=True)
    return times


def not_finite(name, out_gradient):
    """The gradient by out with numbers that are not, as training in f16 has them when the scale of its loss overflows."""
    changed = out_gradient.clone()
    if name == "all NaN" or name == "all inf":
        changed.fill_(float(name.split()[1]))
    elif name == "inf in one row":
        changed[:, 1, changed.shape[2] // 2, 7] = torch.inf
    elif name == "inf in a row of each head":
        changed[:, :, changed.shape[2] // 2, 7] = torch.inf
    return changed


def times_not_finite(rounds, tokens=TOKENS):
    """{dimensions and mask: {what the gradient by out has: milliseconds}} of 32 heads of f16; one call must not take ten times another."""
    found = {}
    for dim, causal in ((128, False), (128, True), (64, False), (64, True)):
        *inputs, out_gradient = (x.half() for x in tensors_of((32, 32, dim), 1, tokens))
        leaves = [x.requires_grad_() for x in inputs]
        out = heed.torch.scaled_dot_product_attention(*leaves, is_causal=causal)
        graphs = {}
        for name in ("finite", "all NaN", "all inf", "inf in one row", "inf in a row of each head"):
            given = not_finite(name, out_gradient)
            graphs[name] = Graph(lambda given=given: torch.autograd.grad(out, leaves, given, retain_graph=True))
            of_v = graphs[name].made[2]
            kinds = {"all NaN": of_v.isnan(), "all inf": of_v == torch.inf}.get(name)
            if kinds is not None and not bool(kinds.all()):
                sys.exit(f"gradients_cuda: {name}: dV is something else")
            if name.startswith("inf in"):
                infinite = (of_v == torch.inf).sum(2)[:, 1, 7]
                if int(infinite) != (tokens // 2 + 1 if causal else tokens) or bool(of_v.isnan().any()):
                    sys.exit(f"gradients_cuda: {name}: dV is something else")
        shape = f"f16, {dim}, {'causal' if causal else 'full'}"
        times = found[shape] = in_turns(graphs, rounds)
        print(f"{shape:34}" + ", ".join(f"{name} {ms:.2f} ms ({ms / times['finite']:.1f}x)" for name, ms in times.items()), flush=True)
    return found


class TorchLayer(torch.nn.Module):
    """heed.torch.AttentionLayer in PyTorch's operators."""

    def __init__(self, of):
        super().__init__()
        self.of = of

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (-1, 64)).transpose(1, 2) for layer in (self.of.q_proj, self.of.k_proj, self.of.v_proj))
        return self.of.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2))


def layers_there_and_back(rounds):
    """{contestant: milliseconds} of a layer of (2, 1024, 768), 12 heads over 6, as a graph."""
    torch.manual_seed(1)
    ours = heed.torch.AttentionLayer(768, 12, 6).to("cuda", torch.bfloat16)
    x = torch.randn(2, 1024, 768, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    runs = {}
    for name, run in (("heed", lambda: ours(x, causal=True)), ("torch", lambda: TorchLayer(ours)(x))):

        def step(run=run):
            out = run()
            return [out, *torch.autograd.grad(out, (x, *ours.parameters()), out.detach())]

        runs[name] = Graph(step)
    times = in_turns(runs, rounds)
    check_near("the layers", runs["heed"].made, runs["torch"].made, 0.02)
    print(f"a layer there and back: {', '.join(f'{name} {ms:.3f} ms' for name, ms in times.items())}", flush=True)
    return times


def cases_of(heads, causal, options):
    """Shows and yields what is found of every length."""
    name = f"{heads[0]}/{heads[1]} heads of {heads[2]}, {'causal' if causal else 'full'}"
    errors = errors_of(heads, causal)
    show_errors(name, errors)
    for batch, tokens in LENGTHS:
        if options.tokens not in (None, tokens):
            continue
        times = race(heads, batch, tokens, causal, options.rounds)
        operations = 10 * batch * heads[0] * tokens**2 * heads[2] / (2 if causal else 1)
        show_rates(name, batch, tokens, {each: operations / times[each] / 1e9 for each in times})
        yield {"heads": heads, "causal": causal, "batch": batch, "tokens": tokens, "milliseconds": times, "errors": errors}
        torch.cuda.empty_cache()


def measure(options):
    found = [case for heads in HEADS for causal in (False, True) for case in cases_of(heads, causal, options)]
    more = {
        "options": rates_of_options(options.rounds),
        "f32": in_f32(options.rounds),
        "layer": layers_there_and_back(options.rounds),
        "not finite": times_not_finite(options.rounds),
    }
    if options.json:
        versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"device": torch.cuda.get_device_name(), **versions, "cases": found, **more}, file, indent=1)


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns that each contestant has; default: %(default)s")
    parser.add_argument("--tokens", type=int, help="of the races; default: all lengths")
    parser.add_argument("--json", metavar="FILE", help="also write everything there")
    options = parser.parse_args(arguments)
    torch.utils.deterministic.fill_uninitialized_memory = False  # what flash attention asks for would be filled, at its expense
    print(" " * 42 + "".join(f"{name:>22}" for name in CONTESTANTS))
    with torch.cuda.stream(torch.cuda.Stream()):  # autograd goes on where the forward pass ran, and only that can be captured
        measure(options)


if __name__ == "__main__":
    main(sys.argv[1:])
