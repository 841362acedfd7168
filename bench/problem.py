# SPDX-License-Identifier: Apache-2.0
"""A case as arrays: the same numbers for every contestant, and float64 to judge them by."""

import dataclasses

import ml_dtypes
import numpy as np

NUMPY_TYPE = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
# Largest error of an element as a share of its row's largest. Rivals round the weights to the element type
# before they multiply, so this is wider than heed's own bound; a wrong mask or head is off by more than 1.
TOLERANCE = {"f32": 5e-4, "f16": 2e-2, "bf16": 1e-1}
SAMPLES = 6
MATRICES = ("w_q", "w_k", "w_v", "w_o")


def shapes_of(case):
    """{array: (shape, scale)}"""
    batch, heads, kv_heads, queries, keys, dim = case.shape
    if case.role in ("layer", "training", "projection"):
        rows = {"w_q": case.width, "w_k": kv_heads * dim, "w_v": kv_heads * dim, "w_o": case.width}
        shapes = {"x": ((batch, queries, case.width), 1.0)}
        shapes |= {name: ((out, case.width), case.width**-0.5) for name, out in rows.items()}
        gradient = (batch, queries, case.width)
    else:
        shapes = {"q": ((batch, heads, queries, dim), 1.0)}
        shapes |= {name: ((batch, kv_heads, keys, dim), 1.0) for name in ("k", "v")}
        gradient = (batch, heads, queries, dim)
    if case.role in ("backward", "training"):
        shapes["out_gradient"] = (gradient, 1.0)
    return shapes


def inputs_of(case):
    """Arrays in the case's own element type, by name: uniform in [-scale, scale)."""
    random = np.random.default_rng(0)
    made = {}
    for name, (shape, scale) in shapes_of(case).items():
        values = random.random(shape, dtype=np.float32)
        made[name] = ((2 * values - 1) * np.float32(scale)).astype(NUMPY_TYPE[case.dtype])
    return made


def wide(array):
    """In float64, of NumPy or of PyTorch on any device."""
    return array.astype(np.float64) if isinstance(array, np.ndarray) else array.double().cpu().numpy()


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


def attention_row(case, arrays, row):
    """A row of the result; of a backward pass, the gradient by that query."""
    _, heads, kv_heads, queries, keys, dim = case.shape
    batch, head, query = row // (heads * queries), row // queries % heads, row % queries
    kv_head = head // (heads // kv_heads)
    seen = query + 1 if case.causal else keys
    q = wide(arrays["q"][batch, head, query])
    k = wide(arrays["k"][batch, kv_head, :seen])
    v = wide(arrays["v"][batch, kv_head, :seen])
    weights = softmax_rows(k @ q / np.sqrt(dim))
    if case.role != "backward":
        return Row((batch, head, query), weights @ v)
    by_weights = v @ wide(arrays["out_gradient"][batch, head, query])
    # The first query of a causal mask sees one key: its gradient is a difference of two equal numbers.
    terms = (weights * np.abs(by_weights)) @ np.abs(k) / np.sqrt(dim)
    gradient = (weights * (by_weights - weights @ by_weights)) @ k / np.sqrt(dim)
    return Row((batch, head, query), gradient, terms.max())


def layer_row(case, arrays, row):
    _, heads, kv_heads, queries, _, dim = case.shape
    batch, query = row // queries, row % queries
    x = wide(arrays["x"][batch])
    w_q, w_k, w_v, w_o = (wide(arrays[name]) for name in MATRICES)
    q = (w_q @ x[query]).reshape(heads, dim)
    seen = x[: query + 1] if case.causal else x
    k, v = ((seen @ w.T).reshape(-1, kv_heads, dim).repeat(heads // kv_heads, axis=1) for w in (w_k, w_v))
    weights = softmax_rows(np.einsum("hd,jhd->hj", q, k) / np.sqrt(dim))
    return Row((batch, query), w_o @ np.einsum("hj,jhd->hd", weights, v).reshape(-1))


def training_gradient(case, arrays, batch):
    """The gradient of a batch entry by x, of a layer whose result has the gradient out_gradient."""
    _, heads, kv_heads, _, _, dim = case.shape
    x, out_gradient = (wide(arrays[name][batch]) for name in ("x", "out_gradient"))
    w_q, w_k, w_v, w_o = (wide(arrays[name]) for name in MATRICES)
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


def expected_rows(case, arrays):
    """Rows spread over the result, the first and the last included."""
    batch, heads, _, queries, _, _ = case.shape
    is_layer = case.role in ("layer", "training", "projection")
    rows = batch * queries if is_layer else batch * heads * queries
    chosen = sorted({n * (rows - 1) // (SAMPLES - 1) for n in range(SAMPLES)})
    if case.role == "training":
        gradients = [training_gradient(case, arrays, entry) for entry in range(batch)]
        indices = [divmod(row, queries) for row in chosen]
        return [Row(index, gradients[index[0]][index[1]]) for index in indices]
    return [(layer_row if is_layer else attention_row)(case, arrays, row) for row in chosen]


def largest_error(expected, result):
    """Of the elements of the sampled rows, as a share of their row's largest; result is indexed as the expected rows are. NaN is
    larger than any other."""
    worst = 0.0
    for row in expected:
        errors = np.abs(wide(result[row.index]) - row.values) / row.size
        worst = max(worst, float(errors.max())) if np.isfinite(errors).all() else float("inf")
    return worst


def checked_elements(expected):
    return sum(row.values.size for row in expected)
