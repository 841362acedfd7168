# SPDX-License-Identifier: Apache-2.0
"""layout="bshd": (batch, length, heads, dim) in and out, with the bits of (batch, heads, length, dim)."""

import numpy as np
import pytest
import textbook

import heed


def turned(array):
    """The other order of the axes, in memory of its own."""
    return np.ascontiguousarray(np.swapaxes(array, -3, -2))


def arrays(dtype=np.float32, rank=4):
    drawn = textbook.random_arrays(61, (2, 6, 7, 16), (2, 2, 9, 16), (2, 2, 9, 24))
    return [x.astype(dtype)[(0,) * (4 - rank)] for x in drawn]


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_results_have_the_same_bits_in_both_orders(dtype, rank):
    q, k, v = arrays(dtype, rank)
    options = {"causal": "ends", "window": (5, 0), "sink": np.linspace(-1, 1, 6).astype(dtype), "return_lse": True, "return_weights": True}
    out, weights, lse = heed.attention(q, k, v, **options)
    other, other_weights, other_lse = heed.attention(turned(q), turned(k), turned(v), layout="bshd", **options)
    assert other.shape == turned(out).shape and other.flags.c_contiguous
    assert other.tobytes() == turned(out).tobytes()
    assert other_weights.tobytes() == weights.tobytes() and other_lse.tobytes() == lse.tobytes()


def test_out_is_written_in_the_order_that_is_said():
    q, k, v = arrays()
    into = np.zeros((2, 7, 6, 24), np.float32)
    assert heed.attention(turned(q), turned(k), turned(v), layout="bshd", out=into) is into
    assert into.tobytes() == turned(heed.attention(q, k, v)).tobytes()
    with pytest.raises(heed.Error, match="out"):
        heed.attention(turned(q), turned(k), turned(v), layout="bshd", out=np.zeros((2, 6, 7, 24), np.float32))


def test_gradients_come_in_the_order_of_their_arguments():
    q, k, v = arrays()
    out, lse = heed.attention(q, k, v, causal="ends", return_lse=True)
    (gradient,) = textbook.random_arrays(62, out.shape)
    bias = np.linspace(-1, 1, 63, dtype=np.float32).reshape(7, 9)
    expected = heed.attention_backward(gradient, q, k, v, out, lse, by=("q", "k", "v", "bias"), causal="ends", bias=bias)
    into = tuple(np.zeros_like(turned(x)) for x in (q, k, v))
    for given in (None, into):
        found = heed.attention_backward(
            *map(turned, (gradient, q, k, v, out)), lse, by=("q", "k", "v", "bias"), into=given, layout="bshd", causal="ends", bias=bias
        )
        for ours, theirs in zip(found[:3], expected[:3]):
            assert ours.tobytes() == turned(theirs).tobytes()
        assert found[3].tobytes() == expected[3].tobytes()
    assert all(ours.tobytes() == turned(theirs).tobytes() for ours, theirs in zip(into, expected))


def test_packed_rows_and_caches_are_read_in_either_order():
    q, k, v = arrays()
    packed = [np.concatenate(list(turned(x))) for x in (q, k, v)]  # (all rows, heads, dim), as FlashAttention packs them
    out = heed.attention(*packed, query_starts=[0, 7, 14], key_starts=[0, 9, 18], layout="bshd", causal="ends")
    assert out.tobytes() == turned(heed.attention(q, k, v, causal="ends")).tobytes()
    cache = heed.KvCache(batch=2, kv_heads=2, capacity=16, dim=16, value_dim=24)
    cache.append(k, v)
    out = heed.attention(turned(q), cache=cache, layout="bshd", causal=True)
    assert out.tobytes() == turned(heed.attention(q, k, v, causal="ends")).tobytes()


def test_two_axes_have_no_heads_and_are_alike_in_both():
    q, k, v = (x[0, 0] for x in arrays())
    assert heed.attention(q, k, v, layout="bshd").tobytes() == heed.attention(q, k, v).tobytes()


def test_tensors_of_pytorch_come_back_as_such():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(turned(x)) for x in arrays())
    out = heed.attention(q, k, v, layout="bshd")
    assert torch.equal(out.transpose(1, 2), heed.attention(*(x.transpose(1, 2) for x in (q, k, v))))


def test_another_layout_is_named():
    q, k, v = arrays()
    with pytest.raises(heed.Error, match='layout: "sbhd" is neither "bhsd"'):
        heed.attention(q, k, v, layout="sbhd")
    with pytest.raises(heed.Error, match="k.heads: 2 does not divide q.heads: 7"):
        heed.attention(q, turned(k), turned(v), layout="bshd")
