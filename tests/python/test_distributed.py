# SPDX-License-Identifier: Apache-2.0
"""heed.distributed over mpi4py and torch.distributed: the bits of one process, and refusals that all ranks share."""

import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import forked
import heed
import heed.distributed

HERE = pathlib.Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples/ranks"
LAUNCHERS = []
if importlib.util.find_spec("mpi4py") and shutil.which("mpirun"):
    LAUNCHERS.append("mpi")
if importlib.util.find_spec("torch"):
    LAUNCHERS.append("torch")


def run(over, ranks, *command):
    if over == "mpi":
        launcher = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-np", str(ranks), sys.executable]
    else:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HEED_NUM_THREADS": "1"}
    return subprocess.run(
        [*launcher, *map(str, command)], capture_output=True, text=True, timeout=300, env=environment, check=False
    )


FORKED = """
import os
os.environ["HEED_NUM_THREADS"] = "1"
import torch
torch.set_num_threads(1)
import ranks as program
program.meeting = {{"init_method": (folder / "store").as_uri(), "rank": rank, "world_size": ranks}}
program.main("torch", "{what}")
"""


def run_ranks(over, ranks, what):
    if over == "mpi":
        return run(over, ranks, HERE / "ranks.py", over, what)
    return forked.run(FORKED.format(what=what), ranks)


@pytest.mark.parametrize("over", LAUNCHERS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_has_the_bits_of_one_process(over, ranks):
    done = run_ranks(over, ranks, "claims")
    assert done.returncode == 0, done.stderr
    for rank in range(ranks):
        assert f"rank {rank} of {ranks}: all claims hold" in done.stdout


@pytest.mark.parametrize("over", LAUNCHERS)
def test_a_rank_that_does_not_come_is_named_within_the_deadline(over):
    done = run_ranks(over, 2, "late")
    assert "rank 0, step 0 (what each rank was called with): nothing received from rank 1 for 1.0 s" in done.stdout


@pytest.mark.parametrize("over", LAUNCHERS)
def test_an_interrupted_rank_raises_what_its_handler_raised_and_tells_the_others(over):
    done = run_ranks(over, 2, "interrupted")
    for rank in range(2):
        assert f"rank {rank}: interrupted as itself" in done.stdout, done.stderr
    assert done.returncode == 0, done.stderr


class Interrupting:
    """Messages of a rank whose user is impatient."""

    rank, size = 0, 2

    def __init__(self, raising):
        self.raising, self.told = raising, []

    def send(self, to, memory, step):
        self.raising()

    def receive(self, peer, memory, step):
        self.raising()

    def abort(self, why):
        self.told.append(why)


def fail(text=""):
    raise RuntimeError(text)


def interrupted():
    previous = signal.signal(signal.SIGALRM, lambda number, frame: fail("a handler's"))
    try:
        signal.raise_signal(signal.SIGALRM)
        for _ in range(1000):  # the handler runs between two steps of the program
            pass
    finally:
        signal.signal(signal.SIGALRM, previous)


def stop():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "raising, kind, sentence",
    [
        (stop, KeyboardInterrupt, "it gave up: KeyboardInterrupt"),
        (lambda: sys.exit(3), SystemExit, "it gave up: SystemExit: 3"),
        (interrupted, RuntimeError, "it gave up: RuntimeError: a handler's"),
        (lambda: fail("the network's"), heed.Error, "the network's"),
        (fail, heed.Error, "RuntimeError"),
    ],
)
def test_what_a_handler_raises_is_no_fault_of_the_network(raising, kind, sentence):
    messages = Interrupting(raising)
    group = heed.distributed.Group(messages)
    x = np.ones((1, 1, 4, 4), np.float32)
    with pytest.raises(kind) as raised:
        heed.distributed.attention(group, split(ranks=2, queries=8, keys=8, heads=1, kv_heads=1), x, x, x)
    assert type(raised.value) is kind
    if kind is heed.Error:
        assert raised.value.code == "rank" and sentence in str(raised.value)
    else:
        assert len(messages.told) == 1 and messages.told[0].endswith(sentence)
        with pytest.raises(heed.Error, match=sentence):
            heed.distributed.attention(group, split(ranks=2, queries=8, keys=8, heads=1, kv_heads=1), x, x, x)


