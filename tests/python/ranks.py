# SPDX-License-Identifier: Apache-2.0
"""What every rank of test_distributed.py does: `ranks.py mpi claims|late|interrupted`, or main("torch", ...) as FORKED there.
Prints a line for each claim that holds."""

import os
import pathlib
import signal
import sys
import tempfile
import threading
import time

import numpy as np
import safetensors.numpy

import heed
import heed.distributed

meeting = {}  # where forks meet, and which of them this is


def make_group(over, deadline, is_first=True):
    if over == "mpi":
        from mpi4py import MPI

        return heed.distributed.group(MPI.COMM_WORLD, deadline=deadline)
    import torch.distributed

    if is_first:
        torch.distributed.init_process_group("gloo", **meeting)
    return heed.distributed.group(deadline=deadline)


def random_call(random, ranks, most_keys=2500):
    kv_heads = int(random.integers(1, 4))
    heads, queries, keys, dim = kv_heads * int(random.integers(1, 4)), *(int(n) for n in random.integers(1, (80, most_keys, 40)))
    dtype = [np.float32, np.float16][int(random.integers(2))]
    q, k, v = (
        random.standard_normal((2, h, n, dim)).astype(dtype) for h, n in ((heads, queries), (kv_heads, keys), (kv_heads, keys))
    )
    options = {"causal": [None, "ends", "starts"][int(random.integers(3))], "softcap": [None, 4.0][int(random.integers(2))]}
    if random.integers(2):
        options |= {"dropout": 0.2, "seed": int(random.integers(100))}
    if random.integers(2):
        options["bias"] = random.standard_normal((1, heads, queries, keys)).astype(dtype)
    groups = ranks if random.integers(3) == 0 else 1
    split = heed.distributed.split_grid(
        queries=queries, keys=keys, heads=heads, kv_heads=kv_heads, ranks=ranks, head_groups=groups
    )
    return q, k, v, options, split


def check_attention(group, calls):
    random = np.random.default_rng(group.size)
    for _ in range(calls):
        q, k, v, options, split = random_call(random, group.size)
        whole, whole_lse = heed.attention(q, k, v, return_lse=True, **options)
        mine = split.of_rank[group.rank]
        if "bias" in options:
            options["bias"] = mine.queries_of(options["bias"])
        part = (mine.queries_of(q), mine.keys_of(k), mine.keys_of(v))
        out, lse = heed.distributed.attention(group, split, *part, return_lse=True, **options)
        assert out.tobytes() == mine.queries_of(whole).tobytes()
        assert lse.tobytes() == mine.queries_of(whole_lse[..., None]).tobytes()


def check_gradients(group, calls):
    random = np.random.default_rng(group.size + 100)
    for _ in range(calls):
        q, k, v, options, split = random_call(random, group.size, most_keys=300)
        options["sink"] = random.standard_normal(q.shape[1]).astype(np.float32)
        by = ("q", "k", "v", "bias", "sink") if "bias" in options else ("q", "v", "sink")
        out, lse = heed.attention(q, k, v, return_lse=True, **options)
        gradient = random.standard_normal(out.shape).astype(out.dtype)
        lse_gradient = random.standard_normal(lse.shape).astype(np.float32)
        whole = heed.attention_backward(gradient, q, k, v, out, lse, lse_gradient=lse_gradient, by=by, **options)
        mine = split.of_rank[group.rank]
        of_heads = slice(mine.first_kv_head * mine.group, (mine.first_kv_head + mine.kv_heads) * mine.group)
        cuts = {
            "q": mine.queries_of,
            "k": mine.keys_of,
            "v": mine.keys_of,
            "bias": mine.queries_of,
            "sink": lambda x, of_heads=of_heads: x[of_heads],
            "lse": lambda x, mine=mine: mine.queries_of(x[..., None])[..., 0],
        }
        own = options | {name: cuts[name](options[name]) for name in ("bias", "sink") if name in options}
        part = heed.distributed.attention_backward(
            group,
            split,
            cuts["q"](gradient),
            cuts["q"](q),
            cuts["k"](k),
            cuts["v"](v),
            cuts["q"](out),
            cuts["lse"](lse),
            lse_gradient=cuts["lse"](lse_gradient),
            by=by,
            **own,
        )
        if mine.kv_heads == 0:
            continue
        for name, found, expected in zip(by, part, whole, strict=True):
            assert found.tobytes() == np.ascontiguousarray(cuts[name](expected)).tobytes(), name


