# SPDX-License-Identifier: Apache-2.0
"""What a query may see under ONNX Attention: attn_mask, is_causal, the windows and nonpad_kv_seqlen."""

from typing import Any, NamedTuple

import numpy as np

from heed._errors import Error, KindError
from heed.onnx._arrays import shape_error, shape_text, to_numpy
from heed.onnx._attributes import AttentionAttributes


class Place(NamedTuple):
    """Where the queries stand among the keys."""

    queries: int
    keys: int  # of the cache and the new ones together
    offset: np.ndarray  # position of the first query among the keys, (1,) or (batch,)


def key_lengths(nonpad_kv_seqlen: Any, batch: int, keys: int) -> np.ndarray | None:
    """nonpad_kv_seqlen, checked: how many keys of each batch entry are valid."""
    if nonpad_kv_seqlen is None:
        return None
    lengths = to_numpy("nonpad_kv_seqlen", nonpad_kv_seqlen)
    if lengths.dtype.kind not in "iu":
        raise KindError(f"nonpad_kv_seqlen: must be integers; found {lengths.dtype.name}")
    if lengths.shape != (batch,):
        raise shape_error(f"nonpad_kv_seqlen: must have the shape ({batch},); found {shape_text(lengths)}")
    wrong = lengths[(lengths < 0) | (lengths > keys)]
    if wrong.size:
        raise Error(f"nonpad_kv_seqlen: must be between 0 and the number of keys, {keys}; found {wrong[0]}")
    return lengths.astype(np.int32)


def split_mask(attn_mask: Any, dtype: np.dtype) -> tuple[np.ndarray | None, np.ndarray | None]:
    """attn_mask as (keep, bias), one of them None, with four axes. A number is added in Q's type."""
    if attn_mask is None:
        return None, None
    mask = to_numpy("attn_mask", attn_mask)
    if not 1 <= mask.ndim <= 4:
        raise shape_error(f"attn_mask: must have 1 to 4 dimensions; found {mask.ndim}")
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    if mask.dtype == np.bool_:
        return mask, None
    if mask.dtype.kind not in "iuf" and mask.dtype.name != "bfloat16":
        raise KindError(f"attn_mask: must be bool or of a real number type; found {mask.dtype.name}")
    return None, mask.astype(dtype, copy=False)


def lengthen(mask: np.ndarray | None, keys: int, needed: int) -> np.ndarray | None:
    """Since opset 24 a short mask hides the keys behind its end; one that is 1 long is short, too."""
    if mask is None or mask.shape[3] >= keys:
        return mask
    if mask.shape[3] < needed:
        raise shape_error(
            f"attn_mask: must be at least as long as nonpad_kv_seqlen, {needed}; found {mask.shape[3]}"
        )
    hidden = False if mask.dtype == np.bool_ else -np.inf
    return np.concatenate(
        (mask, np.full((*mask.shape[:3], keys - mask.shape[3]), hidden, mask.dtype)), axis=3
    )


def require_broadcast(mask: np.ndarray | None, target: tuple[int, ...]) -> None:
    """Right-aligned: a mask with three axes is (heads, queries, keys)."""
    if mask is not None and any(m not in (1, t) for m, t in zip(mask.shape, target, strict=True)):
        raise shape_error(f"attn_mask: must broadcast to {target}; found {shape_text(mask)}")


def positional(node: AttentionAttributes, place: Place) -> dict[str, Any]:
    """is_causal and the windows as options of heed.attention: causal, window, keep or nothing.

    A query at position p sees key j when p - left <= j <= p + right. is_causal is right = 0.
    """
    left, right = node.left_window_size, 0 if node.is_causal else node.right_window_size
    if left < 0 and right < 0:
        return {}
    align = _align(place)
    if align is None:
        return {"keep": _band(left, right, place)}
    if left < 0 and right == 0:
        return {"causal": align}
    return {"window": (left if left >= 0 else None, right if right >= 0 else None, align)}


def _align(place: Place) -> str | None:
    """heed's name for where the queries stand, if it has one."""
    if place.offset.shape != (1,):
        return None
    return {place.keys - place.queries: "ends", 0: "starts"}.get(int(place.offset[0]))


def _band(left: int, right: int, place: Place) -> np.ndarray:
    """(1 or batch, 1, queries, keys), True where a key is seen."""
    ahead = np.arange(place.keys) - np.arange(place.queries)[:, None] - place.offset[:, None, None, None]
    seen = np.ones(ahead.shape, np.bool_)
    if left >= 0:
        seen &= ahead >= -left
    if right >= 0:
        seen &= ahead <= right
    return seen
