# SPDX-License-Identifier: Apache-2.0
"""PyTorch as judge of the gradients of 1,000 random calls; torch_gradients.py says how."""

import pytest
import torch_calls
import torch_gradients

CALLS_PER_TEST = 100
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")


@pytest.mark.parametrize("first", range(0, 1000, CALLS_PER_TEST))
def test_no_gradient_disagrees_with_torch_beyond_twice_the_error_of_eager(first):
    seeds = range(first, first + CALLS_PER_TEST)
    failures = torch_calls.failures("torch_gradients", torch_gradients.disagreement, seeds)
    assert not failures, f"{len(failures)} of {CALLS_PER_TEST} calls:\n" + "\n".join(failures)