def check_layer(group):
    """A layer of a file and of a dict, through a cache: prefill, then a step."""
    random = np.random.default_rng(3)
    shape = {"model_dim": 48, "heads": 6, "kv_heads": 3, "rotary": heed.Rotary(dims=8)}
    layer = heed.AttentionLayer(**shape, bias="qkv", seed=5)
    weights = layer.state_dict("llama")
    x = random.standard_normal((2, 20, 48)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "model.safetensors"
        safetensors.numpy.save_file({"model." + name: array for name, array in weights.items()}, file)
        of_file = heed.distributed.AttentionLayer(group, file, "model.", **shape)
    for part in (heed.distributed.AttentionLayer(group, weights, **shape), of_file):
        share = part.share
        settings = {"batch": 2, "capacity": 64, "dim": 8}
        whole_cache = heed.KvCache(kv_heads=3, **settings)
        cache = heed.KvCache(kv_heads=share.kv_heads, **settings)
        for tokens in (slice(0, 19), slice(19, 20)):
            expected, whole_lse = layer(x[:, tokens], cache=whole_cache, causal=True, return_lse=True)
            out, lse = part(x[:, tokens], cache=cache, causal=True, return_lse=True)
            assert out.tobytes() == expected.tobytes()
            assert lse.tobytes() == whole_lse[:, share.first_head : share.first_head + share.heads].tobytes()
    if group.size > 1:
        try:
            part("x" if group.rank == 1 else x)
        except heed.Error as error:
            assert str(error).startswith("x: str is" if group.rank == 1 else "rank 1 refuses: x: str is"), error
        else:
            raise AssertionError("a word is taken for an array")
    assert part(x, causal=True).tobytes() == layer(x, causal=True).tobytes()


def check_torch(group):
    import torch

    torch.manual_seed(1)
    q, k, v = torch.randn(3, 1, 4, 100, 8, dtype=torch.bfloat16)
    split = heed.distributed.split_sequence(queries=100, keys=100, heads=4, ranks=group.size)
    mine = split.of_rank[group.rank]
    out = heed.distributed.attention(group, split, *(f(x) for f, x in zip([mine.queries_of, mine.keys_of, mine.keys_of], [q, k, v])))
    assert torch.equal(out, mine.queries_of(heed.attention(q, k, v)))


def check_decode(group):
    random = np.random.default_rng(7)
    length = 5000
    k, v = (random.standard_normal((1, 2, length, 16), dtype=np.float32) for _ in range(2))
    q = random.standard_normal((1, 4, 1, 16), dtype=np.float32)
    settings = {"batch": 1, "kv_heads": 2, "capacity": 6000, "dim": 16, "page_size": 64}
    part, whole = heed.KvCache(**settings), heed.KvCache(**settings)
    for first in range(0, length, 1700):
        stretch = slice(first, min(first + 1700, length))
        heed.distributed.append(group, part, 0, first, k[:, :, stretch], v[:, :, stretch])
    whole.append(k, v)
    out = heed.distributed.decode(group, q, part, [length], causal=True)
    assert out.tobytes() == heed.attention(q, cache=whole, causal=True).tobytes()


def check_refusals(group):
    """What one rank says differently, or cannot even read, is refused by all at once, and the group goes on."""
    x = np.ones((1, 2, 6, 4), np.float32)
    split = heed.distributed.split_sequence(queries=6, keys=6, heads=2, ranks=group.size)
    mine = split.of_rank[group.rank]
    part = mine.queries_of(x), mine.keys_of(x), mine.keys_of(x)
    is_last = group.rank == group.size - 1

    def sentence(*arrays, **options):
        try:
            heed.distributed.attention(group, split, *arrays, **options)
        except heed.Error as error:
            return str(error)
        return ""

    if group.size > 1:
        assert sentence(*part, softcap=2.0 if is_last else 3.0).startswith(f"rank {group.size - 1}: softcap")
        said = sentence(*part[:2], [1, 2] if is_last else part[2])
        assert said.startswith(("" if is_last else f"rank {group.size - 1} refuses: ") + "v: list is not an array"), said
    assert "cache: there is no such keyword argument" in sentence(*part, cache=None)
    assert sentence(*part) == ""


def check_refused_arguments(group):
    """An argument that only one rank cannot read is named by all of them, and nobody waits for it."""
    q, x = np.ones((1, 2, 1, 4), np.float32), np.ones((1, 2, 6, 4), np.float32)
    cache = heed.KvCache(batch=1, kv_heads=2, capacity=64, dim=4, page_size=16)
    heed.distributed.append(group, cache, 0, 0, x, x)
    split = heed.distributed.split_sequence(queries=6, keys=6, heads=2, ranks=group.size)
    mine = split.of_rank[group.rank]
    part = mine.queries_of(x), mine.keys_of(x), mine.keys_of(x)
    no_shares = heed.distributed.Split(6, 6, 2, 2, [heed.distributed.Share(3, [(0, 6)], 0, 2, 1)] * group.size)
    is_last = group.rank == group.size - 1

    def decode(lengths, cache=cache):
        return heed.distributed.decode(group, q, cache, lengths)

    calls = {
        "lengths.dtype: object is not an element type heed knows": lambda: decode([10**30] if is_last else [6]),
        "lengths.dtype: float64 is no integer type": lambda: decode([6.0] if is_last else [6]),
        "cache: dict is not a heed.KvCache": lambda: decode([6], {} if is_last else cache),
        "split: int is not a heed.distributed.Split": lambda: heed.distributed.attention(group, 5 if is_last else split, *part),
        "split.of_rank: a share is not stretches": lambda: heed.distributed.attention(group, no_shares if is_last else split, *part),
    }
    for wanted, call in calls.items():
        try:
            call()
        except heed.Error as error:
            assert str(error).startswith(("" if is_last else f"rank {group.size - 1} refuses: ") + wanted), error
        else:
            raise AssertionError(wanted)
    assert decode([6]).shape == (1, 2, 1, 4)


def check_late(group):
    """Rank 1 is away; the others say so within the deadline."""
    x = np.ones((1, 1, 8, 4), np.float32)
    split = heed.distributed.split_sequence(queries=8, keys=8, heads=1, ranks=group.size)
    mine = split.of_rank[group.rank]
    if group.rank == 1:
        time.sleep(3)
        return
    begun = time.monotonic()
    try:
        heed.distributed.attention(group, split, mine.queries_of(x), mine.keys_of(x), mine.keys_of(x))
    except heed.Error as error:
        assert error.code == "rank" and time.monotonic() - begun < 2.5
        print(error, flush=True)


class Alarm(Exception):
    """What a handler of the program's own raises."""


def ring(signal_number, frame):
    raise Alarm("it takes too long")


def check_interrupted(group, over):
    """Rank 0 is interrupted while it waits: it sees what its handler raised, and rank 1, who comes later, is told of it."""
    x = np.ones((1, 1, 8, 4), np.float32)
    split = heed.distributed.split_sequence(queries=8, keys=8, heads=1, ranks=group.size)
    mine = split.of_rank[group.rank]
    part = mine.queries_of(x), mine.keys_of(x), mine.keys_of(x)
    for number, expected in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, Alarm)):
        if group.rank == 0:
            threading.Timer(0.5, os.kill, (os.getpid(), number)).start()
        else:
            time.sleep(1.5)
        try:
            heed.distributed.attention(group, split, *part)
        except expected as raised:
            assert group.rank == 0 and type(raised) is expected
        except heed.Error as error:
            assert group.rank == 1 and error.code == "rank", error
            assert f"it gave up: {expected.__name__}" in str(error), error
        try:
            heed.distributed.attention(group, split, *part)
        except heed.Error as error:
            assert f"it gave up: {expected.__name__}" in str(error), error
        group = make_group(over, 60.0, is_first=False)
    print(f"rank {group.rank}: interrupted as itself\n", end="", flush=True)


def main(over, what):
    group = make_group(over, 1.0 if what == "late" else 60.0)
    if what == "late":
        check_late(group)
        return
    if what == "interrupted":
        signal.signal(signal.SIGALRM, ring)
        check_interrupted(group, over)
        if over == "torch":
            import torch.distributed

            torch.distributed.barrier()
            os._exit(0)  # threads of gloo still wait for what never comes, and would take Python's end for a fault
        return
    check_attention(group, 150)
    check_gradients(group, 30)
    check_layer(group)
    check_decode(group)
    check_refusals(group)
    check_refused_arguments(group)
    if over == "torch":
        check_torch(group)
    print(f"rank {group.rank} of {group.size}: all claims hold\n", end="", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
