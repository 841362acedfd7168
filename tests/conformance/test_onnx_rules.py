# SPDX-License-Identifier: Apache-2.0
"""What the ONNX standard or its node tests leave open: our choices, and what is refused."""

import ml_dtypes
import numpy as np
import pytest
import torch

import heed.onnx


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def qkv(queries=4, keys=6, heads=2, dtype=np.float32):
    return (
        normal(2, heads, queries, 8, seed=1, dtype=dtype),
        normal(2, heads, keys, 8, seed=2, dtype=dtype),
        normal(2, heads, keys, 8, seed=3, dtype=dtype),
    )


def test_without_a_cache_the_present_is_the_new_keys_and_values():
    q, k, v = qkv()
    _, present_key, present_value, _ = heed.onnx.attention(q, k, v)
    assert present_key is k and present_value is v


def test_mode_0_returns_the_scores_before_the_softcap():
    q, k, v = qkv()
    capped = heed.onnx.attention(q, k, v, softcap=0.5).qk_matmul_output
    np.testing.assert_array_equal(capped, heed.onnx.attention(q, k, v).qk_matmul_output)
    assert np.abs(capped).max() > 0.5


def test_a_mask_of_one_key_broadcasts_in_opset_23_and_is_short_since_opset_24():
    q, k, v = qkv()
    one_key = np.ones((4, 1), np.bool_)
    everything = heed.onnx.attention(q, k, v)
    np.testing.assert_array_equal(heed.onnx.attention(q, k, v, one_key, opset=23).Y, everything.Y)
    for opset in (24, 25):
        first_key_only = heed.onnx.attention(q, k, v, one_key, opset=opset)
        np.testing.assert_array_equal(first_key_only.Y, np.broadcast_to(v[:, :, :1], q.shape))


def test_an_integer_mask_is_added():
    q, k, v = qkv()
    mask = np.arange(6)
    added = heed.onnx.attention(q, k, v, mask.astype(np.float32))
    np.testing.assert_array_equal(heed.onnx.attention(q, k, v, mask).Y, added.Y)


@pytest.mark.parametrize("precision", [None, 1, 11])
def test_nan_reaches_the_rows_that_see_it_and_no_others(precision):
    q, k, v = qkv()
    keep = np.ones((4, 6), np.bool_)
    keep[:3, 5] = False
    clean = heed.onnx.attention(q, k, v, keep, softmax_precision=precision).Y
    k, v = k.copy(), v.copy()
    k[:, :, 5] = v[:, :, 5] = np.nan
    poisoned = heed.onnx.attention(q, k, v, keep, softmax_precision=precision).Y
    np.testing.assert_array_equal(poisoned[:, :, :3], clean[:, :, :3])
    assert np.isnan(poisoned[:, :, 3]).all()


def test_values_may_have_a_type_of_their_own():
    q, k, v = qkv()
    half_q, half_k = q.astype(np.float16), k.astype(np.float16)
    y, present_key, present_value, scores = heed.onnx.attention(half_q, half_k, v, np.zeros(6, np.float16))
    wanted = heed.onnx.attention(half_q.astype(np.float32), half_k.astype(np.float32), v)
    np.testing.assert_array_equal(y, wanted.Y.astype(np.float16))
    np.testing.assert_array_equal(scores, wanted.qk_matmul_output.astype(np.float16))
    assert present_key.dtype == np.float16 and present_value.dtype == np.float32


def test_values_in_double_are_not_rounded_before_the_sum():
    q, k, v = qkv()
    v = v.astype(np.float64) + 1e-12
    y = heed.onnx.attention(q, k, v).Y
    assert y.dtype == np.float32
    exact = heed.onnx.attention(*(array.astype(np.float64) for array in (q, k, v)))
    np.testing.assert_array_equal(y, exact.Y.astype(np.float32))


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("precision", [None, 1, 11])
def test_double_is_computed_in_double(mode, precision):
    q, k, v = qkv(dtype=np.float64)
    bias = normal(4, 6, seed=4, dtype=np.float64)
    found = heed.onnx.attention(q, k, v, bias, softcap=2.0, qk_matmul_output_mode=mode, softmax_precision=precision)
    raw = q @ k.swapaxes(2, 3) / np.sqrt(8)
    capped = 2 * np.tanh(raw / 2)
    powers = np.exp(capped + bias)
    weights = powers / powers.sum(-1, keepdims=True)
    for name, wanted in (("Y", weights @ v), ("qk_matmul_output", (raw, capped, capped + bias, weights)[mode])):
        assert getattr(found, name).dtype == np.float64, name
        np.testing.assert_allclose(getattr(found, name), wanted, rtol=1e-12, atol=1e-14, err_msg=name)


