# SPDX-License-Identifier: Apache-2.0
"""NumPy: the textbook in f32, heads that share keys in one product."""

import numpy as np

from problem import NUMPY_TYPE


def softmax_in_place(scores):
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def attend(case, q, k, v):
    batch, heads, kv_heads, queries, keys, dim = case.shape
    hidden = np.triu(np.full((queries, keys), -np.inf, np.float32), 1) if case.causal else None
    grouped = q.reshape(batch, kv_heads, heads // kv_heads, queries, dim)
    out = np.empty_like(grouped)
    for b in range(batch):
        for h in range(kv_heads):
            scores = (grouped[b, h].reshape(-1, dim) * np.float32(dim**-0.5)) @ k[b, h].T
            if hidden is not None:
                scores.reshape(-1, queries, keys)[:] += hidden
            out[b, h] = (softmax_in_place(scores) @ v[b, h]).reshape(-1, queries, dim)
    return out.reshape(batch, heads, queries, dim)


def layer(case, x, weights):
    batch, heads, kv_heads, queries, _, dim = case.shape

    def split(y, count):
        return np.ascontiguousarray(y.reshape(batch, queries, count, dim).transpose(0, 2, 1, 3))

    q = split(x @ weights["w_q"].T, heads)
    k, v = (split(x @ weights[name].T, kv_heads) for name in ("w_k", "w_v"))
    context = attend(case, q, k, v).transpose(0, 2, 1, 3).reshape(batch, queries, -1)
    return context @ weights["w_o"].T


def ways(case, arrays, _threads):
    """Yields (name, run); run() returns the result as an array."""
    if case.role in ("backward", "training"):
        return
    if NUMPY_TYPE[case.dtype] is not np.float32:
        raise NotImplementedError(f"NumPy has no fast product of {case.dtype}")
    if case.role in ("layer", "projection"):
        yield "matmul", lambda: layer(case, arrays["x"], arrays)
    else:
        yield "matmul", lambda: attend(case, arrays["q"], arrays["k"], arrays["v"])


def version():
    return np.__version__

