# SPDX-License-Identifier: Apache-2.0
"""A case of `heed bench` as its name says it: the same shapes for every rival, and float64 to judge them by."""

import dataclasses
import itertools
import math
import re

import ml_dtypes
import numpy as np

NUMPY_TYPE = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
# Largest error of an element as a share of its row's largest. Rivals round the weights to the element type
# before they multiply, so this is wider than heed's own bound; a wrong mask or head is off by more than 1.
TOLERANCE = {"f32": 5e-4, "f16": 2e-2, "bf16": 1e-1}
SAMPLES = 6


@dataclasses.dataclass(frozen=True)
class Problem:
    """role is prefill, decode, backward, layer, training (a layer there and back) or projection; a projection has rows,
    out and in, the others six extents."""

    name: str
    role: str
    dtype: str
    extents: tuple
    causal: bool

    @property
    def shape(self):
        """(batch, heads, kv_heads, queries, keys, dim)"""
        return self.extents

    @property
    def is_grouped(self):
        return self.role != "projection" and self.extents[1] != self.extents[2]


def parse(name):
    found = re.fullmatch(r"(\w+)/(f32|f16|bf16)/(\d+(?:x\d+)+)(/causal)?", name)
    if not found:
        raise ValueError(f"{name}: not the name of a case")
    extents = tuple(int(number) for number in found[3].split("x"))
    return Problem(name, found[1], found[2], extents, bool(found[4]))


PROJECTIONS_OF_A_LAYER = 4