def test_a_window_may_be_wider_than_any_sequence():
    q, k, v = qkv()
    wide = heed.onnx.attention(q, k, v, left_window_size=2**62, right_window_size=2**62)
    np.testing.assert_array_equal(wide.Y, heed.onnx.attention(q, k, v).Y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_torch_tensors_give_torch_tensors_with_the_numbers_of_numpy(dtype):
    as_numpy = {torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: ml_dtypes.bfloat16, torch.float64: np.float64}
    arrays = qkv(dtype=as_numpy[dtype])
    tensors = [torch.from_numpy(a.astype(np.float64)).to(dtype) for a in arrays]
    past = [t[:, :, :3] for t in tensors[1:]]
    results = heed.onnx.attention(*tensors, None, *past, is_causal=1)
    wanted = heed.onnx.attention(*arrays, None, *(a[:, :, :3] for a in arrays[1:]), is_causal=1)
    for name, found, expected in zip(results._fields, results, wanted, strict=True):
        assert isinstance(found, torch.Tensor) and found.dtype == dtype, name
        np.testing.assert_array_equal(found.double().numpy(), expected.astype(np.float64), err_msg=name)


def test_jax_arrays_give_jax_arrays():
    jax = pytest.importorskip("jax")
    arrays = qkv()
    y = heed.onnx.attention(*map(jax.numpy.asarray, arrays)).Y
    assert isinstance(y, jax.Array)
    np.testing.assert_array_equal(np.asarray(y), heed.onnx.attention(*arrays).Y)


def test_half_precision_rotary_embedding_rounds_once():
    x, angle = normal(2, 3, 5, 8), normal(2, 5, 4, seed=4)
    cos, sin = np.cos(angle), np.sin(angle)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        given = [a.astype(dtype) for a in (x, cos, sin)]
        once = heed.onnx.rotary_embedding(*(a.astype(np.float32) for a in given)).astype(dtype)
        found = heed.onnx.rotary_embedding(*given)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.astype(np.float32), once.astype(np.float32))


def lengths(*values):
    return {"nonpad_kv_seqlen": np.array(values)}


def past(**shapes):
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


FLAT = {"q": np.zeros((2, 4, 16), np.float32), "k": np.zeros((2, 6, 16), np.float32)}
# What is asked of heed.onnx.attention beside qkv(), and the sentence that refuses it.
REFUSED = [
    ({"opset": 22}, "opset: Attention is defined by opsets 23, 24 and 25; found 22"),
    ({"sink": 1}, "sink: Attention-25 has no such attribute; it has is_causal, scale, "),
    ({"left_window_size": 2, "opset": 24}, "left_window_size: Attention-24 has no such attribute"),
    ({"is_causal": 2}, "is_causal: must be one of 0, 1; found 2"),
    ({"is_causal": "yes"}, "is_causal: must be an integer; found str"),
    ({"scale": -1.0}, "scale: must not be negative; found -1.0"),
    ({"scale": float("nan")}, "scale: must be finite; found nan"),
    ({"scale": "1"}, "scale: must be a number; found str"),
    ({"softcap": -2.0}, r"softcap: must be 0 \(off\) or positive; found -2.0"),
    ({"softmax_precision": 7}, "softmax_precision: must be one of 1, 10, 11, 16; found 7"),
    ({"qk_matmul_output_mode": 4}, "qk_matmul_output_mode: must be one of 0, 1, 2, 3; found 4"),
    ({"left_window_size": -2}, r"left_window_size: must be -1 \(no bound\) or more; found -2"),
    ({"right_window_size": 1.5}, "right_window_size: must be an integer; found float"),
    ({"q_num_heads": 2}, "q_num_heads: must not be given with 4-D inputs since opset 25; found 2"),
    ({"kv_num_heads": 1, "opset": 24}, "kv_num_heads: must be the number of heads, 2; found 1"),
    ({"Q": FLAT["q"]}, "K: Q, K and V must all have 3 or all have 4 dimensions; found 3, 4 and 4"),
    (
        {"Q": FLAT["q"], "K": FLAT["k"], "V": FLAT["k"]},
        "q_num_heads: 3-D inputs need a positive number of heads",
    ),
    (
        {"Q": FLAT["q"], "K": FLAT["k"], "V": FLAT["k"], "q_num_heads": 3, "kv_num_heads": 3},
        "q_num_heads: 3 does not divide the width of a 3-D input: 16",
    ),
    ({"Q": np.zeros((2, 2, 4, 8), np.int32)}, "Q: must be float32, float16, bfloat16 or float64; found int32"),
    ({"Q": np.zeros((2, 2, 4, 8))}, "K: must have the type of Q, float64; found float32"),
    ({"K": np.zeros((2, 2, 6, 8), np.float16)}, "K: must have the type of Q, float32; found float16"),
    ({n: np.zeros((2, 3, 6, 8), np.float32) for n in "KV"}, "k.heads: 3 does not divide q.heads: 2"),
    ({"Q": [1.0]}, "Q: must be an array; found list"),
    (past(past_key=(2, 2, 3, 8)), "past_key: past_key and past_value must be given together"),
    (
        past(past_key=(2, 2, 3, 8), past_value=(2, 2, 4, 8)),
        r"past_value: must have the shape \(2, 2, 3, 8\); found \(2, 2, 4, 8\)",
    ),
    (
        {n: np.zeros((2, 2, 3, 8), np.float16) for n in ("past_key", "past_value")},
        "past_key: must have the type of the new ones, float32; found float16",
    ),
    (past(past_key=(2, 3, 8), past_value=(2, 3, 8)), r"past_key: must have the shape .*; found \(2, 3, 8\)"),
    ({**lengths(3, 4), "opset": 23}, "nonpad_kv_seqlen: an input since opset 24; found opset 23"),
    (
        {**lengths(3, 4), **past(past_key=(2, 2, 3, 8), past_value=(2, 2, 3, 8))},
        "nonpad_kv_seqlen: must not be given together with past_key; found both",
    ),
    (lengths(3), r"nonpad_kv_seqlen: must have the shape \(2,\); found \(1,\)"),
    (lengths(3, 7), "nonpad_kv_seqlen: must be between 0 and the number of keys, 6; found 7"),
    (lengths(3, -1), "nonpad_kv_seqlen: must be between 0 and the number of keys, 6; found -1"),
    (lengths(3.0, 4.0), "nonpad_kv_seqlen: must be integers; found float64"),
    (
        {**lengths(3, 4), "attn_mask": np.ones((4, 3), np.bool_)},
        "attn_mask: must be at least as long as nonpad_kv_seqlen, 4; found 3",
    ),
    ({"attn_mask": np.ones((4, 5), np.bool_), "opset": 23}, r"attn_mask: must broadcast to \(2, 2, 4, 6\)"),
    ({"attn_mask": np.ones((3, 6), np.bool_)}, r"attn_mask: must broadcast to .*; found \(1, 1, 3, 6\)"),
    ({"attn_mask": np.ones((4, 7), np.bool_)}, r"attn_mask: must broadcast to .*; found \(1, 1, 4, 7\)"),
    ({"attn_mask": np.array(True)}, "attn_mask: must have 1 to 4 dimensions; found 0"),
    (
        {"attn_mask": np.ones(6, np.complex64)},
        "attn_mask: must be bool or of a real number type; found complex64",
    ),
    ({"Q": torch.zeros(2, 2, 4, 8, requires_grad=True)}, "Q: requires a gradient"),
]


