# SPDX-License-Identifier: Apache-2.0
"""heed.scaled_dot_product_attention means what torch.nn.functional's means, argument by argument."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import heed

SHAPES = {
    "no leading axes": ((5, 8), (7, 8), (7, 6)),
    "one": ((3, 5, 8), (3, 7, 8), (3, 7, 6)),
    "two": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)),
    "three": ((2, 2, 3, 5, 8), (2, 2, 3, 7, 8), (2, 2, 3, 7, 6)),
    "five": ((2, 1, 2, 1, 3, 5, 8), (2, 1, 2, 1, 3, 7, 8), (2, 1, 2, 1, 3, 7, 6)),
    "the batch of k and v broadcasts": ((4, 3, 5, 8), (1, 3, 7, 8), (1, 3, 7, 6)),
    "the batch of q broadcasts": ((1, 3, 5, 8), (4, 3, 7, 8), (4, 3, 7, 6)),
    "heads broadcast": ((2, 3, 5, 8), (2, 1, 7, 8), (2, 1, 7, 6)),
    "heads of k alone broadcast": ((2, 3, 5, 8), (2, 1, 7, 8), (2, 3, 7, 6)),
    "heads of q broadcast": ((2, 1, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)),
    "leading axes cross": ((2, 1, 3, 5, 8), (1, 4, 3, 7, 8), (1, 4, 3, 7, 6)),
    "ranks differ": ((2, 4, 3, 5, 8), (4, 3, 7, 8), (3, 7, 6)),
    "an empty batch": ((0, 3, 5, 8), (0, 3, 7, 8), (0, 3, 7, 6)),
    "an empty batch outside": ((0, 2, 3, 5, 8), (1, 2, 3, 7, 8), (1, 2, 3, 7, 6)),
}


def tensors(shapes, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def disagreements(arguments, options):
    """Elements that differ from torch in float64 by more than float32 allows."""
    wide = {key: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for key, x in options.items()}
    expected = F.scaled_dot_product_attention(*(x.double() for x in arguments), **wide)
    found = heed.scaled_dot_product_attention(*arguments, **options)
    assert type(found) is torch.Tensor and found.dtype == arguments[0].dtype and found.shape == expected.shape
    return int((~((found.double() - expected).abs() <= 1e-5)).sum())


@pytest.mark.parametrize("name", SHAPES)
def test_leading_axes_broadcast_as_in_torch(name):
    assert disagreements(tensors(SHAPES[name]), {}) == 0


@pytest.mark.parametrize("name", SHAPES)
def test_causal_is_aligned_at_the_top_left(name):
    assert disagreements(tensors(SHAPES[name]), {"is_causal": True}) == 0


MASKS = [(5, 7), (1, 7), (5, 1), (3, 5, 7), (2, 1, 5, 7), (2, 3, 1, 7)]


@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize("leading", [(2,), (4, 2)])
def test_a_boolean_mask_attends_where_true(shape, leading):
    arguments = tensors([leading + shape[1:] for shape in SHAPES["two"]])
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.7
    assert disagreements(arguments, {"attn_mask": mask}) == 0


@pytest.mark.parametrize("shape", MASKS)
def test_a_float_mask_is_added(shape):
    mask = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    assert disagreements(tensors(SHAPES["two"]), {"attn_mask": mask}) == 0


def test_a_mask_with_more_leading_axes_is_walked_over():
    arguments = tensors(((2, 2, 3, 5, 8), (2, 1, 3, 7, 8), (2, 1, 3, 7, 6)))
    mask = torch.rand((1, 2, 1, 5, 7), generator=torch.Generator().manual_seed(1)) < 0.7
    assert disagreements(arguments, {"attn_mask": mask}) == 0


@pytest.mark.parametrize("heads", [(6, 3, 3), (6, 1, 1), (6, 2, 3), (6, 6, 2)])
@pytest.mark.parametrize("leading", [(), (2,), (2, 2)])
def test_grouped_heads_need_enable_gqa(heads, leading):
    h, k, v = heads
    arguments = tensors(((*leading, h, 5, 8), (*leading, k, 7, 8), (*leading, v, 7, 6)))
    assert disagreements(arguments, {"enable_gqa": True}) == 0
    mask = torch.rand((h, 5, 7), generator=torch.Generator().manual_seed(1)) < 0.7
    assert disagreements(arguments, {"enable_gqa": True, "attn_mask": mask}) == 0
    if 1 < k < h:
        for call in (heed.scaled_dot_product_attention, F.scaled_dot_product_attention):
            with pytest.raises((heed.Error, RuntimeError)):
                call(*arguments)


def test_scale_and_strides_are_honoured():
    q, k, v = (x.transpose(1, 2) for x in tensors(((2, 5, 3, 8), (2, 7, 3, 8), (2, 7, 3, 6))))
    assert disagreements((q, k, v), {"scale": 0.3}) == 0


def test_a_query_that_sees_no_key_yields_zeros():
    arguments = tensors(SHAPES["two"])
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    assert disagreements(arguments, {"attn_mask": mask}) == 0
    assert not heed.scaled_dot_product_attention(*arguments, attn_mask=mask)[:, :, 2].any()


def test_mask_and_is_causal_together_are_refused_as_torch_refuses_them():
    arguments = tensors(SHAPES["two"])
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(*arguments, attn_mask=torch.ones(5, 7, dtype=torch.bool), is_causal=True)
    with pytest.raises(heed.Error, match="attn_mask: Explicit attn_mask should not be set when is_causal=True"):
        heed.scaled_dot_product_attention(*arguments, attn_mask=torch.ones(5, 7, dtype=torch.bool), is_causal=True)


def test_arguments_stand_where_torch_has_them():
    arguments = tensors(SHAPES["two"])
    mask = torch.randn(5, 7, generator=torch.Generator().manual_seed(1))
    positional = heed.scaled_dot_product_attention(*arguments, mask, 0.0, False)
    assert torch.equal(positional, heed.scaled_dot_product_attention(*arguments, attn_mask=mask))


@pytest.mark.parametrize("shapes", [SHAPES["two"], SHAPES["leading axes cross"]])
def test_dropout_is_drawn_anew_and_repeats_with_the_seed_of_random(shapes):
    arguments = tensors(shapes)
    state = random.getstate()
    random.seed(3)
    first, second = (heed.scaled_dot_product_attention(*arguments, dropout_p=0.5) for _ in range(2))
    random.seed(3)
    again = heed.scaled_dot_product_attention(*arguments, dropout_p=0.5)
    random.setstate(state)
    assert torch.equal(first, again) and not torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_stay_sixteen_bits(dtype):
    arguments = tensors(SHAPES["two"], dtype=dtype)
    expected = F.scaled_dot_product_attention(*(x.double() for x in arguments))
    found = heed.scaled_dot_product_attention(*arguments)
    eager = torch.softmax(arguments[0] @ arguments[1].mT / 8**0.5, -1) @ arguments[2]
    allowed = 2 * (eager.double() - expected).abs().max()
    assert found.dtype == dtype
    assert int(((found.double() - expected).abs() > allowed).sum()) == 0


def test_numpy_gives_the_bits_of_torch():
    arguments = tensors(SHAPES["leading axes cross"])
    found = heed.scaled_dot_product_attention(*(x.numpy() for x in arguments), is_causal=True)
    assert type(found) is np.ndarray
    assert np.array_equal(found, heed.scaled_dot_product_attention(*arguments, is_causal=True).numpy())
