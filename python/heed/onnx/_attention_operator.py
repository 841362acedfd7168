# SPDX-License-Identifier: Apache-2.0
"""The operator Attention of ONNX opsets 23, 24 and 25, computed by heed.attention.

What is written here is only the standard's way of asking: 3-D inputs, a cache that grows by concatenation,
masks that may be short, queries that stand behind the cache, and what to return.
"""

from typing import Any, NamedTuple

import numpy as np

import heed
from heed._errors import Error, KindError
from heed.onnx import _masks
from heed.onnx._arrays import FLOATS_AND_DOUBLE, like, require_float, shape_error, shape_text, split_heads, to_numpy
from heed.onnx._attributes import DOUBLE, AttentionAttributes, attention_attributes

STAGES = ("raw", "softcapped", "biased")  # qk_matmul_output_mode 0, 1 and 2; 3 is the weights


class AttentionOutputs(NamedTuple):
    """The four outputs of the node; the optional ones are always there."""

    Y: Any
    present_key: Any
    present_value: Any
    qk_matmul_output: Any


class _Inputs(NamedTuple):
    """What heed.attention reads: the axes are (batch, heads, length, dim), k and v begin with the cache."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    past: int | None = None  # keys in the cache


def attention(
    Q: Any,
    K: Any,
    V: Any,
    attn_mask: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    nonpad_kv_seqlen: Any = None,
    *,
    opset: int = 25,
    **attributes: Any,
) -> AttentionOutputs:
    """ONNX Attention, with the names, defaults and rules of the standard.

    Q is (batch, q_num_heads, queries, head_size), or (batch, queries, q_num_heads * head_size) with the
    attributes q_num_heads and kv_num_heads; K and V likewise. They are float32, float16, bfloat16 or float64.
    Returns (Y, present_key, present_value, qk_matmul_output) always, as arrays of Q's kind: Y has the rank of
    Q, the others have 4 dimensions. Without a cache, present_key and present_value are K and V.

    Attributes: is_causal, scale, q_num_heads, kv_num_heads, softmax_precision, softcap, qk_matmul_output_mode
    and, in opset 25, left_window_size and right_window_size.

    >>> import numpy as np, heed.onnx
    >>> Q, K, V = (np.ones((1, 2, length, 8), np.float32) for length in (4, 6, 6))
    >>> Y, present_key, present_value, scores = heed.onnx.attention(Q, K, V, is_causal=1)
    >>> Y.shape, scores.shape
    ((1, 2, 4, 8), (1, 2, 4, 6))
    """
    node = attention_attributes(opset, attributes)
    arrays = {name: to_numpy(name, array) for name, array in (("Q", Q), ("K", K), ("V", V))}
    inputs = _append(past_key, past_value, _with_heads(arrays, node, opset))
    if nonpad_kv_seqlen is not None and opset < 24:
        raise Error(f"nonpad_kv_seqlen: an input since opset 24; found opset {opset}")
    if nonpad_kv_seqlen is not None and inputs.past is not None:
        raise Error("nonpad_kv_seqlen: must not be given together with past_key; found both")
    y, scores = _compute(node, inputs, _visibility(node, opset, inputs, attn_mask, nonpad_kv_seqlen))
    if arrays["Q"].ndim == 3:
        y = y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], y.shape[1] * y.shape[3])
    return AttentionOutputs(*(like(Q, array) for array in (y, inputs.k, inputs.v, scores)))


def _with_heads(arrays: dict[str, np.ndarray], node: AttentionAttributes, opset: int) -> _Inputs:
    """Q, K and V, checked, with four axes."""
    q, k, v = arrays.values()
    for name, array in arrays.items():
        require_float(name, array, FLOATS_AND_DOUBLE)
        if array.ndim != q.ndim or array.ndim not in (3, 4):
            found = f"{q.ndim}, {k.ndim} and {v.ndim}"
            raise shape_error(f"{name}: Q, K and V must all have 3 or all have 4 dimensions; found {found}")
    if k.dtype != q.dtype:
        raise KindError(f"K: must have the type of Q, {q.dtype.name}; found {k.dtype.name}")
    heads = [("q_num_heads", node.q_num_heads, q)]
    heads += [("kv_num_heads", node.kv_num_heads, array) for array in (k, v)]
    if q.ndim == 3:
        return _Inputs(*(split_heads(*head) for head in heads))
    for name, given, array in heads:
        if given is not None and opset >= 25:
            raise Error(f"{name}: must not be given with 4-D inputs since opset 25; found {given}")
        if given not in (None, array.shape[1]):
            raise shape_error(f"{name}: must be the number of heads, {array.shape[1]}; found {given}")
    return _Inputs(q, k, v)


def _append(past_key: Any, past_value: Any, new: _Inputs) -> _Inputs:
    """K and V behind the cache."""
    if (past_key is None) != (past_value is None):
        raise Error("past_key: past_key and past_value must be given together; found one of them")
    if past_key is None:
        return new
    past_k, past_v = to_numpy("past_key", past_key), to_numpy("past_value", past_value)
    for name, past, array in (("past_key", past_k, new.k), ("past_value", past_v, new.v)):
        if past.dtype != array.dtype:
            raise KindError(
                f"{name}: must have the type of the new ones, {array.dtype.name}; found {past.dtype.name}"
            )
        batch, heads, _, dim = array.shape
        wanted = (batch, heads, past_k.shape[2] if past_k.ndim == 4 else 0, dim)
        if past.shape != wanted:
            raise shape_error(f"{name}: must have the shape {wanted}; found {shape_text(past)}")
    k, v = (np.concatenate(pair, axis=2) for pair in ((past_k, new.k), (past_v, new.v)))
    return _Inputs(new.q, k, v, past=past_k.shape[2])


def _visibility(
    node: AttentionAttributes, opset: int, inputs: _Inputs, attn_mask: Any, nonpad_kv_seqlen: Any
) -> dict[str, Any]:
    """The masks as heed.attention takes them."""
    (batch, heads, queries, _), keys = inputs.q.shape, inputs.k.shape[2]
    lengths = _masks.key_lengths(nonpad_kv_seqlen, batch, keys)
    keep, bias = _masks.split_mask(attn_mask, inputs.q.dtype)
    if opset >= 24:
        needed = 0 if lengths is None else int(lengths.max(initial=0))
        keep, bias = _masks.lengthen(keep, keys, needed), _masks.lengthen(bias, keys, needed)
    for mask in (keep, bias):
        _masks.require_broadcast(mask, (batch, heads, queries, keys))
    offset = np.array([inputs.past or 0]) if lengths is None else lengths.astype(np.int64) - queries
    options = _masks.positional(node, _masks.Place(queries, keys, offset))
    if keep is not None:
        options["keep"] = keep & options["keep"] if "keep" in options else keep
    return {**options, "key_lengths": lengths, "bias": bias}


def _compute(
    node: AttentionAttributes, inputs: _Inputs, visibility: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Y with four axes, and qk_matmul_output; both in the type of Q."""
    q, k, v, _ = inputs
    dtype = q.dtype
    if v.dtype != dtype:  # the standard lets V have a type of its own
        wide = np.float64 if np.float64 in (dtype, v.dtype) else np.float32
        q, k, v = (array.astype(wide) for array in (q, k, v))
        if visibility["bias"] is not None:
            visibility["bias"] = visibility["bias"].astype(wide)
    options = {**visibility, "scale": node.scale, "softcap": node.softcap or None}
    mode = node.qk_matmul_output_mode
    if mode == 3:
        y, asked = heed.attention(q, k, v, return_weights=True, **options)
    else:
        y, asked = heed.attention(q, k, v, return_scores=STAGES[mode], **options)
    if node.softmax_precision == DOUBLE and q.dtype != np.float64:  # whose softmax has been in double
        biased = asked if mode == 2 else heed.attention(q, k, v, return_scores="biased", **options)[1]
        weights = _softmax_in_double(biased).astype(dtype)
        y, asked = _weighted_sum(weights, v, y), weights if mode == 3 else asked
    return y.astype(dtype, copy=False), asked.astype(dtype, copy=False)


def _softmax_in_double(scores: np.ndarray) -> np.ndarray:
    """Over the last axis; a row that is -inf throughout sees no key and gets zeros."""
    scores = scores.astype(np.float64)
    highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    with np.errstate(invalid="ignore"):  # a NaN or an infinite score is the caller's own
        powers = np.exp(scores - np.where(np.isneginf(highest), 0, highest))
    total = powers.sum(axis=-1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def _weighted_sum(weights: np.ndarray, v: np.ndarray, y: np.ndarray) -> np.ndarray:
    """weights times v. A row that sees a NaN or an infinity has it in heed's own y; no other row may get it."""
    finite = np.where(np.isfinite(v), v, 0).astype(np.float64)
    shared = np.repeat(finite, weights.shape[1] // max(v.shape[1], 1), axis=1)
    return np.where(np.isfinite(y), np.matmul(weights.astype(np.float64), shared), y.astype(np.float64))
