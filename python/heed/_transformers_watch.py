# SPDX-License-Identifier: Apache-2.0
"""Recording what the attention of a transformers model sees, while the model runs unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface

import heed
from heed import _transformers_own
from heed._showing import Rows, ShownLayer, ShownRun, stretches
from heed._transformers_masks import SeenKeys

__all__ = ["ModelRun", "watch"]


def _hidden_and_bias(mask: torch.Tensor | None, entry: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """What a mask says for one batch entry: booleans (heads or 1, queries, keys), True = hidden; and what it adds."""
    if mask is None:
        return None, None
    if isinstance(mask, SeenKeys):
        mask = mask.seen()
    mask = mask[entry if mask.shape[0] > 1 else 0]
    if mask.dtype == torch.bool:
        return ~mask, None
    hidden = mask <= torch.finfo(mask.dtype).min / 2  # how additive masks say it
    bias = mask.masked_fill(hidden, 0)
    return hidden, bias if bool(bias.any()) else None


class Call:
    """One call of a layer's attention: its queries, and what they may see."""

    def __init__(self, entry: int, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, options: dict[str, Any]) -> None:
        self.query = query[entry].detach().clone()
        self.keys = key.shape[1]
        self.hidden, self.bias = _hidden_and_bias(mask, entry)
        self.is_causal = mask is None and query.shape[2] > 1 and bool(options.get("is_causal"))
        self.before = 0  # queries of earlier calls
        self.place = 0  # of its first key among all keys: a cache with a window hands over the last ones

    def hidden_rows(self, keys: int) -> torch.Tensor:
        """(heads or 1, queries, keys), True = hidden, over as many keys as there are in the end."""
        queries = self.query.shape[1]
        if self.hidden is not None:
            hidden = self.hidden[..., : self.keys]
        elif self.is_causal:
            everything = self.query.new_ones(1, queries, self.keys, dtype=torch.bool)
            hidden = everything.triu(self.before - self.place + 1)
        else:
            hidden = self.query.new_zeros(1, queries, self.keys, dtype=torch.bool)
        return torch.nn.functional.pad(hidden.expand(-1, queries, -1), self.around(keys), value=True)

    def bias_rows(self, keys: int) -> torch.Tensor | None:
        """What is added to the scores, over as many keys."""
        return None if self.bias is None else torch.nn.functional.pad(self.bias[..., : self.keys], self.around(keys))

    def around(self, keys: int) -> tuple[int, int]:
        """How many keys there are before and after those it was given; fewer than none where an end is left out."""
        return self.place, keys - self.place - self.keys


