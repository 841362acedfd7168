# SPDX-License-Identifier: Apache-2.0
"""heed.picture: heads as a picture for a paper."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Sequence
from typing import Any

from heed import _heed
from heed._showing import Masks, ShownLayer, ShownRun, Source, _integer, _refuse, _runs_of, _texts, _tokens


def picture(
    weights: Any,
    path: str | os.PathLike[str],
    *,
    tokens: Iterable[str] | None = None,
    query_tokens: Iterable[str] | None = None,
    key_tokens: Iterable[str] | None = None,
    names: Sequence[str] | None = None,
    causal: bool | str | None = None,
    hide: Any = None,
    entry: int = 0,
    layers: int | Iterable[int] | None = None,
    heads: int | Iterable[int] | None = None,
    theme: str = "light",
    title: str = "",
) -> None:
    """Saves heatmaps of heads as one picture: .png, or .svg and .pdf with text that stays text.

    weights and what is said of them are as in heed.view: an array, a list of layers, or what heed.transformers.watch
    recorded. The heads of one layer stand side by side; of several layers each is a row, head n above head n. layers and
    heads choose, by one number or several; negative ones count from the end.

    The words stand at the edges wherever they are read there; where they are too many the picture says so and counts them.
    theme is "light", "dark" or "print", which is in greys. Without a title, the name of the one layer that is drawn stands there.

    >>> import numpy, heed, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "head.svg"
    ...     heed.picture(numpy.eye(3), path, tokens=["I", "see", "you"])
    ...     path.read_text()[:4]
    '<svg'
    """
    words = _tokens(tokens, query_tokens, key_tokens)
    entry = _integer("entry", entry)
    layer_names = _texts("names", names, "names")
    source = Source(None if layer_names is None else [str(name) for name in layer_names], None, entry, Masks.read(causal, hide, entry))
    run, shown = _drawn(_runs_of(weights, source), layers)
    chosen = None if heads is None else _chosen("heads", heads, min(layer.heads for layer in shown))
    first = shown[0]
    extents = (run.queries, run.keys, None)
    made = _heed.Picture(extents, words.queries, words.keys, first.name, first.heads, theme, title, chosen)
    for layer in shown:
        if layer is not first:
            made.add_layer(layer.name, layer.heads)
        for rows in layer.rows:
            made.add_rows(rows.weights, rows.hide)
    made.save(path)


def _drawn(runs: list[ShownRun], layers: int | Iterable[int] | None) -> tuple[ShownRun, list[ShownLayer]]:
    """The layers of all runs that are wanted; they have the same queries and keys."""
    extents = {(run.queries, run.keys) for run in runs}
    if len(extents) > 1:
        raise _refuse(f"weights: runs of {len(extents)} different lengths do not fit into one picture")
    shown = [layer._replace(name=" ".join(filter(None, (run.name, layer.name)))) for run in runs for layer in run.layers]
    if layers is not None:
        shown = [shown[number] for number in _chosen("layers", layers, len(shown))]
    return runs[0], shown


def _chosen(name: str, numbers: int | Iterable[int], count: int) -> list[int]:
    try:
        wanted = [operator.index(each) for each in (numbers if isinstance(numbers, Iterable) else [numbers])]
    except TypeError:
        raise _refuse(f"{name}: {numbers!r} is neither an integer nor a list of them", "dtype") from None
    for number in wanted:
        if not -count <= number < count:
            raise _refuse(f"{name}: {number} is none of the {count}", "value")
    if not wanted:
        raise _refuse(f"{name}: none; there must be at least one", "value")
    return [number % count for number in wanted]
