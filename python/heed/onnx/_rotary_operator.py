# SPDX-License-Identifier: Apache-2.0
"""The operator RotaryEmbedding of ONNX opset 23, whose angles come as tables of cosines and sines."""

from typing import Any

import numpy as np

from heed._errors import Error, KindError
from heed.onnx._arrays import like, require_float, shape_error, shape_text, split_heads, to_numpy
from heed.onnx._attributes import rotary_attributes


def rotary_embedding(
    X: Any, cos_cache: Any, sin_cache: Any, position_ids: Any = None, **attributes: Any
) -> Any:
    """ONNX RotaryEmbedding: turns pairs of each head's numbers by the angle of the token's position.

    X is (batch, heads, length, head_size), or (batch, length, heads * head_size) with the attribute
    num_heads. The caches are (positions, rotary_embedding_dim / 2) with position_ids (batch, length), or
    (batch, length, rotary_embedding_dim / 2) without. Returns an array of X's kind and shape; sums are
    float32, rounded once.

    Attributes: interleaved (0: pairs (n, n + dim / 2); 1: pairs (2n, 2n + 1)), rotary_embedding_dim (how many
    leading numbers turn; 0: all) and num_heads.

    >>> import numpy as np, heed.onnx
    >>> X = np.ones((1, 1, 2, 4), np.float32)
    >>> quarter_turn = np.zeros((2, 2), np.float32), np.ones((2, 2), np.float32)
    >>> heed.onnx.rotary_embedding(X, *quarter_turn, np.array([[0, 1]]))[0, 0, 0]
    array([-1., -1.,  1.,  1.], dtype=float32)
    """
    node = rotary_attributes(attributes)
    x = to_numpy("X", X)
    require_float("X", x)
    if x.ndim not in (3, 4):
        raise shape_error(f"X: must have 3 or 4 dimensions; found {x.ndim}")
    by_head = x if x.ndim == 4 else split_heads("num_heads", node.num_heads, x)
    batch, _, length, head_size = by_head.shape
    dims = node.rotary_embedding_dim or head_size
    if dims % 2 != 0 or dims > head_size:
        raise Error(f"rotary_embedding_dim: must be even and at most head_size, {head_size}; found {dims}")
    positions = _positions(position_ids, (batch, length))
    # (batch, 1, length, dims / 2)
    cos = _angles("cos_cache", cos_cache, positions, (batch, length, dims // 2), x.dtype)[:, None]
    sin = _angles("sin_cache", sin_cache, positions, (batch, length, dims // 2), x.dtype)[:, None]

    turned = np.empty(x.shape, x.dtype)
    into = turned if x.ndim == 4 else split_heads("num_heads", node.num_heads, turned)
    first, second = _pairs(dims, node.interleaved)
    a, b = (by_head[..., half].astype(np.float32) for half in (first, second))
    into[..., first] = (a * cos - b * sin).astype(x.dtype)
    into[..., second] = (a * sin + b * cos).astype(x.dtype)
    into[..., dims:] = by_head[..., dims:]
    return like(X, turned)


def _pairs(dims: int, interleaved: int) -> tuple[slice, slice]:
    """Where the first and the second numbers of the pairs lie."""
    if interleaved:
        return slice(0, dims, 2), slice(1, dims, 2)
    return slice(0, dims // 2), slice(dims // 2, dims)


def _positions(position_ids: Any, wanted: tuple[int, int]) -> np.ndarray | None:
    if position_ids is None:
        return None
    positions = to_numpy("position_ids", position_ids)
    if positions.dtype.kind not in "iu":
        raise KindError(f"position_ids: must be integers; found {positions.dtype.name}")
    if positions.shape != wanted:
        raise shape_error(f"position_ids: must have the shape {wanted}; found {shape_text(positions)}")
    return positions


def _angles(
    name: str, cache: Any, positions: np.ndarray | None, wanted: tuple[int, int, int], dtype: np.dtype
) -> np.ndarray:
    """The cache's rows of each token as float32, (batch, length, dims / 2)."""
    table = to_numpy(name, cache)
    if table.dtype != dtype:
        raise KindError(f"{name}: must have the type of X, {dtype.name}; found {table.dtype.name}")
    if positions is None:
        if table.shape != wanted:
            raise shape_error(f"{name}: must be {wanted} without position_ids; found {shape_text(table)}")
        return table.astype(np.float32)
    if table.ndim != 2 or table.shape[1] != wanted[2]:
        raise shape_error(
            f"{name}: must be (positions, {wanted[2]}) with position_ids; found {shape_text(table)}"
        )
    wrong = positions[(positions < 0) | (positions >= table.shape[0])]
    if wrong.size:
        raise Error(f"position_ids: {name} has the positions 0 to {table.shape[0] - 1}; found {wrong[0]}")
    return table[positions].astype(np.float32)
