#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Races the gradients of attention on a GPU: heed against PyTorch's backends, and against its one deterministic way.

Every contestant has a forward pass that is over, and computes the gradients by q, k and v, in turns. TFLOP/s are nominal:
10 B H S S D, half of it under a causal mask. Before that come each one's RMS errors against float64 at a length of 512, and
whether ten runs have the same bits.

    PYTHONPATH=build/cuda-package python3 bench/gradients_cuda.py --json gradients.json
"""

import argparse
import json
import statistics
import sys

import heed.torch
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

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
            continue
        yield name, run


def tensors_of(heads, batch, tokens):
    """q, k, v and the gradient by out."""
    query_heads, kv_heads, dim = heads
    torch.manual_seed(batch * tokens)
    shapes = [(batch, count, tokens, dim) for count in (query_heads, kv_heads, kv_heads, query_heads)]
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]


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


def milliseconds_of(run, calls):
    times = []
    for _ in range(calls):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def race(heads, batch, tokens, causal, rounds):
    """{contestant: milliseconds}, the least of the medians of its turns."""
    runs = dict(contestants(tensors_of(heads, batch, tokens), causal))
    calls = 5 if tokens > 8192 else 11
    turns = [{name: milliseconds_of(run, calls) for name, run in runs.items()} for _ in range(rounds)]
    return {name: min(turn[name] for turn in turns) for name in runs}


def show_errors(name, errors):
    for contestant, found in errors.items():
        bits = "one answer" if found["has_one_answer"] else "not the same twice"
        print(f"{name:34}{contestant:20}  RMS errors {' '.join(f'{x:.2e}' for x in found['rms'])}, {bits}")


def show_rates(name, batch, tokens, rates):
    shown = (f"{rates[each]:.0f} TFLOP/s" if each in rates else "-" for each in CONTESTANTS)
    print(f"{name:34}{batch}x{tokens:<6}" + "".join(f"{each:>22}" for each in shown), flush=True)


def cases_of(heads, causal, rounds):
    """Shows and yields what is found of every length."""
    name = f"{heads[0]}/{heads[1]} heads of {heads[2]}, {'causal' if causal else 'full'}"
    errors = errors_of(heads, causal)
    show_errors(name, errors)
    for batch, tokens in LENGTHS:
        times = race(heads, batch, tokens, causal, rounds)
        operations = 10 * batch * heads[0] * tokens**2 * heads[2] / (2 if causal else 1)
        show_rates(name, batch, tokens, {each: operations / times[each] / 1e9 for each in times})
        yield {"heads": heads, "causal": causal, "batch": batch, "tokens": tokens, "milliseconds": times, "errors": errors}
        torch.cuda.empty_cache()


def main(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns that each contestant has; default: %(default)s")
    parser.add_argument("--json", metavar="FILE", help="also write everything there")
    options = parser.parse_args(arguments)
    print(" " * 42 + "".join(f"{name:>22}" for name in CONTESTANTS))
    found = [case for heads in HEADS for causal in (False, True) for case in cases_of(heads, causal, options.rounds)]
    if options.json:
        versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"device": torch.cuda.get_device_name(), **versions, "cases": found}, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
