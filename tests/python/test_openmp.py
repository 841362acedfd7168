# SPDX-License-Identifier: Apache-2.0
"""heed on PyTorch's own threads: the same bits, from one thread or ten."""

import concurrent.futures
import hashlib

import numpy as np
import pytest

import forked

PROGRAM = """
import hashlib, sys
import numpy as np
import torch
import heed
if {with_torch}:
    import heed.torch
    assert heed._heed.share_openmp_threads()
rng = np.random.default_rng(7)
q, k, v = (rng.standard_normal((2, heads, 300, 64), np.float32) for heads in (8, 2, 2))
print(hashlib.sha256(heed.attention(q, k, v, causal=True).tobytes()).hexdigest())
"""


def done(program):
    ended = forked.run(program)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def digest_of(with_torch):
    return done(PROGRAM.format(with_torch=with_torch))


def test_pytorchs_threads_give_the_bits_of_heeds_own():
    assert digest_of(with_torch=True) == digest_of(with_torch=False)


def test_ten_threads_at_once_on_pytorchs_threads_give_the_bits_of_one():
    import heed.torch

    rng = np.random.default_rng(8)
    q, k, v = (rng.standard_normal((1, heads, 200, 32), np.float32) for heads in (6, 3, 3))

    def digest(_):
        return hashlib.sha256(heed.attention(q, k, v).tobytes()).hexdigest()

    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        assert set(pool.map(digest, range(40))) == {digest(0)}


MODES = """
import hashlib
import numpy as np
import torch
import heed
if {with_torch}:
    import heed.torch
rng = np.random.default_rng(9)
q, k, v = (rng.standard_normal((2, heads, 300, 32), np.float32) for heads in (8, 2, 2))
v *= np.float32(2.0**-127)  # the answers are subnormal
def digests():
    return {{hashlib.sha256(heed.attention(q, k, v, threads=n).tobytes()).hexdigest() for n in (1, 4) for _ in range(6)}}
before = digests()
if torch.set_flush_denormal(True):
    flushed = digests()
    assert len(flushed) == 1 and flushed != before, len(flushed)
    torch.set_flush_denormal(False)
assert len(before) == 1 and digests() == before
"""


@pytest.mark.parametrize("with_torch", [False, True])
def test_flushing_subnormals_gives_one_answer_on_any_number_of_threads(with_torch):
    done(MODES.format(with_torch=with_torch))


SEEN = """
import os, sys
import torch
import heed
torch.set_num_threads(2)
heed.set_num_threads(2)
torch.randn(512, 512) @ torch.randn(512, 512)
torch.randn(1 << 20).exp()  # PyTorch's threads are there now
q = torch.randn(1, 8, 512, 64)
before = len(os.listdir("/proc/self/task"))
heed.attention(q, q, q)
assert len(os.listdir("/proc/self/task")) == before, (before, os.listdir("/proc/self/task"))
"""


def test_a_tensor_of_pytorchs_brings_its_threads_along():
    done(SEEN)


FORKED = """
import os, signal
import numpy as np
import torch
import heed
torch.set_num_threads(2)
heed.set_num_threads(2)
q = torch.randn(1, 8, 300, 64)
expected = heed.attention(q, q, q).numpy()
child = os.fork()
if child == 0:
    signal.alarm(60)
    q = q.numpy()
    os._exit(0 if np.array_equal(heed.attention(q, q, q), expected) else 1)
_, status = os.waitpid(child, 0)
assert status == 0, status
"""


def test_a_forked_child_does_not_wait_for_pytorchs_threads():
    done(FORKED)
