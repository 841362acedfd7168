# SPDX-License-Identifier: Apache-2.0
"""heed as an attention implementation of Hugging Face transformers.

>>> import heed.transformers
>>> heed.transformers.register("heed")
>>> model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="heed")  # doctest: +SKIP

Prefill, decoding with any of the library's caches, padding on either side, sliding windows, softcap, sinks, grouped
heads and position biases are taken as the models ask for them. Keys and values are read where the cache keeps them,
never repeated, and a (queries, keys) mask is made only for patterns that have no name (`SeenKeys` says which have).
A model asked for `output_attentions=True` in the call returns the weights. With a `HeedCache` as `past_key_values`,
keys and values stay in a `heed.KvCache`, in 8 bits if wanted.

Models train with it: the gradients are heed's own, gradient checkpointing and `torch.compile` included. In a build with
CUDA models run and train on the device they lie on, caches included.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

import heed
from heed import _torch_operators, _torch_tensors
from heed._transformers_cache import CachedStates, HeedCache
from heed._transformers_watch import ModelRun, watch

__all__ = ["HeedCache", "ModelRun", "Pattern", "SeenKeys", "attend", "make_mask", "register", "watch"]


def register(name: str = "heed") -> None:
    """Makes `attn_implementation=name` mean heed, for every model made or switched afterwards.

    >>> heed.transformers.register("heed")
    >>> model.set_attn_implementation("heed")  # doctest: +SKIP
    """
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, make_mask)


class Pattern(NamedTuple):
    """Which keys a query sees, with the last query at the last key."""

    causal: bool
    window: tuple[int, int] | None = None  # how many keys before and after its own position


EVERY_KEY = Pattern(causal=False)


class SeenKeys(torch.Tensor):
    """A boolean mask (batch, 1, queries, keys), True = attend, that is known by its pattern.

    Causal masks, windows, padding and the empty end of a static cache need no matrix: heed takes them as they are.
    To everybody else this is an ordinary mask: whatever operation looks at it gets the dense one. To the compiler it is made of two
    tensors, `end` and `padding`, so that a cache that fills up is no new graph.
    """

    pattern: Pattern
    end: torch.Tensor  # 0 axes, int64, on the CPU: keys from here on are unseen, and the last query is at the last key before
    padding: torch.Tensor | None  # (batch, keys), True = a token

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls,
        shape: tuple[int, int, int],
        pattern: Pattern,
        filled: int | torch.Tensor,
        padding: torch.Tensor | None,
        device: torch.device | str = "cpu",
    ) -> SeenKeys:
        """shape is (batch, queries, keys), device where the dense mask is made."""
        batch, queries, keys = shape
        self = torch.Tensor._make_wrapper_subclass(cls, (batch, 1, queries, keys), dtype=torch.bool, device=device)
        self.pattern, self.padding = pattern, padding
        self.end = filled if isinstance(filled, torch.Tensor) else torch.tensor(filled, dtype=torch.int64, device="cpu")
        return self

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["end"] if self.padding is None else ["end", "padding"], (self.pattern, self.device)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: Any, size: Any, stride: Any) -> SeenKeys:
        batch, _, queries, keys = size
        return SeenKeys((batch, queries, keys), context[0], inner["end"], inner.get("padding"), context[1])

    @property
    def filled(self) -> int:
        """How many keys are seen by some query."""
        return int(self.end)

    @functools.cached_property
    def lengths(self) -> list[int] | None:
        """Tokens per batch entry, where all padding is at the end. Every layer asks, and a GPU has to wait for an answer."""
        return None if self.padding is None else _lengths(self.padding[:, : self.filled])

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"SeenKeys({tuple(self.shape)}, {self.pattern}, filled={self.filled}, lengths={self.lengths})"

    def dense(self) -> torch.Tensor:
        """The mask itself, (batch, 1, queries, keys)."""
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
    device: torch.device | str = "cpu",
    **others: Any,
) -> torch.Tensor | None:
    """The mask that `attend` is handed: None, a `SeenKeys`, or for a pattern without a name a dense boolean tensor.

    The arguments are those of transformers' mask interface: queries and keys are at positions from q_offset and
    kv_offset on, attention_mask is (batch, tokens) with True for a token, and the flags say whether None will do.
    """
    may_skip = allow_is_causal_skip or allow_is_bidirectional_skip
    pattern = None
    if not torch.compiler.is_compiling():
        pattern = _pattern_of(mask_function, local_size if may_skip else None)
    filled = kv_length
    if pattern is not None and pattern != EVERY_KEY:
        # heed puts the last query at the last key: a static cache is cut there, anything else has no name.
        filled = int(q_offset) + q_length - kv_offset
        if not 0 < filled <= kv_length or (filled < kv_length and not pattern.causal):
            pattern = None
    if pattern is None:
        return sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, local_size,
            allow_is_causal_skip=False, allow_is_bidirectional_skip=False, device=device, **others,
        )  # fmt: skip
    window = pattern.window
    if window is not None and min(window[0], filled if pattern.causal else window[1]) >= filled - 1:
        window = None
    padding = _padding(attention_mask, kv_offset, filled)
    if padding is not None:  # as wide as the mask, so that a cache that fills up changes no shape
        padding = torch.nn.functional.pad(padding, (0, kv_length - filled))
    if may_skip and padding is None and window is None and filled == kv_length:
        return None
    return SeenKeys((batch_size, q_length, kv_length), Pattern(pattern.causal, window), filled, padding, device)


def _options_of(mask: SeenKeys, keys: int) -> dict[str, Any]:
    """heed's words for a mask made for `keys` keys."""
    if mask.shape[3] != keys:
        raise ValueError(f"attention_mask: its {mask.shape[3]} keys are not the {keys} keys of key")
    options: dict[str, Any] = {"causal": "ends" if mask.pattern.causal else None}
    if mask.pattern.window is not None:
        options["window"] = (*mask.pattern.window, "ends")
    if mask.lengths is not None:
        options["key_lengths"] = mask.lengths
    elif mask.padding is not None:
        options["keep"] = mask.padding[:, None, None, : mask.filled]
    return options


