# SPDX-License-Identifier: Apache-2.0
"""PyTorch as judge of 2,400 random calls; torch_lattice.py says how."""

import collections

import pytest
import torch_calls
import torch_lattice

CALLS_PER_TEST = 100
TESTS = 24
SEEDS = range(CALLS_PER_TEST * TESTS)
# Once per process, where the processor has no bfloat16 instructions; eager's numbers are not affected.
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")


@pytest.mark.parametrize("first", SEEDS[::CALLS_PER_TEST])
def test_no_call_disagrees_with_torch_beyond_twice_the_error_of_eager(first):
    seeds = range(first, first + CALLS_PER_TEST)
    failures = torch_calls.failures("torch_lattice", torch_lattice.disagreement, seeds)
    assert not failures, f"{len(failures)} of {CALLS_PER_TEST} calls:\n" + "\n".join(failures)


def test_the_calls_reach_every_feature_at_least_a_hundred_times():
    reached = collections.Counter()
    for seed in SEEDS:
        call = torch_calls.random_call(seed)
        reached.update(call.features)
        reached.update({"empty_rows"} if not call.seen_rows().all() else {})
        reached.update({"queries_are_not_keys"} if call.q.shape[-2] != call.k.shape[-2] else {})
        reached.update({"value_dim_is_not_dim"} if call.q.shape[-1] != call.v.shape[-1] else {})
    wanted = {
        "float32",
        "float16",
        "bfloat16",
        "rank_2",
        "rank_3",
        "rank_4",
        "rank_5",
        "gqa",
        "torch",
        "numpy",
    }
    wanted |= {"no_mask", "causal", "bool_mask", "float_mask", "empty_rows", "queries_are_not_keys"}
    wanted |= {"value_dim_is_not_dim", *torch_calls.LAYOUTS}
    assert {name: reached[name] for name in wanted if reached[name] < 100} == {}
