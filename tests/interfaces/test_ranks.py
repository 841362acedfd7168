# SPDX-License-Identifier: Apache-2.0
"""heed run --ranks and heed bench --ranks: the bits of one process, and a sentence where there can be no ranks. HEED_TOOL names the tool."""

import json
import os
import shutil

import numpy as np
import pytest

from tool import TOOL, heed, json_of

pytestmark = pytest.mark.skipif(not TOOL, reason="HEED_TOOL does not name the tool")

SMALL = ["run", "--length", 40, "--model-dim", 24, "--heads", 4, "--kv-heads", 2, "--causal"]
ONE_THREAD = {"HEED_NUM_THREADS": "1"}
WITHOUT = "heed: --ranks: this heed was built without MPI; configure it with -DHEED_MPI=ON\n"


def over_ranks(folder, *flags, **changes):
    """Of a tool with MPI; without it there is one sentence, whatever else is wrong."""
    ended = heed(folder, *SMALL, "--ranks", *flags, **{**ONE_THREAD, **changes})
    return None if ended.stderr == WITHOUT else ended


@pytest.mark.skipif(not shutil.which("mpirun"), reason="there is no mpirun")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_any_number_of_ranks_gives_the_digest_of_one_process(tmp_path, ranks):
    ended = over_ranks(tmp_path, ranks, "--oversubscribe", "--out", "y.npy", "--json")
    if ended is None:
        return
    assert ended.returncode == 0, ended.stderr
    expected = json_of(tmp_path, *SMALL, "--out", "one.npy")
    assert json.loads(ended.stdout)["digest"] == expected["digest"]
    assert (tmp_path / "y.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()


@pytest.mark.skipif(not shutil.which("mpirun"), reason="there is no mpirun")
def test_ranks_have_their_heads_of_what_is_given_for_each(tmp_path):
    random = np.random.default_rng(1)
    np.save(tmp_path / "b.npy", random.normal(size=(4, 40, 40)).astype(np.float32))
    np.save(tmp_path / "h.npy", random.random((2, 4, 40, 40)) < 0.3)
    np.save(tmp_path / "s.npy", random.normal(size=4).astype(np.float32))
    flags = ["--alibi", "--bias", "b.npy", "--hide", "h.npy", "--sink", "s.npy"]
    ended = over_ranks(tmp_path, 2, "--oversubscribe", *flags, "--json")
    if ended is None:
        return
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["digest"] == json_of(tmp_path, *SMALL, *flags)["digest"]
    refused = over_ranks(tmp_path, 2, "--head-map", "tiled")
    assert refused.stderr == "heed: --head-map: over ranks heads that share keys are neighbours; leave --ranks out\n"


def test_where_there_can_be_no_ranks_a_sentence_says_what_to_do(tmp_path):
    several = os.cpu_count() + 1
    for flags, changes, sentence in [
        ([1], {"PATH": str(tmp_path)}, "there is no mpirun in PATH; install Open MPI (Debian: openmpi-bin), or leave --ranks out"),
        ([several], {}, f"{several} is more than the processors there are: {several - 1}; say --oversubscribe to let them share"),
    ]:
        ended = over_ranks(tmp_path, *flags, **changes)
        if ended is not None:
            assert (ended.returncode, ended.stderr) == (2, f"heed: --ranks: {sentence}\n")


@pytest.mark.skipif(not shutil.which("mpirun"), reason="there is no mpirun")
def test_what_one_rank_refuses_ends_them_all_at_once(tmp_path):
    ended = over_ranks(tmp_path, 5, "--oversubscribe")
    if ended is not None:
        assert ended.returncode == 2
        assert "gave up: ranks: 5 are more than config.heads: 4 can be divided among" in ended.stderr
        assert "\nheed: --ranks: mpirun ended with status 75, as it says above\n" in ended.stderr


def test_what_needs_all_heads_is_refused(tmp_path):
    ended = heed(tmp_path, *SMALL, "--ranks", 2, "--save-weights", "a.npy")
    assert (ended.returncode, ended.stderr) == (2, "heed: --save-weights: no rank has all heads; leave --ranks out\n")
    assert not list(tmp_path.iterdir())


BENCH = ["bench", "--suite", "ranks", "--quick", "--json", "--ranks"]


@pytest.mark.skipif(not shutil.which("mpirun"), reason="there is no mpirun")
def test_the_bench_compares_every_bit_of_ranks_that_are_processes(tmp_path):
    ended = heed(tmp_path, *BENCH, 2, "--oversubscribe", **ONE_THREAD)
    if ended.stderr == WITHOUT:
        return
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert (answer["ranks"], answer["has_the_bits"]) == (2, True)
    # Keys and values lie in memory that both map: what travels is what they say of the call.
    assert 0 < answer["received_bytes"] < 2048 // 2 * 8 * 64 * 4 * 2 / 100


@pytest.mark.skipif(not shutil.which("mpirun"), reason="there is no mpirun")
def test_the_processes_of_the_bench_have_as_many_threads_as_asked_for(tmp_path):
    ended = heed(tmp_path, *BENCH, 2, "--threads", 2, "--oversubscribe", **ONE_THREAD)
    if ended.stderr == WITHOUT:
        return
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert (answer["ranks"], answer["threads"], answer["has_the_bits"]) == (2, 2, True)
    assert answer["decode_seconds"] == pytest.approx(answer["decode_alone_seconds"] + answer["decode_added_seconds"])
    assert answer["decode_received_messages"] == 0  # the states lie on a board that both see
    many = heed(tmp_path, *BENCH, 2, "--threads", 4096)
    assert many.returncode == 2 and many.stderr.startswith("heed: --ranks: 2, with 4096 threads each, are more than the processors there are: ")


def test_the_bench_has_ranks_in_one_suite_only(tmp_path):
    ended = heed(tmp_path, "bench", "--ranks", 2)
    assert (ended.returncode, ended.stderr) == (2, "heed: --ranks: means nothing without --suite ranks\n")


def test_the_bench_has_one_thread_for_each_rank_that_is_a_thread(tmp_path):
    ended = heed(tmp_path, "bench", "--suite", "ranks", "--threads", 2)
    assert (ended.returncode, ended.stderr) == (2, "heed: --threads: ranks that are threads have one each; say --ranks for processes\n")
