# SPDX-License-Identifier: Apache-2.0
"""The attention layer in NumPy and double precision: an independent judge of what the tool computes."""

import numpy as np


def rotated(x, base):
    """x is (batch, heads, length, dim); pairs are (d, d + dim/2), token t turns by t / base^(2d/dim)."""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[2])[:, None] / base ** (np.arange(half) / half)[None, :]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate(
        [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1
    )


def split(x, heads):
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def layer(weights, x, heads, kv_heads, context=None, visible=None, base=None):
    """weights: W_q.weight ... (out, in). visible: true where a query sees a key, broadcast to (batch, heads,
    queries, keys). Returns the output (batch, queries, model) and the attention weights."""
    w = {name: array.astype(np.float64) for name, array in weights.items()}
    x = x.astype(np.float64)
    context = x if context is None else context.astype(np.float64)

    def project(name, values):
        return values @ w[f"W_{name}.weight"].T + w.get(f"W_{name}.bias", 0.0)

    q, k, v = (
        split(project("q", x), heads),
        split(project("k", context), kv_heads),
        split(project("v", context), kv_heads),
    )
    if base is not None:
        q, k = rotated(q, base), rotated(k, base)
    k, v = k.repeat(heads // kv_heads, axis=1), v.repeat(heads // kv_heads, axis=1)
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    seen = np.broadcast_to(True if visible is None else visible, scores.shape)
    largest = np.where(seen, scores, -np.inf).max(axis=-1, keepdims=True)
    powers = np.where(seen, np.exp(np.where(seen, scores - np.where(np.isfinite(largest), largest, 0), 0)), 0)
    total = powers.sum(axis=-1, keepdims=True)
    attention = np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)
    joined = (attention @ v).transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[1], -1)
    return project("o", joined), attention


def causal(queries, keys, offset=0):
    return np.arange(keys)[None, :] <= np.arange(queries)[:, None] + offset


def window(queries, keys, left, right, offset=0):
    distance = np.arange(keys)[None, :] - np.arange(queries)[:, None] - offset
    return (distance >= -left) & (distance <= right)


def splitmix_uniform(seed, stream, count):
    """The tool's random inputs, from the words of cli/random_values.hpp and the published splitmix64."""
    mask = (1 << 64) - 1

    def mixed(z):
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        return z ^ z >> 31

    golden = 0x9E3779B97F4A7C15
    start = mixed((mixed((seed + golden) & mask) + stream) & mask)
    return np.array(
        [(mixed((start + (i + 1) * golden) & mask) >> 40) / 2**23 - 1 for i in range(count)], np.float32
    )


def fnv1a64(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
    return f"fnv1a64:{value:016x}"