class LayerRun:
    """The calls of one layer that belong to one sequence, and all its keys."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[Call] = []
        self.key: torch.Tensor | None = None
        self.options: dict[str, Any] = {}

    def kept(self, queries: int, key: torch.Tensor) -> torch.Tensor | None:
        """All keys of the sequence, if these queries follow those of the last call; None if they begin another.

        `key` is (heads, keys, width): all keys there are; those of a window, which are the last ones; or a static cache, or another
        sequence, whose number does not change.
        """
        keys, before = key.shape[1], self.queries
        if not self.calls or queries >= keys:
            return None
        earlier = self.key[:, max(0, before + queries - keys) : before]
        has_window = keys < before + queries and torch.equal(key[:, :-queries], earlier)
        if has_window or keys == before + queries:
            return torch.cat([self.key[:, :before], key[:, -queries:]], 1)  # a cache may have let go of the first ones
        return key if keys == self.calls[-1].keys else None

    def add(self, call: Call, key: torch.Tensor, options: dict[str, Any]) -> None:
        call.before = self.queries
        call.place = max(0, key.shape[1] - call.keys)
        self.calls.append(call)
        self.key, self.options = key, options

    @property
    def queries(self) -> int:
        return sum(call.query.shape[1] for call in self.calls)

    @property
    def filled(self) -> torch.Tensor:
        """The keys without the empty end of a static cache, which is zeros."""
        used = self.key.abs().amax((0, 2)).nonzero()
        return self.key[:, : int(used[-1]) + 1] if len(used) else self.key

    def rows(self) -> Iterator[Rows]:
        """The weights, a stretch of queries at a time: computed again from queries and keys."""
        key = self.filled
        heads, keys = self.calls[0].query.shape[0], key.shape[1]
        nothing = key.new_zeros(key.shape[0], keys, 1)
        for call in self.calls:
            hidden, bias = call.hidden_rows(keys), call.bias_rows(keys)
            for part in stretches(call.query.shape[1], 4 * heads * keys):
                options = {name: value for name, value in self.options.items() if value is not None}
                if bias is not None:
                    options["bias"] = bias[:, part]
                hide = hidden[:, part].contiguous()
                _, weights = heed.attention(call.query[:, part], key, nothing, hide=hide, return_weights=True, **options)
                yield Rows(weights.cpu(), hide.cpu())

    def shown(self) -> ShownLayer:
        return ShownLayer(self.name, self.calls[0].query.shape[0], self.key.shape[0], self.rows())


class ModelRun:
    """What `watch` recorded: queries and keys of every layer, one batch entry of them. heed.view shows it.

    Memory grows with layers × tokens × width; weights are made again when they are shown, a stretch at a time.
    """

    def __init__(self, names: dict[int, str], layers: Iterable[int] | None, entry: int) -> None:
        self._names, self._layers, self._entry = names, None if layers is None else set(layers), entry
        self._passes: list[dict[int, LayerRun]] = []

    def record(self, module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, mask: Any, options: dict[str, Any]) -> None:
        """Called after each attention of the model."""
        name = self._names.get(id(module))
        if name is None or (self._layers is not None and _number(name) not in self._layers):
            return
        if hasattr(key, "dense"):
            key = key.dense()
        if self._entry >= query.shape[0]:
            raise ValueError(f"entry: {self._entry} is not below the batch of {query.shape[0]}")
        if options.get("is_causal") is None:
            options["is_causal"] = getattr(module, "is_causal", True)
        key = key[self._entry].detach()
        run = next((each[id(module)] for each in reversed(self._passes) if id(module) in each), LayerRun(name))
        kept = run.kept(query.shape[2], key)
        if kept is None:
            run, kept = LayerRun(name), key
            if not self._passes or id(module) in self._passes[-1]:
                self._passes.append({})
            self._passes[-1][id(module)] = run
        scores = {"scale": options.get("scaling"), "softcap": options.get("softcap"), "sink": options.get("s_aux")}
        call = Call(self._entry, query, key, mask, options)
        if isinstance(options.get("position_bias"), torch.Tensor):
            added = options["position_bias"][min(self._entry, options["position_bias"].shape[0] - 1)][..., : call.keys]
            call.bias = added if call.bias is None else call.bias + added
        run.add(call, kept.clone(), scores)

    @property
    def layers(self) -> list[str]:
        """The names of the layers recorded."""
        return [run.name for each in self._passes[-1:] for run in each.values()]

    def shown_runs(self) -> list[ShownRun]:
        """What heed.view shows: one run for each pass over a text, further ones for layers of other lengths."""
        if not self._passes:
            raise ValueError("run: the model has not run, or none of its attention goes through transformers' AttentionInterface")
        runs = []
        for number, layers in enumerate(self._passes):
            extents: dict[tuple[int, int], list[LayerRun]] = {}
            for layer in layers.values():
                extents.setdefault((layer.queries, layer.filled.shape[1]), []).append(layer)
            for (queries, keys), alike in extents.items():
                name = f"Pass {number}" if len(self._passes) > 1 else ""
                own = keys - queries if queries <= keys and not any("cross" in layer.name.lower() for layer in alike) else None
                runs.append(ShownRun(name, queries, keys, own, [layer.shown() for layer in alike]))
        return runs


def _number(name: str) -> int | None:
    found = re.findall(r"\d+", name)
    return int(found[-1]) if found else None


def _names_of(model: torch.nn.Module) -> dict[int, str]:
    """id of a module -> what its layer is called: its number, with what precedes it where numbers are not enough."""
    paths = {id(module): path for path, module in model.named_modules() if path}
    found = {key: re.search(r"(.*?)\b(\d+)\b(.*)", path) for key, path in paths.items()}
    stacks = {match[1] for match in found.values() if match}
    has_several = any(word in " ".join(stacks) for word in ("encoder", "decoder")) and len({s.split(".")[0] for s in stacks}) > 1
    names = {}
    for key, path in paths.items():
        match = found[key]
        names[key] = path if match is None or has_several else f"Layer {match[2]}"
    return names


@contextmanager
def watch(model: torch.nn.Module, layers: Iterable[int] | None = None, entry: int = 0) -> Iterator[ModelRun]:
    """Records what every attention layer of a model, or those of these numbers, sees while the model runs.

    The model computes what it always computes, by the attention it always uses. What is kept are the queries and keys
    of one batch entry. Texts that are generated token by token are one run.

    >>> with heed.transformers.watch(model) as run:  # doctest: +SKIP
    ...     model(**tokenizer("The cat sat.", return_tensors="pt"))
    >>> heed.view(run, tokens=["The", " cat", " sat", "."]).save("attention.html")  # doctest: +SKIP
    """
    run = ModelRun(_names_of(model), layers, entry)
    original = AttentionInterface.get_interface

    def get_interface(self: AttentionInterface, name: str, default: Callable) -> Callable:
        attend = original(self, name, default)

        def attend_and_record(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, *others: Any, **options: Any) -> Any:
            answer = attend(module, query, key, *others, **options)
            mask = others[1] if len(others) > 1 else options.get("attention_mask")
            shows_every_key = attend is default or name in _transformers_own.names  # without a mask; the others are causal then
            run.record(module, query, key, mask, options | ({"is_causal": False} if shows_every_key else {}))
            return answer

        return attend_and_record

    AttentionInterface.get_interface = get_interface
    try:
        yield run
    finally:
        AttentionInterface.get_interface = original
