# SPDX-License-Identifier: Apache-2.0
"""Masks of transformers that say what they mean: which keys each query sees, by name wherever the pattern has one.

Imported through heed.transformers, whose attention computes what they say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    eager_mask,
    sdpa_mask,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

__all__ = ["Pattern", "SeenKeys", "make_mask"]


class Pattern(NamedTuple):
    """Which keys a query sees, with the last query at the last key."""

    causal: bool
    window: tuple[int, int] | None = None  # how many keys before and after its own position


EVERY_KEY = Pattern(causal=False)


class SeenKeys(torch.Tensor):
    """Which keys each query sees, (batch, 1, queries, keys): by a pattern, or drawn where no pattern has a name.

    Causal masks, windows, padding and the empty end of a static cache need no matrix: heed takes them as they are.
    To everybody else this is the mask of transformers' eager attention: whatever operation looks at it gets zeros for seen keys and
    the lowest number of the type for the others. So a model that reads the mask, or computes its attention itself, computes what it
    does with "eager". To the compiler it is made of its tensors, so that a cache that fills up is no new graph.
    """

    pattern: Pattern | None  # None: see `drawn`
    end: torch.Tensor  # 0 axes, int64, on the CPU: keys from here on are unseen, and the last query is at the last key before
    padding: torch.Tensor | None  # (batch, keys), True = a token
    drawn: torch.Tensor | None  # (batch, 1, queries, keys), True = seen: the whole mask, where pattern is None

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls,
        shape: tuple[int, int, int],
        pattern: Pattern | None,
        filled: int | torch.Tensor,
        padding: torch.Tensor | None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        drawn: torch.Tensor | None = None,
    ) -> SeenKeys:
        """shape is (batch, queries, keys), device where the dense mask is made, dtype that of its numbers."""
        batch, queries, keys = shape
        self = torch.Tensor._make_wrapper_subclass(cls, (batch, 1, queries, keys), dtype=dtype, device=device)
        self.pattern, self.padding, self.drawn = pattern, padding, drawn
        self.end = filled if isinstance(filled, torch.Tensor) else torch.tensor(filled, dtype=torch.int64, device="cpu")
        return self

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        parts = ["end", *(name for name in ("padding", "drawn") if getattr(self, name) is not None)]
        return parts, (self.pattern, self.device, self.dtype)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: Any, size: Any, stride: Any) -> SeenKeys:
        batch, _, queries, keys = size
        pattern, device, dtype = context
        return SeenKeys((batch, queries, keys), pattern, inner["end"], inner.get("padding"), device, dtype, inner.get("drawn"))

    @property
    def filled(self) -> int:
        """How many keys are seen by some query."""
        return int(self.end)

    @functools.cached_property
    def lengths(self) -> list[int] | None:
        """Tokens per batch entry, where all padding is at the end. Every layer asks, and a GPU has to wait for an answer."""
        return None if self.padding is None else _lengths(self.padding[:, : self.filled])

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"SeenKeys({tuple(self.shape)}, {self.pattern or 'drawn'}, filled={self.filled}, lengths={self.lengths})"

    def seen(self) -> torch.Tensor:
        """The mask in booleans, (batch, 1, queries, keys), True = seen."""
        if self.drawn is not None:
            return self.drawn
        batch, _, queries, keys = self.shape
        end = self.end.to(self.device)
        query = torch.arange(queries, device=self.device)[:, None] + (end - queries)
        key = torch.arange(keys, device=self.device)[None, :]
        seen = (key < end).expand(queries, keys)
        if self.pattern.causal:
            seen = seen & (key <= query)
        if self.pattern.window is not None:
            before, after = self.pattern.window
            seen = seen & (key >= query - before) & (key <= query + after)
        seen = seen.expand(batch, 1, queries, keys)
        if self.padding is not None:
            seen = seen & self.padding[:, None, None, :]
        return seen.contiguous()

    def dense(self) -> torch.Tensor:
        """The mask of eager attention, (batch, 1, queries, keys): 0 where a key is seen, elsewhere the lowest number."""
        seen = self.seen()
        return torch.zeros(seen.shape, dtype=self.dtype, device=self.device).masked_fill(~seen, torch.finfo(self.dtype).min)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN206
        def densified(x: Any) -> Any:
            return x.dense() if isinstance(x, SeenKeys) else x

        return func(*tree_map(densified, args), **tree_map(densified, kwargs or {}))


def _lengths(padding: torch.Tensor) -> list[int] | None:
    """Tokens per batch entry if none comes after padding."""
    if bool((padding[:, 1:] & ~padding[:, :-1]).any()):
        return None
    return padding.sum(1).tolist()


def _padding(attention_mask: torch.Tensor | None, first: int, keys: int) -> torch.Tensor | None:
    """(batch, keys), True = a token, of the keys from position `first` on; None if all are tokens."""
    if attention_mask is None:
        return None
    part = attention_mask[:, first : first + keys]
    if part.shape[1] < keys:
        part = torch.nn.functional.pad(part, (0, keys - part.shape[1]))
    return None if bool(part.all()) else part


def _pattern_of(mask_function: Callable, local_size: int | None) -> Pattern | None:
    """The name of what a mask function draws, or None. Windows are closures: they are told by what they say."""
    if mask_function is bidirectional_mask_function:
        return EVERY_KEY
    if mask_function is causal_mask_function:
        return Pattern(causal=True)
    if local_size is None:
        return None
    # Chunks of local_size keys differ from windows around the border of a chunk, so two queries in a row tell.
    queries = torch.tensor([local_size, local_size + 1])[:, None]
    border = torch.arange(-2, 4)
    keys = torch.cat([border[2:], border + local_size, border + 2 * local_size]).clamp(min=0)[None, :]
    batch = head = torch.zeros((), dtype=torch.int64)
    drawn = mask_function(batch, head, queries, keys)
    for window, pattern in (
        (sliding_window_causal_mask_function, Pattern(True, (local_size - 1, 0))),
        (sliding_window_bidirectional_mask_function, Pattern(False, (local_size, local_size))),
    ):
        if torch.equal(drawn, window(local_size)(batch, head, queries, keys)):
            return pattern
    return None


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    **others: Any,
) -> torch.Tensor | None:
    """The mask that `attend` is handed: a `SeenKeys`; in what is being compiled, eager attention's dense one.

    The arguments are those of transformers' mask interface: queries and keys are at positions from q_offset and
    kv_offset on, attention_mask is (batch, tokens) with True for a token, and the flags say whether the mask function is one of
    transformers' own with nothing laid over it. None is answered where eager attention's mask is None, and so means every key: some
    models hand it on to code that refuses any mask of that size.
    """
    drawing = {
        "batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset,
        "mask_function": mask_function, "attention_mask": attention_mask, "device": device, **others,
    }  # fmt: skip
    if torch.compiler.is_compiling():
        return eager_mask(**drawing, dtype=dtype, allow_is_bidirectional_skip=allow_is_bidirectional_skip, local_size=local_size)
    is_plain = allow_is_causal_skip or allow_is_bidirectional_skip
    pattern = _pattern_of(mask_function, local_size if is_plain else None)
    filled = kv_length
    if pattern is not None and pattern != EVERY_KEY:
        # heed puts the last query at the last key: a static cache is cut there, anything else has no name.
        filled = int(q_offset) + q_length - kv_offset
        if not 0 < filled <= kv_length or (filled < kv_length and not pattern.causal):
            pattern = None
    shape = (batch_size, q_length, kv_length)
    if pattern is None:
        drawn = sdpa_mask(**drawing, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        return SeenKeys(shape, None, kv_length, None, device, dtype, drawn)
    window = pattern.window
    if window is not None and min(window[0], filled if pattern.causal else window[1]) >= filled - 1:
        window = None
    padding = _padding(attention_mask, kv_offset, filled)
    if allow_is_bidirectional_skip and padding is None and window is None and not pattern.causal:
        return None
    if padding is not None:  # as wide as the mask, so that a cache that fills up changes no shape
        padding = torch.nn.functional.pad(padding, (0, kv_length - filled))
    return SeenKeys(shape, Pattern(pattern.causal, window), filled, padding, device, dtype)
