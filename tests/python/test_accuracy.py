# SPDX-License-Identifier: Apache-2.0
"""An exact library is not the less accurate one: errors in f32 against float64, beside PyTorch's."""

import numpy as np
import pytest
import torch

import heed

sdpa = torch.nn.functional.scaled_dot_product_attention
ERROR_OF_NOISE = 1.05  # root mean squares over some 100,000 elements vary by a few percent from draw to draw


def random_tensors(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def root_mean_square(error):
    return float(error.double().square().mean().sqrt())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [128, 512, 1024, 4096])
@pytest.mark.parametrize("dim", [32, 64, 128, 256])
def test_the_root_mean_square_error_is_at_most_that_of_pytorch(dim, length, causal):
    rows = min(length, 256)
    q, k, v = random_tensors(dim + length, (1, 4, rows, dim), (1, 4, length, dim), (1, 4, length, dim))
    seen = torch.ones(rows, length, dtype=torch.bool).tril(length - rows) if causal else None
    exact = sdpa(q.double(), k.double(), v.double(), attn_mask=seen)
    theirs = sdpa(q, k, v, is_causal=True) if causal and rows == length else sdpa(q, k, v, attn_mask=seen)
    ours = heed.attention(q, k, v, causal="ends" if causal else None)
    assert root_mean_square(ours - exact) <= ERROR_OF_NOISE * root_mean_square(theirs - exact)


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("width", [256, 768, 2048])
def test_the_root_mean_square_error_of_projections_is_at_most_that_of_pytorch(width, rows):
    """Sequences of one token attend to nothing but themselves: their layer is W_o of W_v."""
    layer = heed.AttentionLayer(width, heads=4, seed=width)
    w_v, w_o = (torch.from_numpy(layer.state_dict()[name]) for name in ("W_v.weight", "W_o.weight"))
    (x,) = random_tensors(width, (64, 1, width))
    exact = x.double() @ w_v.double().T @ w_o.double().T
    theirs = x @ w_v.T @ w_o.T
    ours = torch.cat([layer(some) for some in x.split(rows)])
    assert root_mean_square(ours - exact) <= ERROR_OF_NOISE * root_mean_square(theirs - exact)


def eager(q, k, v, seen):
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("seed", range(20))
def test_no_call_errs_twice_as_much_as_eager_attention(seed):
    """FlashAttention's rule, for root mean squares: the largest error of a call is a matter of luck."""
    random = np.random.default_rng(seed)
    for _ in range(15):
        heads, rows, length = (int(random.integers(*span)) for span in ((1, 5), (1, 65), (1, 1100)))
        dim = int(random.choice([8, 16, 32, 40, 64, 80, 96, 128, 160, 192, 256]))
        q, k, v = random_tensors(int(random.integers(1 << 30)), *[(1, heads, n, dim) for n in (rows, length, length)])
        seen = torch.ones(rows, length, dtype=torch.bool)
        if random.integers(2):
            seen = seen.tril(max(0, length - rows))
        exact = eager(q.double(), k.double(), v.double(), seen)
        errors = [root_mean_square(out - exact) for out in (heed.attention(q, k, v, keep=seen), eager(q, k, v, seen))]
        assert errors[0] <= 2 * errors[1], (heads, rows, length, dim)
