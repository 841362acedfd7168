# SPDX-License-Identifier: Apache-2.0
"""PyTorch as judge of the gradients of 1,000 random calls; torch_gradients.py says how."""

import pytest
import torch_gradients
import torch_lattice

CALLS_PER_TEST = 100
pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")


@pytest.mark.parametrize("first", range(0, 1000, CALLS_PER_TEST))
def test_no_gradient_disagrees_with_torch_beyond_twice_the_error_of_eager(first):
    failures = []
    for seed in range(first, first + CALLS_PER_TEST):
        found = torch_gradients.disagreement(torch_lattice.random_call(seed))
        if found:
            failures.append(f"python tests/conformance/torch_gradients.py --seed {seed}  # {found}")
    assert not failures, f"{len(failures)} of {CALLS_PER_TEST} calls:\n" + "\n".join(failures)
