#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times heed.jax against JAX's own attention under jit, forward and with gradients, and what a call costs beyond the C++ call.

On the CPU the rival is XLA, in float32; on a GPU XLA and cuDNN, in bfloat16. All compute the same arrays in turns; results are compared
before anything is timed, and a wrong one ends the program with status 1. A ratio above 1 means that heed is faster. What XLA and JAX add
to a call is a small one under jit less the same call of heed.attention.

    python bench/jax_attention.py
    python bench/jax_attention.py --heads 32 --length 8192 --dim 128     # on a GPU
"""

import argparse
import functools
import os
import statistics
import sys

import jax
import jax.numpy as jnp
import numpy as np
import turns

import heed
import heed.jax

IS_GPU = jax.default_backend() == "gpu"
CALLS = 20 if IS_GPU else 1  # launched one after the other before they are waited for
DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}


def contestants(dtype):
    theirs = jax.nn.dot_product_attention
    found = {"heed": heed.jax.dot_product_attention, "XLA": functools.partial(theirs, implementation="xla")}
    if IS_GPU and dtype != "f32":
        found["cuDNN"] = functools.partial(theirs, implementation="cudnn")
    return found


def with_gradients(attend):
    return jax.value_and_grad(lambda q, k, v: (attend(q, k, v).astype(jnp.float32) ** 2).sum(), argnums=(0, 1, 2))


def agree(ours, theirs, tolerance):
    def numbers(tree):
        return [np.asarray(x, np.float32) for x in jax.tree.leaves(tree)]

    return all(np.abs(a - b).max() <= tolerance * max(1.0, np.abs(b).max()) for a, b in zip(numbers(ours), numbers(theirs), strict=True))


def race(name, functions, arrays, options):
    """Prints the medians; the process ends where results disagree."""
    calls = {by: jax.jit(function) for by, function in functions.items()}
    results = {by: call(*arrays) for by, call in calls.items()}
    for by, result in results.items():
        if not agree(results["heed"], result, 1e-4 if options.dtype == "f32" else 3e-2):
            sys.exit(f"{name}: heed and {by} disagree")
    clock = turns.OnCpu(options.seconds)
    times = {by: [] for by in calls}
    for _ in range(options.rounds):
        for by, call in calls.items():
            times[by] += clock.turn(lambda call=call: jax.block_until_ready([call(*arrays) for _ in range(CALLS)]))
    medians = {by: statistics.median(seconds) / CALLS for by, seconds in times.items()}
    said = [f"{by} {1e3 * seconds:8.3f} ms" + (f" ({seconds / medians['heed']:.2f} times)" if by != "heed" else "") for by, seconds in medians.items()]
    print(f"{name:18} {'   '.join(said)}")


def overhead(options):
    """Of a call of one small head, in microseconds: under jit, of a jit that only adds, and of heed.attention on NumPy's arrays. The fastest
    calls, since all else is somebody else's time."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((1, 1, 16, 64)), DTYPES[options.dtype])
    there = np.asarray(x)
    calls = {
        "under jit": lambda call=jax.jit(heed.jax.attention): call(x, x, x).block_until_ready(),
        "jit of q + 1": lambda call=jax.jit(lambda q, k, v: q + 1): call(x, x, x).block_until_ready(),
        "heed.attention on the CPU": lambda: heed.attention(there, there, there),
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
    parser.add_argument("--dtype", choices=DTYPES, default="bf16" if IS_GPU else "f32", help="default: f32 on the CPU, bf16 on a GPU")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn; default: %(default)s")
    options = parser.parse_args(arguments)
    if options.dtype == "f32":
        jax.config.update("jax_default_matmul_precision", "highest")  # on a GPU XLA multiplies in TF32 otherwise
    random = np.random.default_rng(0)
    shape = (1, options.length, options.heads, options.dim)
    arrays = [jnp.asarray(random.standard_normal(shape), DTYPES[options.dtype]) for _ in range(3)]
    place = jax.devices()[0].device_kind if IS_GPU else f"{len(os.sched_getaffinity(0))} processors"
    print(f"heed {heed.__version__}, JAX {jax.__version__}, {place}, {options.heads} heads, {options.length} x {options.dim} {options.dtype}")
    functions = contestants(options.dtype)
    race("forward", functions, arrays, options)
    race("forward, backward", {by: with_gradients(attend) for by, attend in functions.items()}, arrays, options)
    overhead(options)


if __name__ == "__main__":
    main(sys.argv[1:])