def in_a_layer(problem):
    """The layer whose four projections a projection is one of, where it is not to be had alone: rows are sequences of few
    tokens in few heads, as in `heed bench`, so that little is attended to between the four."""
    rows, _, width = problem.extents
    dim, tokens = math.gcd(width, 256), math.gcd(rows, 8)
    heads = width // dim
    return dataclasses.replace(problem, role="layer", extents=(rows // tokens, heads, heads, tokens, tokens, dim))


def in_turn(make):
    """One that calls four others one after another: heed's projections are the four of a layer, so no rival finds
    the weights of the last call in a cache either. make() builds one of the four, with memory of its own."""
    four = itertools.cycle([make() for _ in range(4)])
    return lambda: next(four)()


def inputs_of(problem):
    """Arrays in the case's own element type, by name."""
    random = np.random.default_rng(0)

    def uniform(*shape, scale=1.0):
        values = random.random(shape, dtype=np.float32)
        return ((2 * values - 1) * np.float32(scale)).astype(NUMPY_TYPE[problem.dtype])

    if problem.role == "projection":
        rows, out, width = problem.extents
        return {"x": uniform(rows, width), "w": uniform(out, width, scale=width**-0.5)}
    batch, heads, kv_heads, queries, keys, dim = problem.shape
    if problem.role in ("layer", "training"):
        width = heads * dim
        matrices = {"w_q": width, "w_k": kv_heads * dim, "w_v": kv_heads * dim, "w_o": width}
        weights = {name: uniform(out, width, scale=width**-0.5) for name, out in matrices.items()}
        arrays = {"x": uniform(batch, queries, width), **weights}
        if problem.role == "training":
            arrays["out_gradient"] = uniform(batch, queries, width)
        return arrays
    arrays = {
        "q": uniform(batch, heads, queries, dim),
        "k": uniform(batch, kv_heads, keys, dim),
        "v": uniform(batch, kv_heads, keys, dim),
    }
    if problem.role == "backward":
        arrays["out_gradient"] = uniform(batch, heads, queries, dim)
    return arrays


@dataclasses.dataclass(frozen=True)
class Row:
    """One row of a result in float64, and what its errors are measured by: at least its largest element."""

    index: tuple
    values: np.ndarray
    terms: float = 0.0

    @property
    def size(self):
        return max(np.abs(self.values).max(), self.terms)


def softmax_rows(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def attention_row(problem, arrays, row):
    """A row of the result; of a backward pass, the gradient by that query."""
    _, heads, kv_heads, queries, keys, dim = problem.shape
    batch, head, query = row // (heads * queries), row // queries % heads, row % queries
    kv_head = head // (heads // kv_heads)
    seen = query + 1 if problem.causal else keys
    q = arrays["q"][batch, head, query].astype(np.float64)
    k = arrays["k"][batch, kv_head, :seen].astype(np.float64)
    v = arrays["v"][batch, kv_head, :seen].astype(np.float64)
    weights = softmax_rows(k @ q / np.sqrt(dim))
    if problem.role != "backward":
        return Row((batch, head, query), weights @ v)
    by_weights = v @ arrays["out_gradient"][batch, head, query].astype(np.float64)
    # The first query of a causal mask sees one key: its gradient is a difference of two equal numbers.
    terms = (weights * np.abs(by_weights)) @ np.abs(k) / np.sqrt(dim)
    gradient = (weights * (by_weights - weights @ by_weights)) @ k / np.sqrt(dim)
    return Row((batch, head, query), gradient, terms.max())


def layer_row(problem, arrays, row):
    _, heads, kv_heads, queries, _, dim = problem.shape
    batch, query = row // queries, row % queries
    x = arrays["x"][batch].astype(np.float64)
    w_q, w_k, w_v, w_o = (arrays[name].astype(np.float64) for name in ("w_q", "w_k", "w_v", "w_o"))
    q = (w_q @ x[query]).reshape(heads, dim)
    k, v = ((x @ w.T).reshape(-1, kv_heads, dim).repeat(heads // kv_heads, axis=1) for w in (w_k, w_v))
    weights = softmax_rows(np.einsum("hd,jhd->hj", q, k) / np.sqrt(dim))
    return Row((batch, query), w_o @ np.einsum("hj,jhd->hd", weights, v).reshape(-1))


def training_gradient(problem, arrays, batch):
    """The gradient of a batch entry by x, of a layer whose result has the gradient out_gradient."""
    _, heads, kv_heads, _, _, dim = problem.shape
    x, out_gradient = (arrays[name][batch].astype(np.float64) for name in ("x", "out_gradient"))
    w_q, w_k, w_v, w_o = (arrays[name].astype(np.float64) for name in ("w_q", "w_k", "w_v", "w_o"))
    by_out = out_gradient @ w_o
    gradient = np.zeros_like(x)
    for head in range(heads):
        rows = slice(head * dim, (head + 1) * dim)
        kv_head = head // (heads // kv_heads)
        kv_rows = slice(kv_head * dim, (kv_head + 1) * dim)
        q, k, v = x @ w_q[rows].T, x @ w_k[kv_rows].T, x @ w_v[kv_rows].T
        weights = softmax_rows(q @ k.T / np.sqrt(dim))
        by_weights = by_out[:, rows] @ v.T
        by_scores = weights * (by_weights - (weights * by_weights).sum(-1, keepdims=True)) / np.sqrt(dim)
        gradient += by_scores @ k @ w_q[rows] + by_scores.T @ q @ w_k[kv_rows]
        gradient += weights.T @ by_out[:, rows] @ w_v[kv_rows]
    return gradient


def projection_row(_, arrays, row):
    return Row((row,), arrays["w"].astype(np.float64) @ arrays["x"][row].astype(np.float64))


def expected_rows(problem, arrays):
    """Rows spread over the result, the first and the last included."""
    if problem.role == "projection":
        rows, reference = problem.extents[0], projection_row
    elif problem.role in ("layer", "training"):
        rows, reference = problem.shape[0] * problem.shape[3], layer_row
    else:
        rows, reference = problem.shape[0] * problem.shape[1] * problem.shape[3], attention_row
    chosen = sorted({n * (rows - 1) // (SAMPLES - 1) for n in range(SAMPLES)})
    if problem.role == "training":
        gradients = [training_gradient(problem, arrays, batch) for batch in range(problem.shape[0])]
        indices = [divmod(row, problem.shape[3]) for row in chosen]
        return [Row(index, gradients[index[0]][index[1]]) for index in indices]
    return [reference(problem, arrays, row) for row in chosen]


def misses(problem, expected, result):
    """How many elements of the sampled rows are off; result is indexed as the expected rows are."""
    off = 0
    for row in expected:
        found = np.asarray(result[row.index]).astype(np.float64)
        off += int(np.sum(~(np.abs(found - row.values) <= TOLERANCE[problem.dtype] * row.size)))
    return off