@pytest.mark.parametrize(("asked", "sentence"), REFUSED, ids=[sentence[:60] for _, sentence in REFUSED])
def test_attention_refuses(asked, sentence):
    given = {**dict(zip("QKV", qkv(), strict=True)), **asked}
    with pytest.raises(heed.Error, match=f"^{sentence}"):
        heed.onnx.attention(**given)


REFUSED_ROTATIONS = [
    (
        {"theta": 1},
        "theta: RotaryEmbedding-23 has no such attribute; it has interleaved, rotary_embedding_dim, ",
    ),
    ({"interleaved": 2}, "interleaved: must be one of 0, 1; found 2"),
    ({"rotary_embedding_dim": 7}, "rotary_embedding_dim: must be even and at most head_size, 8; found 7"),
    ({"rotary_embedding_dim": 10}, "rotary_embedding_dim: must be even and at most head_size, 8; found 10"),
    ({"rotary_embedding_dim": -2}, r"rotary_embedding_dim: must be 0 \(all\) or positive; found -2"),
    (
        {"X": np.zeros((2, 5, 24), np.float32)},
        "num_heads: 3-D inputs need a positive number of heads; found None",
    ),
    ({"X": np.zeros((5, 24), np.float32)}, "X: must have 3 or 4 dimensions; found 2"),
    ({"X": np.zeros((2, 3, 5, 8))}, "X: must be float32, float16 or bfloat16; found float64"),  # as the standard
    ({"cos_cache": np.zeros((9, 4))}, "cos_cache: must have the type of X, float32; found float64"),
    (
        {"sin_cache": np.zeros((9, 3), np.float32)},
        r"sin_cache: must be \(positions, 4\) with position_ids; found \(9, 3\)",
    ),
    (
        {"position_ids": None},
        r"cos_cache: must be \(2, 5, 4\) without position_ids; found \(9, 4\)",
    ),
    (
        {"position_ids": np.zeros((1, 5), np.int64)},
        r"position_ids: must have the shape \(2, 5\); found \(1, 5\)",
    ),
    ({"position_ids": np.full((2, 5), 9)}, "position_ids: cos_cache has the positions 0 to 8; found 9"),
    ({"position_ids": np.full((2, 5), -1)}, "position_ids: cos_cache has the positions 0 to 8; found -1"),
    ({"position_ids": np.zeros((2, 5))}, "position_ids: must be integers; found float64"),
]


@pytest.mark.parametrize(("asked", "sentence"), REFUSED_ROTATIONS, ids=[s[:60] for _, s in REFUSED_ROTATIONS])
def test_rotary_embedding_refuses(asked, sentence):
    caches = {name: np.zeros((9, 4), np.float32) for name in ("cos_cache", "sin_cache")}
    given = {"X": np.zeros((2, 3, 5, 8), np.float32), **caches, "position_ids": np.zeros((2, 5), np.int64)}
    with pytest.raises(heed.Error, match=f"^{sentence}"):
        heed.onnx.rotary_embedding(**{**given, **asked})
