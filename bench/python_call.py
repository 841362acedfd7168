#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one call costs from Python on small arrays: heed on NumPy and on PyTorch against PyTorch's own call.

The calls alternate, so that whatever else the machine does meets all of them; each figure is the median of
`--rounds` batches of `--calls` calls. Every result is compared with float64 first; a wrong one gets no figure and
ends the run with status 1. A ratio above 1 means that heed is faster.

    pip install . torch
    python bench/python_call.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any, Callable

import numpy as np
import torch
import torch.nn.functional as F

import heed

Call = Callable[[], Any]
TOLERANCE = 1e-5


def exact(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Attention in float64, as the textbook writes it."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def calls_of(arrays: list[np.ndarray]) -> dict[str, Call]:
    """The same problem, asked in each way."""
    q, k, v = arrays
    tq, tk, tv = (torch.from_numpy(array) for array in arrays)
    out, torch_out = np.empty_like(q), torch.empty_like(tq)
    return {
        "torch: F.scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(tq, tk, tv),
        "heed.scaled_dot_product_attention, torch": lambda: heed.scaled_dot_product_attention(tq, tk, tv),
        "heed.scaled_dot_product_attention, NumPy": lambda: heed.scaled_dot_product_attention(q, k, v),
        "heed.attention, torch": lambda: heed.attention(tq, tk, tv),
        "heed.attention, NumPy": lambda: heed.attention(q, k, v),
        "heed.attention, torch, out=": lambda: heed.attention(tq, tk, tv, out=torch_out),
        "heed.attention, NumPy, out=": lambda: heed.attention(q, k, v, out=out),
    }


def seconds_per_call(call: Call, times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def wrong_calls(calls: dict[str, Call], expected: np.ndarray) -> list[str]:
    """The names of those whose result is not the one of float64."""
    return [
        name for name, call in calls.items() if not np.abs(np.asarray(call()) - expected).max() <= TOLERANCE
    ]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--shape", type=int, nargs=4, default=(1, 1, 16, 64), metavar=("B", "H", "L", "D"))
    parser.add_argument("--torch-threads", type=int, default=1, help="1 is PyTorch's best at this size")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.torch_threads)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(options.shape, dtype=np.float32) for _ in range(3)]
    calls = calls_of(arrays)
    wrong = wrong_calls(calls, exact(*arrays))
    if wrong:
        print("wrong result:", "; ".join(wrong), file=sys.stderr)
        return 1
    samples: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for _ in range(options.rounds):
            for name, call in calls.items():
                samples[name].append(seconds_per_call(call, options.calls))
    rival = statistics.median(next(iter(samples.values())))
    print(f"heed {heed.__version__}, torch {torch.__version__}, shape {tuple(options.shape)}, float32")
    for name, seconds in samples.items():
        median = statistics.median(seconds)
        print(f"{name:42} {1e6 * median:8.2f} us {rival / median:6.2f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
