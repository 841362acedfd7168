# SPDX-License-Identifier: Apache-2.0
"""Many Python threads at once: the same bits as one, and nobody waits for the GIL."""

import concurrent.futures
import subprocess
import sys
import threading

import numpy as np
import pytest
import textbook
import torch

import heed

CALLERS, ROUNDS = 10, 5


def problems():
    """Calls of different sizes, kinds and options; small ones run beside large ones."""
    q, k, v = textbook.random_arrays(41, (2, 4, 65, 32), (2, 2, 300, 32), (2, 2, 300, 24))
    keep = np.random.default_rng(42).random((65, 300)) < 0.5
    layer = heed.AttentionLayer(32, 4, 2, rotary=heed.Rotary())
    (x,) = textbook.random_arrays(43, (3, 40, 32))
    tensors = [torch.from_numpy(array) for array in (q, k, v)]
    return {
        "numpy": lambda: heed.attention(q, k, v, causal="ends"),
        "decode": lambda: heed.attention(q[:, :, :1], k, v),
        "masked": lambda: heed.attention(q, k, v, keep=keep, dropout=0.3, seed=5),
        "two threads": lambda: heed.attention(q, k, v, threads=2),
        "torch": lambda: heed.scaled_dot_product_attention(*tensors, enable_gqa=True),
        "layer": lambda: layer(x, causal=True),
        "rotate": lambda: heed.rotate(q),
    }


def test_ten_threads_calling_at_once_get_the_bits_of_one():
    calls = problems()
    expected = {name: textbook.bits(call()) for name, call in calls.items()}
    barrier = threading.Barrier(CALLERS)

    def work(n):
        barrier.wait()
        names = list(calls)
        order = (names[n % len(names) :] + names[: n % len(names)]) * ROUNDS
        return [name for name in order if textbook.bits(calls[name]()) != expected[name]]

    with concurrent.futures.ThreadPoolExecutor(CALLERS) as pool:
        wrong = [name for names in pool.map(work, range(CALLERS)) for name in names]
    assert wrong == []


def test_the_number_of_threads_changes_no_bit():
    calls, before = problems(), heed.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            heed.set_num_threads(threads)
            results.append([textbook.bits(call()) for call in calls.values()])
    finally:
        heed.set_num_threads(before)
    assert results[0] == results[1] == results[2]


def test_calls_that_say_their_number_of_threads_do_not_wait_for_each_other():
    q = np.ones((1, 4, 256, 64), np.float32)
    is_over = threading.Event()

    def compute():
        heed.attention(q, q, q, kernel="reference", threads=2)  # half a second
        is_over.set()

    worker = threading.Thread(target=compute)
    worker.start()
    made = 0
    while not is_over.is_set():
        heed.attention(q[:, :, :1], q, q, threads=1)
        made += 1
    worker.join()
    assert made >= 5


@pytest.mark.parametrize("call", ["attention", "layer"])
def test_other_threads_run_while_one_computes(call):
    q = np.ones((1, 4, 256, 64), np.float32)
    layer, x = heed.AttentionLayer(64, 4), np.ones((1, 512, 64), np.float32)
    finished = threading.Event()
    ticks = [0]

    def compute():
        if call == "attention":
            heed.attention(q, q, q, kernel="reference")
        else:
            layer(x, kernel="reference")
        finished.set()

    worker = threading.Thread(target=compute)
    worker.start()
    # With the GIL held this thread could not come back from wait() until the computation, half a second long, is over.
    while not finished.wait(0.001):
        ticks[0] += 1
    worker.join()
    assert ticks[0] >= 5


def test_loading_while_others_call_gives_old_or_new_weights():
    layers = [heed.AttentionLayer(32, 4, seed=seed) for seed in (1, 2)]
    states = [layer.state_dict() for layer in layers]
    (x,) = textbook.random_arrays(44, (2, 30, 32))
    allowed = {textbook.bits(layer(x)) for layer in layers}
    shared = heed.AttentionLayer(32, 4, seed=1)

    def call(n):
        if n % 5 == 0:
            shared.load(states[n // 5 % 2])
        return textbook.bits(shared(x)) in allowed

    with concurrent.futures.ThreadPoolExecutor(CALLERS) as pool:
        assert all(pool.map(call, range(100)))


AT_WORK = """
import threading
import numpy as np
import heed
q = np.ones((1, 8, 300, 64), np.float32)
cache = heed.KvCache(batch=1, kv_heads=8, capacity=300, dim=64)
cache.append(q, q)
begun = threading.Event()
def work():
    while True:
        {call}
        begun.set()
threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


@pytest.mark.parametrize("call", ["heed.attention(q, q, q)", "heed.attention(q, cache=cache)", "cache.fork(0), cache.release(1)"])
def test_a_process_ends_in_peace_while_a_daemon_thread_is_at_work(call):
    ended = subprocess.run([sys.executable, "-c", AT_WORK.format(call=call)], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
