# SPDX-License-Identifier: Apache-2.0
"""A cache for Hugging Face transformers that keeps keys and values in heed.KvCache.

Imported through heed.transformers, which also has the attention that reads it in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

import heed
from heed import _torch_tensors

__all__ = ["CachedStates", "HeedCache", "HeedCacheLayer"]

WINDOWED = ("sliding_attention",)
WHOLE = ("full_attention", "chunked_attention")


def spreading(dim: int) -> torch.Tensor:
    """(dim, dim), symmetric and its own inverse: a number that stands out becomes a little of many (Hadamard).

    Queries and keys that are both multiplied by it have the same scores as before. Keys of trained models have a few
    dimensions that are far larger than the others, and with one scale per token 8 bits lose the others to them.
    """
    block = dim & -dim  # the largest power of two that divides it
    signs = torch.ones(1, 1, device="cpu", dtype=torch.float32)
    while len(signs) < block:
        signs = torch.cat([torch.cat([signs, signs], 1), torch.cat([signs, -signs], 1)])
    return torch.block_diag(*[signs * block**-0.5] * (dim // block))


class CachedStates(torch.Tensor):
    """The keys or values of a layer, (batch, kv_heads, tokens, dim), that are still in its cache.

    heed's attention reads them there. To everybody else this is an ordinary tensor: whatever operation looks at it
    gets a copy of what the cache holds.
    """

    layer: HeedCacheLayer
    part: int  # 0: keys, 1: values

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, layer: HeedCacheLayer, part: int, new: torch.Tensor) -> CachedStates:
        """new are the states appended last; the element type is theirs."""
        batch, heads, _, dim = new.shape
        shape = (batch, heads, layer.get_seq_length(), dim)
        self = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=new.dtype, device=new.device)
        self.layer, self.part = layer, part
        return self

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"CachedStates({tuple(self.shape)}, {self.dtype}, {('keys', 'values')[self.part]})"

    @property
    def is_whole(self) -> bool:
        """Whether the cache holds these tokens and no others: nothing was appended or cropped since."""
        return self.shape[0] == self.layer.batch_size and self.shape[2] == self.layer.get_seq_length()

    def dense(self) -> torch.Tensor:
        """A copy: dequantised, zeros where a window has let go."""
        like = torch.empty(1, device=self.device, dtype=torch.float32)
        with _torch_tensors.beside_caches(self):
            pairs = [self.layer.cache.read(number, like) for number in self.layer.numbers]
        read = torch.cat([pair[self.part] for pair in pairs])
        states = self.layer.spread(read) if self.part == 0 else read
        return states[:, :, : self.shape[2]].to(self.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN206
        def densified(x: Any) -> Any:
            return x.dense() if isinstance(x, CachedStates) else x

        return func(*tree_map(densified, args), **tree_map(densified, kwargs or {}))


class HeedCacheLayer(CacheLayerMixin):
    """One layer's keys and values. `cache` is the heed.KvCache, made when the first tokens come."""

    cache: heed.KvCache
    numbers: list[int]  # which sequence of the cache each batch entry is
    room: int  # for how many full sequences it has pages
    spreading: torch.Tensor | None  # what keys in 8 bits are multiplied by

    def __init__(self, capacity: int, window: int | None = None, **choices: Any) -> None:
        super().__init__()
        self.capacity, self.window, self.choices = capacity, window, choices
        self.is_sliding = window is not None
        self.is_croppable = window is None  # a window can go back only as far as the last append

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        batch, heads, _, dim = key_states.shape
        choices = {"layout": "paged", "window": self.window} | self.choices
        if choices.get("quantize") is None and choices.get("dtype") is None:
            choices["dtype"] = key_states.dtype
        if key_states.device.type == "cuda":
            choices["device"] = self.choices["device"] = "cuda"
        with _torch_tensors.beside_caches(key_states):
            self.cache = heed.KvCache(batch, heads, self.capacity, dim, value_dim=value_states.shape[3], **choices)
        self.numbers, self.room = list(range(batch)), batch
        self.spreading = spreading(dim).to(key_states.device) if choices.get("quantize") else None
        self.is_initialized = True

    def spread(self, states: torch.Tensor) -> torch.Tensor:
        """Queries or keys as the cache keeps keys, and back again: (..., dim), of the same element type."""
        if self.spreading is None:
            return states
        return (states.float() @ self.spreading).to(states.dtype)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends (batch, kv_heads, tokens, dim) to every sequence, or to none where it raises."""
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            raise RuntimeError(
                "past_key_values: a HeedCache has no gradient; run the model under torch.no_grad(), or with use_cache=False"
            )
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys = key_states if self.spreading is None else self.spread(key_states.float())
        with _torch_tensors.beside_caches(keys):
            if self.sequences is None:
                self.cache.append(keys, value_states)
            else:
                self._append_one_by_one(keys, value_states)
        return CachedStates(self, 0, key_states), CachedStates(self, 1, value_states)

    def _append_one_by_one(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        length = self.get_seq_length()
        done: list[int] = []
        try:
            for number, k, v in zip(self.numbers, key_states, value_states, strict=True):
                self.cache.append_to(number, k, v)
                done.append(number)
        except heed.Error:
            for number in done:
                self.cache.truncate(number, length)
            raise

    @property
    def sequences(self) -> list[int] | None:
        """What heed.attention takes as sequences: None where batch entry b is sequence b."""
        return None if self.numbers == list(range(self.cache.sequences)) else self.numbers

    @property
    def batch_size(self) -> int:
        return len(self.numbers) if self.is_initialized else -1

    def get_seq_length(self) -> int:
        return self.cache.length(self.numbers[0]) if self.is_initialized and self.numbers else 0

    def get_max_length(self) -> int:
        return self.capacity

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys, position of the first): positions are those of the whole sequence, with a window as well."""
        return self.get_seq_length() + query_length, 0

    def reset(self) -> None:
        """Forgets everything, the size of the batch included."""
        if self.is_initialized:
            del self.cache, self.numbers
            self.is_initialized = False

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last -tokens_to_remove tokens."""
        if tokens_to_remove > 0:
            raise ValueError(f"tokens_to_remove: {tokens_to_remove} is positive; say -n for the last n tokens")
        if self.is_initialized and tokens_to_remove < 0:
            for number in self.numbers:
                self.cache.truncate(number, max(self.cache.length(number) + tokens_to_remove, 0))

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Batch entry b becomes what entry beam_idx[b] was. Pages are shared, not copied."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every batch entry `repeats` times, next to each other."""
        if self.is_initialized:
            self._become([number for number in self.numbers for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Batch entry b becomes what entry indices[b] was; indices may also be booleans that keep entries."""
        if self.is_initialized:
            self._become(torch.tensor(self.numbers)[indices.to("cpu")].tolist())

    def _become(self, wanted: list[int]) -> None:
        """Makes these sequences the batch; one that is wanted twice is forked, one that is not is released."""
        self._make_room(len(wanted))
        used: set[int] = set()
        numbers = []
        for number in wanted:
            numbers.append(self.cache.fork(number) if number in used else number)
            used.add(number)
        for number in set(self.numbers) - used:
            self.cache.release(number)
        self.numbers = numbers

    def _make_room(self, sequences: int) -> None:
        """Pages for so many full sequences, unless whoever made the cache said how many there are."""
        if self.choices.get("pages") is None and sequences > self.room:
            device = "cuda" if self.choices.get("device") == "cuda" else "cpu"
            self.cache = self.cache.to(device, pages=self.cache.pages // self.room * sequences)
            self.room = sequences

    def offload(self) -> None:
        """Nothing: the cache stays where its model runs."""

    def prefetch(self) -> None:
        """Nothing: the cache stays where its model runs."""


def windows_of_layers(decoder: Any) -> list[int | None]:
    """For each layer that keeps keys of its own: how many tokens its queries see, or None for all.

    Read from the config itself, which every release of transformers 5 has. Configs of newer ones list one for each layer, in which
    the window may differ.
    """
    each = getattr(decoder, "per_layer_config", None) or [decoder] * decoder.num_hidden_layers
    kinds = getattr(decoder, "layer_types", None)
    if kinds is None:
        kinds = ["full_attention" if getattr(layer, "sliding_window", None) is None else "sliding_attention" for layer in each]
    keeping = len(kinds) - (getattr(decoder, "num_kv_shared_layers", None) or 0)
    for index, kind in enumerate(kinds[:keeping]):
        if kind not in WINDOWED + WHOLE:
            raise ValueError(f"config: layer {index} is a {kind}, which heed.KvCache cannot keep")
    return [
        layer.sliding_window if kind in WINDOWED else None for kind, layer in zip(kinds[:keeping], each, strict=False)
    ]


class HeedCache(DynamicCache):
    """What `past_key_values=` takes: the keys and values of all layers, each layer's in a heed.KvCache.

    capacity is how many tokens a sequence may have, the model's max_position_embeddings unless it is said; memory is
    taken page by page as tokens come. dtype is that of the model's keys unless it is said; quantize="int8" keeps a
    byte per element instead, of keys that are spread first. Layers with a sliding window give pages back that no
    token sees any more. The pages lie where the model's keys do, on the CPU or on a CUDA device. The other choices are those of heed.KvCache: page_size, pages.

    With `attn_implementation="heed"` attention reads the pages where they are; any other implementation gets copies.

    >>> heed.transformers.register("heed")
    >>> cache = heed.transformers.HeedCache(model.config, quantize="int8")  # doctest: +SKIP
    >>> model.generate(**inputs, past_key_values=cache)  # doctest: +SKIP
    """

    layers: list[HeedCacheLayer]

    def __init__(
        self,
        config: Any,
        *,
        capacity: int | None = None,
        dtype: Any = None,
        quantize: str | None = None,
        **choices: Any,
    ) -> None:
        decoder = config.get_text_config(decoder=True)
        if capacity is None:
            capacity = getattr(decoder, "max_position_embeddings", None)
        if capacity is None:
            raise ValueError("capacity: the config has no max_position_embeddings; say how many tokens may come")
        layers = [
            HeedCacheLayer(capacity, window, dtype=dtype, quantize=quantize, **choices) for window in windows_of_layers(decoder)
        ]
        Cache.__init__(self, layers=layers)  # to an EncoderDecoderCache it is a dynamic one: it grows, and can be cropped

    @property
    def bytes(self) -> int:
        """Of the pages in use, all layers."""
        return sum(layer.cache.bytes for layer in self.layers if layer.is_initialized)
