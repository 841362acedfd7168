# SPDX-License-Identifier: Apache-2.0
"""Random calls of heed.attention that reach every option of float64 arrays, each made of one seed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

WORDS = ("starts", "ends")


class Call(NamedTuple):
    q: np.ndarray  # (batch, heads, queries, dim)
    k: np.ndarray
    v: np.ndarray
    options: dict[str, Any]

    def describe(self) -> str:
        return ", ".join(f"{name} {_words(x)}" for name, x in {"q": self.q, "k": self.k, "v": self.v, **self.options}.items())


def _words(x: Any) -> str:
    if isinstance(x, tuple):
        return f"({', '.join(map(_words, x))})"
    return f"of {x.shape}" if isinstance(x, np.ndarray) else repr(x)


class _Draw:
    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)

    def one_of(self, *alternatives: Any) -> Any:
        return alternatives[self.random.integers(len(alternatives))]

    def is_so(self, of: int) -> bool:
        """Once in so many times."""
        return self.random.integers(of) == 0

    def numbers(self, *shape: int) -> np.ndarray:
        return self.random.standard_normal(shape)

    def part(self, *extents: int) -> tuple[int, ...]:
        """Extents of which some are 1 and broadcast."""
        return tuple(1 if self.is_so(3) else extent for extent in extents)


def random_call(seed: int) -> Call:
    draw = _Draw(seed)
    batch, kv_heads, times, dim = (draw.one_of(*counts) for counts in ((1, 2), (1, 2), (1, 2, 3), (1, 2, 5, 8)))
    heads, queries = kv_heads * times, draw.one_of(1, 2, 3, 5, 8)
    keys = draw.one_of(queries, 1, 2, 4, 7, 9)
    call = Call(
        draw.numbers(batch, heads, queries, dim) * draw.one_of(1, 1, 4),
        draw.numbers(batch, kv_heads, keys, dim),
        draw.numbers(batch, kv_heads, keys, draw.one_of(dim, 3)),
        {},
    )
    options, scores = call.options, (batch, heads, queries, keys)
    _place(draw, options, scores)
    if draw.is_so(4):
        options["key_lengths"] = draw.random.integers(0, keys + 1, batch)
    for name in ("keep", "hide"):
        if draw.is_so(5):
            options[name] = draw.numbers(*draw.part(*scores)) > (-1.0 if name == "keep" else 1.0)
    if draw.is_so(3):
        options["bias"] = draw.numbers(*draw.part(*scores))
        options["bias"][draw.random.random(options["bias"].shape) < 0.1] = -np.inf
    if draw.is_so(4):
        options["sink"] = draw.numbers(*draw.one_of((heads,), (batch, heads), (1, heads)))
    if draw.is_so(4):
        options["softcap"] = draw.one_of(0.5, 3.1)
    if draw.is_so(4):
        options["scale"] = draw.one_of(0.3, -1.1, 0.0)
    if draw.is_so(5):
        options |= {"dropout": draw.one_of(0.1, 0.6), "seed": int(draw.random.integers(2**40))}
    if draw.is_so(3):
        options["head_map"] = "tiled"
    return call


def _place(draw: _Draw, options: dict[str, Any], scores: tuple[int, ...]) -> None:
    """What counts from a query's own position: causal, a window, documents, ALiBi."""
    batch, heads, queries, keys = scores
    if draw.is_so(3):
        options["causal"] = True if queries == keys and draw.is_so(2) else draw.one_of(*WORDS)
    has_place = queries == keys or options.get("causal") in WORDS

    def word() -> str | None:
        return None if has_place and draw.is_so(2) else draw.one_of(*WORDS)

    if draw.is_so(3):
        reaches = tuple(draw.one_of(None, 0, 1, 2, 5) for _ in range(2))
        align = word()
        options["window"] = reaches if align is None else (*reaches, align)
        if draw.is_so(2):
            options["front"] = draw.one_of(1, 2, 3, 9)
    if draw.is_so(3):
        ids = draw.one_of(-3, 0, 2**31 - 5) + draw.random.integers(0, 3, draw.one_of((keys,), (batch, keys)))
        if draw.is_so(3):
            options |= {"document": ids, "query_document": ids.min() + draw.random.integers(0, 3, draw.one_of((queries,), (batch, queries)))}
        else:
            align = word()
            options["document"] = ids if align is None else (ids, align)
    if draw.is_so(4):
        slopes, align = draw.numbers(*draw.one_of((heads,), (batch, heads))).astype(np.float32), word()
        options["alibi"] = slopes if align is None else (slopes, align)
