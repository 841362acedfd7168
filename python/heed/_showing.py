# SPDX-License-Identifier: Apache-2.0
"""heed.view: attention to look at, in a browser or a notebook; and what heed.picture reads as well."""

from __future__ import annotations

import html
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from heed import _heed
from heed._errors import Error, KindError

BUDGET = 40_000_000


class Rows(NamedTuple):
    """A stretch of queries: weights (heads, rows, keys), and what masks hide of them, True = hidden."""

    weights: Any
    hide: Any = None


class ShownLayer(NamedTuple):
    """The heads of one layer, and their rows as they are asked for."""

    name: str
    heads: int
    kv_heads: int
    rows: Iterable[Rows]


class ShownRun(NamedTuple):
    """One pass of tokens through layers. first_position is the first query's place among the keys, or None."""

    name: str
    queries: int
    keys: int
    first_position: int | None
    layers: Sequence[ShownLayer]


class Watched(Protocol):
    """What can be shown without being an array: heed.transformers.watch records one."""

    def shown_runs(self) -> list[ShownRun]: ...


class View:
    """A page that shows itself in a notebook. `html` is the page, `save(path)` writes it."""

    def __init__(self, page: _heed.Page) -> None:
        self._page = page

    @property
    def html(self) -> str:
        return self._page.html()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page, whole or not at all."""
        self._page.save(path)

    def _repr_html_(self) -> str:
        # A frame of its own: the page's style and script meet nothing of the notebook's.
        return (
            f'<iframe srcdoc="{html.escape(self.html)}" title="attention" sandbox="allow-scripts" '
            'style="width: 100%; height: 720px; border: 0; border-radius: 10px"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<heed.view of {len(self.html):,} bytes: .save(path) writes it>"


def _refuse(sentence: str, code: str = "shape") -> Error:
    error = KindError(sentence) if code == "dtype" else Error(sentence)
    error.code = code
    return error


def _integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise _refuse(f"{name}: {type(value).__name__} is not an integer", "dtype") from None


def _floats(weights: Any, name: str) -> Any:
    """The array as heed reads it: doubles are rounded, lists become arrays, other devices are left."""
    if hasattr(weights, "detach"):
        weights = weights.detach().cpu()
        return weights.float() if str(weights.dtype) == "torch.float64" else weights
    import numpy as np

    if not hasattr(weights, "dtype"):
        try:
            weights = np.asarray(weights, np.float32)
        except (TypeError, ValueError) as reason:
            raise _refuse(f"{name}: cannot be made an array: {reason}", "dtype") from None
    return weights.astype(np.float32) if weights.dtype == np.float64 else weights


def _entry_of(array: Any, name: str, entry: int) -> Any:
    """One of the batch entries that an array of four axes has."""
    if not 0 <= entry < array.shape[0]:
        raise _refuse(f"entry: {entry} is not below the {array.shape[0]} batch entries of {name}", "value")
    return array[entry]


def _one_entry(weights: Any, entry: int) -> Any:
    """(heads, queries, keys) out of two to four axes."""
    weights = _floats(weights, "weights")
    rank = len(weights.shape)
    if not 2 <= rank <= 4:
        raise _refuse(f"weights: {rank} axes are neither (batch, heads, queries, keys) nor the last three or two of them")
    if rank == 4:
        return _entry_of(weights, "weights", entry)
    if entry != 0:
        raise _refuse(f"entry: {entry}, but weights of {rank} axes have no batch to choose from", "value")
    return weights[None] if rank == 2 else weights


def _causal_hide(queries: int, keys: int, causal: bool | str) -> Any:
    import numpy as np

    if causal is True and queries != keys:
        raise _refuse(f'causal: {queries} queries, {keys} keys; say "ends" (decode) or "starts"', "ambiguous")
    return ~np.tri(queries, keys, keys - queries if causal == "ends" else 0, dtype=bool)


class Masks(NamedTuple):
    """What the caller says is hidden, for every layer alike."""

    causal: bool | str | None
    hide: Any
    entry: int = 0

    @classmethod
    def read(cls, causal: Any, hide: Any, entry: int) -> Masks:
        if not (causal is None or isinstance(causal, bool) or (isinstance(causal, str) and causal in ("ends", "starts"))):
            raise _refuse(f"causal: {causal!r} is neither True, False, 'ends' nor 'starts'", "value")
        return cls(causal, None if hide is None else _booleans(hide), entry)

    def of(self, weights: Any) -> Any:
        """Booleans over (heads, queries, keys) or fewer of these axes, True = hidden; None: nothing is."""
        _, queries, keys = weights.shape
        causal = self.causal
        if causal is None and self.hide is None:
            causal = _heed.looks_causal(weights)
        hidden = _causal_hide(queries, keys, causal) if causal else None
        if self.hide is None:
            return hidden
        hide = self._own_hide(tuple(weights.shape))
        return hide if hidden is None else hidden | hide

    def _own_hide(self, shape: tuple[int, ...]) -> Any:
        hide = self.hide
        if hide.ndim == 4:
            hide = hide[0] if hide.shape[0] == 1 else _entry_of(hide, "hide", self.entry)
        if hide.ndim > 3 or any(own not in (1, wanted) for own, wanted in zip(hide.shape[::-1], shape[::-1])):
            raise _refuse(f"hide: {self.hide.shape} does not broadcast to (heads, queries, keys): {shape}")
        return hide


def _booleans(hide: Any) -> Any:
    """An array of NumPy's, whoever made it: a causal mask is joined with it."""
    import numpy as np

    if hasattr(hide, "detach"):
        hide = hide.detach().cpu().numpy()
    try:
        array = np.asarray(hide)
    except ValueError as reason:
        raise _refuse(f"hide: cannot be made an array: {reason}", "dtype") from None
    if array.dtype != np.bool_:
        raise _refuse(f"hide.dtype: {array.dtype} is not bool", "dtype")
    return array