# A rank that sends itself so many bytes where so many were agreed on, in pieces of 8.
TO_ITSELF = """
from mpi4py import MPI
from heed import distributed
distributed.PIECE = 8
messages = distributed._MpiMessages(MPI.COMM_SELF)
for step, (sent, agreed) in enumerate([(16, 16), (8, 16), (16, 8), (7, 8)]):
    into = bytearray(agreed)
    sending, receiving = messages.send(0, bytes(range(sent)), step), messages.receive(0, into, step)
    try:
        while not receiving.is_done():
            pass
        print("whole" if into == bytes(range(sent)) else "cut")
    except RuntimeError as fault:
        print(fault)
"""


@pytest.mark.skipif("mpi" not in LAUNCHERS, reason="there is no mpi4py or no mpirun")
def test_a_message_that_ends_between_two_pieces_is_found_too_short_or_too_long():
    done = run("mpi", 1, "-c", TO_ITSELF)
    assert done.stdout.splitlines() == [
        "whole",
        "it is shorter than the 16 bytes that were agreed on",
        "it is longer than the 8 bytes that were agreed on",
        "it is shorter than the 8 bytes that were agreed on",
    ], done.stderr


@pytest.mark.parametrize("over", LAUNCHERS)
def test_the_example_runs(over):
    done = run(over, 2, EXAMPLES / ("mpirun.py" if over == "mpi" else "torchrun.py"))
    assert done.returncode == 0, done.stderr
    for rank in range(2):  # whose lines mpirun may join
        assert f"rank {rank} of 2: the bits of one process: True" in done.stdout


def test_what_cannot_be_a_group_is_refused():
    with pytest.raises(heed.KindError, match="over: int is neither an mpi4py communicator nor a torch.distributed process group"):
        heed.distributed.group(3)


class Alone:
    """The messages of a rank that has no others."""

    rank, size = 0, 1


def append(*, group=None, cache=None, sequence=0, length=0):
    x = np.ones((1, 2, 3, 4), np.float32)
    cache = heed.KvCache(batch=1, kv_heads=2, capacity=64, dim=4, page_size=16) if cache is None else cache
    heed.distributed.append(heed.distributed.Group(Alone()) if group is None else group, cache, sequence, length, x, x)


def split(**extents):
    return heed.distributed.split_sequence(**({"queries": 8, "keys": 8, "heads": 4, "kv_heads": 2, "ranks": 1} | extents))


REFUSED = {
    "no seconds": (lambda: heed.distributed.Group(Alone(), 0), "deadline: 0 s is not above 0"),
    "seconds in words": (lambda: heed.distributed.Group(Alone(), "x"), "deadline: str is not a number"),
    "no deadline": (lambda: heed.distributed.Group(Alone(), None), "deadline: NoneType is not a number"),
    "half a query": (lambda: split(queries=1.5), "queries: float is not an integer"),
    "keys in words": (lambda: split(keys="8"), "keys: str is not an integer"),
    "heads beyond 64 bits": (lambda: split(heads=2**64), "heads: the integer does not fit 64 bits"),
    "ranks of 33 bits": (lambda: split(ranks=2**32 + 1), r"ranks: 4294967297 is outside \[1, 2147483647\]"),
    "no group": (lambda: append(group=3), "group: int is not what heed.distributed.group returns"),
    "a layer over no group": (
        lambda: heed.distributed.AttentionLayer(3, {}, model_dim=8, heads=2),
        "group: int is not what heed.distributed.group returns",
    ),
    "a reason in numbers": (lambda: heed.distributed.Group(Alone()).abort(3), "why: int is not a str"),
    "no cache": (lambda: append(cache={}), "cache: dict is not a heed.KvCache"),
    "a sequence in words": (lambda: append(sequence="0"), "sequence: str is not an integer"),
    "half a token": (lambda: append(length=0.5), "length: float is not an integer"),
    "less than no tokens": (lambda: append(length=-1), "length: -1 is negative"),
    "tokens that were not appended": (lambda: append(length=7), "cache: sequence 0 has 0 tokens, and of 7 this rank's are 7"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_that_cannot_be_is_named(name):
    call, sentence = REFUSED[name]
    with pytest.raises(heed.Error, match="^" + sentence):
        call()