def _in_cache(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]) -> tuple:
    """The arrays attention takes when key or value is in a HeedCache, which stands for both if it still can."""
    if isinstance(key, CachedStates) and isinstance(value, CachedStates) and key.is_whole and key.layer is value.layer:
        options.update(cache=key.layer.cache, sequences=key.layer.sequences)
        return (key.layer.spread(query),)
    return (query, *(states.dense() if isinstance(states, CachedStates) else states for states in (key, value)))


# Tensors that models hand on to every attention, and that none of transformers' own reads in this place: where tokens are, which is
# in the mask already, and what the loss is divided by.
_NOT_FOR_ATTENTION = (
    "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "cu_seqlens", "num_items_in_batch", "position_embeddings", "seq_idx",
)  # fmt: skip


def _refuse_unknown_tensors(others: dict[str, Any]) -> None:
    """What a model expects its attention to read, and heed does not know, would be a wrong number without a word."""
    for name, value in others.items():
        if isinstance(value, torch.Tensor) and name not in _NOT_FOR_ATTENTION and not name.endswith("_ids"):
            raise heed.KindError(
                f"{name}: a tensor that heed's attention does not know, and the model expects its attention to read; use "
                'attn_implementation="eager" for this model'
            )


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    output_attentions: bool | None = False,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One layer's attention, as transformers calls it.

    query is (batch, heads, queries, dim), key and value (batch, kv_heads, keys, dim) with any strides; s_aux is one
    sink per head and position_bias (batch or 1, heads, queries, keys). Returns (batch, queries, heads, dim) and, if
    output_attentions, the weights (batch, heads, queries, keys).
    """
    _refuse_unknown_tensors(others)
    queries, keys = query.shape[2], key.shape[2]
    options: dict[str, Any] = {"scale": scaling}
    if softcap is not None:
        options["softcap"] = softcap
    if isinstance(attention_mask, SeenKeys) and torch.compiler.is_compiling():
        attention_mask = attention_mask.dense()
    if attention_mask is None:
        if queries > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
            options["causal"] = "ends"
    elif isinstance(attention_mask, SeenKeys):
        options.update(_options_of(attention_mask, keys))
        if attention_mask.filled < keys:
            key, value = key[:, :, : attention_mask.filled], value[:, :, : attention_mask.filled]
    else:
        options["keep" if attention_mask.dtype == torch.bool else "bias"] = attention_mask
    if position_bias is not None:
        bias = position_bias[..., : key.shape[2]]
        options["bias"] = bias + options["bias"] if "bias" in options else bias
    if s_aux is not None:
        options["sink"] = s_aux
    if dropout > 0.0:
        options.update(dropout=dropout, seed=_torch_operators.drawn_seed())
    if isinstance(key, CachedStates) or isinstance(value, CachedStates):
        _check_cached(query, key, options)
        out, weights = _computed(query, _in_cache(query, key, value, options), options, output_attentions=bool(output_attentions))
    elif _torch_tensors.is_unwatched((query, key, value, *options.values())):
        out, weights = _computed(query, (query, key, value), options, output_attentions=bool(output_attentions))
    else:
        found = _torch_operators.options_of(options)
        out, _ = _torch_operators.attend(query, key, value, found)
        weights = _torch_operators.table(query, key, value, found, "weights") if output_attentions else None
        out = out.transpose(1, 2)
    return out, None if weights is None else torch.nn.functional.pad(weights, (0, keys - key.shape[2]))


def _check_cached(query: torch.Tensor, key: torch.Tensor, options: dict[str, Any]) -> None:
    """Keys or values in a HeedCache are read there, which neither autograd nor a compiler knows."""
    given = (query, options.get("bias"), options.get("sink"))
    if _torch_tensors.records_gradients(given):
        name = "key" if isinstance(key, CachedStates) else "value"
        raise RuntimeError(
            f"{name}: is in a HeedCache, which has no gradient; run the model under torch.no_grad() or without the cache"
        )
    if not _torch_tensors.is_unwatched(given):
        raise RuntimeError("past_key_values: a HeedCache is neither compiled nor traced; use one of transformers' caches there")


def _computed(
    query: torch.Tensor, arrays: tuple, options: dict[str, Any], *, output_attentions: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Out (batch, queries, heads, dim), where the model goes on with it, and the weights."""
    if "seed" in options:
        options["seed"] = int(options["seed"])
    batch, heads, queries, _ = query.shape
    value_dim = options["cache"].value_dim if "cache" in options else arrays[2].shape[3]
    out = query.new_empty(batch, queries, heads, value_dim)
    asked = {"return_weights": True} if output_attentions else {}
    found = heed.attention(*arrays, out=out.transpose(1, 2), **asked, **options)
    return out, found[1] if output_attentions else None