def _layers_of(weights: Any) -> list[Any]:
    weights = getattr(weights, "attentions", weights)
    if not isinstance(weights, (list, tuple)):
        return [weights]
    if not len(weights):
        raise _refuse(f"weights: an empty {type(weights).__name__} has no layer to show")
    return list(weights) if hasattr(weights[0], "shape") else [weights]


class Source(NamedTuple):
    """What is said of weights that are arrays."""

    names: list[str] | None
    kv_heads: int | None
    entry: int
    masks: Masks


def _run_of(name: str, weights: Any, source: Source) -> ShownRun:
    layers = [_one_entry(each, source.entry) for each in _layers_of(weights)]
    names = [str(n) for n in range(len(layers))] if source.names is None else source.names
    if source.names is None and len(layers) == 1:
        names = [""]
    if len(names) != len(layers):
        raise _refuse(f"names: {len(names)} for {len(layers)} layers")
    _, queries, keys = layers[0].shape
    for n, layer in enumerate(layers):
        if tuple(layer.shape[1:]) != (queries, keys):
            raise _refuse(f"weights: layer {n} is {tuple(layer.shape[1:])}, layer 0 {(queries, keys)}")
    shown = [
        ShownLayer(names[n] if not names[n].isdigit() else f"Layer {names[n]}", layer.shape[0],
                   layer.shape[0] if source.kv_heads is None else source.kv_heads, [Rows(layer, source.masks.of(layer))])
        for n, layer in enumerate(layers)
    ]  # fmt: skip
    starts = source.masks.causal == "starts" or queries == keys
    first_position = 0 if starts else keys - queries if source.masks.causal == "ends" else None
    return ShownRun(name, queries, keys, first_position, shown)


