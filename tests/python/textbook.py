# SPDX-License-Identifier: Apache-2.0
"""Attention as the textbook writes it, in float64 with NumPy: what the binding's results are held to."""

from __future__ import annotations

import numpy as np

TOLERANCE = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}


def random_arrays(seed: int, *shapes: tuple[int, ...], dtype: object = np.float32) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes]


def attention(q, k, v, *, seen=None, bias=0.0, scale=None, softcap=None, sink=None) -> tuple:
    """(out, weights, log-sum-exp) over (..., heads, length, dim); seen is where a query may look."""
    q, k, v = (np.asarray(array).astype(np.float64) for array in (q, k, v))
    if k.ndim > 2:
        k, v = (np.repeat(array, q.shape[-3] // array.shape[-3], axis=-3) for array in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    scores = scores + np.asarray(bias).astype(np.float64)
    if seen is not None:
        scores = np.where(seen, scores, -np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = np.exp(scores).sum(axis=-1, keepdims=True)
        if sink is not None:
            total = total + np.exp(np.asarray(sink, np.float64))[..., None, None]
        weights = np.where(total > 0, np.exp(scores) / total, 0.0)
        return weights @ v, weights, np.log(total)[..., 0]


def misses(found: object, expected: np.ndarray) -> int:
    """How many elements are off by more than the element type allows."""
    array = np.asarray(found)
    assert array.shape == expected.shape, f"shape {array.shape} is not {expected.shape}"
    off = np.abs(array.astype(np.float64) - expected)
    return int(np.sum(~(off <= TOLERANCE[array.dtype.name] * np.maximum(1, np.abs(expected)))))


def bits(array: object) -> bytes:
    return np.ascontiguousarray(array).tobytes()
