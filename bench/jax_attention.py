#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times heed.jax against XLA's own attention under jit, forward and with gradients, and what a call costs beyond the C++ call.

Both compute the same arrays in turns; results are compared before anything is timed, and a wrong one ends the program with status 1.
A ratio above 1 means that heed is faster. What XLA and JAX add to a call is a small one under jit less the same call of heed.attention.

    python bench/jax_attention.py
"""

import argparse
import os
import statistics
import sys

import jax
import jax.numpy as jnp
import numpy as np
import turns

import heed
import heed.jax


def by_xla(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, implementation="xla")


def by_heed(q, k, v):
    return heed.jax.dot_product_attention(q, k, v)


def with_gradients(attend):
    return jax.value_and_grad(lambda q, k, v: (attend(q, k, v) ** 2).sum(), argnums=(0, 1, 2))


def agree(ours, theirs):
    return all(
        np.abs(np.asarray(a) - np.asarray(b)).max() <= 1e-4 * max(1.0, np.abs(np.asarray(b)).max())
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    )


def race(name, functions, arrays, options):
    """The medians of both, in seconds; the process ends where they disagree."""
    calls = {by: jax.jit(function) for by, function in functions.items()}
    ours, theirs = (calls[by](*arrays) for by in ("heed", "xla"))
    if not agree(ours, theirs):
        sys.exit(f"{name}: heed and XLA disagree")
    clock = turns.OnCpu(options.seconds)
    times = {by: [] for by in calls}
    for _ in range(options.rounds):
        for by, call in calls.items():
            times[by] += clock.turn(lambda call=call: jax.block_until_ready(call(*arrays)))
    medians = {by: statistics.median(seconds) for by, seconds in times.items()}
    print(f"{name:18} heed {1e3 * medians['heed']:8.2f} ms   XLA {1e3 * medians['xla']:8.2f} ms   {medians['xla'] / medians['heed']:.2f} times")


def overhead(options):
    """Of a call of one small head, in microseconds: under jit, of a jit that only adds, and of heed.attention on NumPy's arrays. The fastest
    calls, since all else is somebody else's time."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 1, 16, 64)), jnp.float32)
    there = np.asarray(x)
    calls = {
        "under jit": lambda call=jax.jit(heed.jax.attention): call(x, x, x).block_until_ready(),
        "jit of q + 1": lambda call=jax.jit(lambda q, k, v: q + 1): call(x, x, x).block_until_ready(),
        "heed.attention": lambda: heed.attention(there, there, there),
    }
    clock = turns.OnCpu(options.seconds)
    times = {name: [] for name in calls}
    for _ in range(options.rounds):
        for name, call in calls.items():
            times[name] += clock.turn(call)
    print("one head, 16 x 64: " + ", ".join(f"{name} {1e6 * min(seconds):.1f} us" for name, seconds in times.items()))


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=12, help="default: %(default)s")
    parser.add_argument("--length", type=int, default=1024, help="default: %(default)s")
    parser.add_argument("--dim", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn; default: %(default)s")
    options = parser.parse_args(arguments)
    random = np.random.default_rng(0)
    shape = (1, options.length, options.heads, options.dim)
    arrays = [jnp.asarray(random.standard_normal(shape), jnp.float32) for _ in range(3)]
    print(f"heed {heed.__version__}, JAX {jax.__version__}, {len(os.sched_getaffinity(0))} processors, {options.heads} heads, {options.length} x {options.dim} f32")
    race("forward", {"heed": by_heed, "xla": by_xla}, arrays, options)
    race("forward, backward", {"heed": with_gradients(by_heed), "xla": with_gradients(by_xla)}, arrays, options)
    overhead(options)


if __name__ == "__main__":
    main(sys.argv[1:])
