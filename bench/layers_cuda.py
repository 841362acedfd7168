#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times heed.AttentionLayer on a GPU, projections included, in turns with PyTorch's operators.

A prompt under a causal mask, and one token over a cache that holds a prompt. PyTorch's are four linear maps and its fastest attention;
for one token they have no cache. Calls follow each other on the stream, so that short ones take what their launches take.
Each result is checked: a prompt against PyTorch's, a token over a cache against the last row of its whole sequence.

    PYTHONPATH=build/cuda-package python3 bench/layers_cuda.py
"""

import argparse
import dataclasses
import statistics
import sys
import time

import torch
import torch.nn.functional as F

import heed

DEVICE = "cuda"  # a test of these functions says "cpu"
MODEL, HEADS, KV_HEADS = 4096, 32, 8
NAMES = ("q_proj", "k_proj", "v_proj", "o_proj")
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-4}  # of the norm of the result


@dataclasses.dataclass
class Case:
    batch: int
    tokens: int
    cached: int = 0

    def __str__(self):
        return f"{self.batch} x {self.tokens}" + (f" over {self.cached}" if self.cached else "")


CASES = (Case(1, 4096), Case(1, 64), Case(1, 1, 2048), Case(8, 1, 2048))


class Layers:
    """heed's layer and PyTorch's operators, of the same weights."""

    def __init__(self, dtype, model=MODEL, heads=HEADS, kv_heads=KV_HEADS):
        torch.manual_seed(0)
        self.dtype, self.model, self.heads, self.kv_heads, self.dim = dtype, model, heads, kv_heads, model // heads
        outs = (model, kv_heads * self.dim, kv_heads * self.dim, model)
        self.weights = {name: (torch.randn(out, model) / model**0.5).to(dtype) for name, out in zip(NAMES, outs, strict=True)}
        self.ours = heed.AttentionLayer(model, heads, kv_heads, device=DEVICE)
        self.ours.load({f"{name}.weight": weight for name, weight in self.weights.items()})
        self.weights = {name: weight.to(DEVICE) for name, weight in self.weights.items()}

    def inputs(self, batch, tokens):
        return torch.randn(batch, tokens, self.model, device=DEVICE, dtype=self.dtype)

    def by_torch(self, x):
        batch, tokens, _ = x.shape
        heads = (self.heads, self.kv_heads, self.kv_heads)
        projected = (F.linear(x, self.weights[name]).view(batch, tokens, n, self.dim) for name, n in zip(NAMES, heads, strict=False))
        out = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in projected), is_causal=True, enable_gqa=True)
        return F.linear(out.transpose(1, 2).reshape(batch, tokens, -1), self.weights["o_proj"])

    def cache_of(self, x):
        """A cache that has seen x, with room for the tokens of all turns."""
        cache = heed.KvCache(len(x), self.kv_heads, x.shape[1] + 1024, self.dim, dtype=self.dtype, device=DEVICE)
        self.ours(x, cache=cache, causal=True)
        return cache


def check(case, found, wanted):
    error = ((found.double() - wanted.double()).norm() / wanted.double().norm()).item()
    if not error <= TOLERANCE[found.dtype]:
        sys.exit(f"{case}: results are {error} apart")


def prepared(case, layers):
    """(heed's call, PyTorch's), after the check."""
    if not case.cached:
        x = layers.inputs(case.batch, case.tokens)
        check(case, layers.ours(x, causal=True), layers.by_torch(x))
        return lambda: layers.ours(x, causal=True), lambda: layers.by_torch(x)
    whole = layers.inputs(case.batch, case.cached + case.tokens)
    x = whole[:, case.cached :].contiguous()
    cache = layers.cache_of(whole[:, : case.cached])
    check(case, layers.ours(x, cache=cache, causal=True), layers.by_torch(whole)[:, case.cached :])
    return lambda: layers.ours(x, cache=cache, causal=True), lambda: layers.by_torch(x)


def seconds(run, calls):
    if DEVICE != "cuda":
        begun = time.perf_counter()
        for _ in range(calls):
            run()
        return (time.perf_counter() - begun) / calls
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(calls):
        run()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e-3 / calls


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns that each has; default: %(default)s")
    rounds = parser.parse_args(arguments).rounds
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        layers = Layers(dtype)
        for case in CASES:
            runs, calls = prepared(case, layers), 4 if case.tokens > 64 else 20
            turns = [[seconds(run, calls) for run in runs] for _ in range(rounds + 1)][1:]
            ours, theirs = (1e6 * statistics.median(each) for each in zip(*turns, strict=True))
            print(f"{str(dtype):15} {str(case):12} heed {ours:9.1f} us, PyTorch {theirs:9.1f} us", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