def _runs_of(weights: Any, source: Source) -> list[ShownRun]:
    if hasattr(weights, "shown_runs"):
        return weights.shown_runs()
    if not isinstance(weights, Mapping):
        return [_run_of("", weights, source)]
    if not weights:
        raise _refuse(f"weights: an empty {type(weights).__name__} has no run to show")
    return [_run_of(str(name), each, source) for name, each in weights.items()]


def _texts(name: str, texts: Iterable[str] | None, what: str = "tokens; split it") -> list[str] | None:
    if texts is None:
        return None
    if isinstance(texts, (str, bytes)):
        raise _refuse(f"{name}: a {type(texts).__name__} is not a list of {what}", "dtype")
    try:
        return list(texts)
    except TypeError:
        raise _refuse(f"{name}: {type(texts).__name__} is not a list of {what.split(';')[0]}", "dtype") from None


class Tokens(NamedTuple):
    queries: list[str] | None
    keys: list[str] | None


def _tokens(tokens: Any, query_tokens: Any, key_tokens: Any) -> Tokens:
    if tokens is None:
        return Tokens(_texts("query_tokens", query_tokens), _texts("key_tokens", key_tokens))
    if query_tokens is not None or key_tokens is not None:
        raise _refuse("tokens: names queries and keys at once; give query_tokens and key_tokens without it", "value")
    both = _texts("tokens", tokens)
    return Tokens(both, both)


def view(
    weights: Any,
    *,
    tokens: Iterable[str] | None = None,
    query_tokens: Iterable[str] | None = None,
    key_tokens: Iterable[str] | None = None,
    names: Sequence[str] | None = None,
    causal: bool | str | None = None,
    hide: Any = None,
    kv_heads: int | None = None,
    entry: int = 0,
    title: str = "Attention",
    budget: int = BUDGET,
) -> View:
    """Attention as one page for a browser or a notebook, with everything it needs inside.

    weights is (batch, heads, queries, keys) or the last three or two of these axes, of any library; a list of such, one
    for each layer; a dict of either, one for each run, to be compared; or what heed.transformers.watch recorded.

    tokens are the words of queries and keys, or query_tokens and key_tokens where they differ; names those of the layers.
    What a mask hid is drawn as hidden: causal as in heed.attention, and hide, booleans that broadcast to (batch, heads,
    queries, keys). A weight that is not 0 and that they hide is refused. With neither, weights that are all 0 above the
    diagonal are causal. kv_heads shows which query heads share keys
    and values. entry chooses from the batch. The page stays below budget bytes: small inputs are kept exactly, of others
    pooled levels and the exact largest weights of every row.

    >>> import numpy, heed
    >>> q = numpy.eye(3, 4, dtype=numpy.float32)[None]
    >>> _, weights = heed.attention(q, q, q, causal=True, return_weights=True)
    >>> page = heed.view(weights, tokens=["I", "see", "you"])
    >>> page.html[:15]
    '<!doctype html>'
    """
    words = _tokens(tokens, query_tokens, key_tokens)
    entry = _integer("entry", entry)
    layer_names = _texts("names", names, "names")
    source = Source(None if layer_names is None else [str(name) for name in layer_names], kv_heads, entry, Masks.read(causal, hide, entry))
    runs = _runs_of(weights, source)
    page = _heed.Page(title, sum(len(run.layers) for run in runs), budget)
    for run in runs:
        page.add_run(run.name, (run.queries, run.keys, run.first_position), words.queries, words.keys)
        for layer in run.layers:
            page.add_layer(layer.name, layer.heads, layer.kv_heads)
            for rows in layer.rows:
                page.add_rows(rows.weights, rows.hide)
    page.html()  # what is missing or does not fit is said now
    return View(page)


def stretches(queries: int, row_bytes: int, most_bytes: int = 1 << 26) -> Iterator[slice]:
    """Rows that fit into so many bytes, one stretch after another.

    >>> list(stretches(5, 4, 8))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    count = max(1, most_bytes // max(1, row_bytes))
    for first in range(0, queries, count):
        yield slice(first, min(first + count, queries))
