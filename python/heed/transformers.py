# SPDX-License-Identifier: Apache-2.0
"""heed as an attention implementation of Hugging Face transformers.

>>> import heed.transformers
>>> heed.transformers.register("heed")
>>> model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="heed")  # doctest: +SKIP

Prefill, decoding with any of the library's caches, padding on either side, sliding windows, softcap, sinks, grouped
heads and position biases are taken as the models ask for them. Keys and values are read where the cache keeps them,
never repeated, and a (queries, keys) mask is made only for patterns that have no name (`SeenKeys` says which have).
What a model computes with heed is what it computes with "eager", transformers' own plain attention: nothing is guessed.
A model asked for `output_attentions=True` in the call returns the weights. With a `HeedCache` as `past_key_values`,
keys and values stay in a `heed.KvCache`, in 8 bits if wanted.

Models train with it: the gradients are heed's own, gradient checkpointing and `torch.compile` included. In a build with
CUDA models run and train on the device they lie on, caches included.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

import heed
from heed import _torch_operators, _torch_tensors
from heed._transformers_cache import CachedStates, HeedCache
from heed._transformers_masks import Pattern, SeenKeys, make_mask
from heed._transformers_own import serve_models_with_attention_of_their_own
from heed._transformers_watch import ModelRun, watch

__all__ = ["HeedCache", "ModelRun", "Pattern", "SeenKeys", "attend", "make_mask", "register", "watch"]


def register(name: str = "heed") -> None:
    """Makes `attn_implementation=name` mean heed, for every model made or switched afterwards.

    >>> heed.transformers.register("heed")
    >>> model.set_attn_implementation("heed")  # doctest: +SKIP
    """
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, make_mask)
    serve_models_with_attention_of_their_own(name)


def _options_of(mask: SeenKeys, keys: int) -> dict[str, Any]:
    """heed's words for a mask made for `keys` keys."""
    if mask.shape[3] != keys:
        raise ValueError(f"attention_mask: its {mask.shape[3]} keys are not the {keys} keys of key")
    if mask.drawn is not None:
        return {"keep": mask.drawn}
    options: dict[str, Any] = {"causal": "ends" if mask.pattern.causal else None}
    if mask.pattern.window is not None:
        options["window"] = (*mask.pattern.window, "ends")
    if mask.lengths is not None:
        options["key_lengths"] = mask.lengths
    elif mask.padding is not None:
        options["keep"] = mask.padding[:, None, None, : mask.filled]
    return options


def _check_none_is_every_key(is_causal: bool | None, queries: int) -> None:
    """No mask means every key, as in eager attention: `make_mask` answers None for nothing else, and models that make none mean it."""
    if is_causal and queries > 1:
        raise heed.KindError(
            "is_causal: True without a mask is causal in transformers' sdpa attention and every key in its eager attention; give "
            "attention_mask, which says it, or leave is_causal out for every key"
        )


def _only(indices: torch.Tensor, mask: torch.Tensor | None, keys: int) -> torch.Tensor:
    """The mask without the keys that are not among `indices`, (batch, queries, chosen)."""
    chosen = torch.zeros(*indices.shape[:2], keys, dtype=torch.bool, device=indices.device).scatter_(-1, indices.long(), True)
    chosen = chosen[:, None]
    if mask is None:
        return chosen
    if isinstance(mask, SeenKeys):
        mask = mask.seen()
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(~chosen, torch.finfo(mask.dtype).min)


def _in_cache(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]) -> tuple:
    """The arrays attention takes when key or value is in a HeedCache, which stands for both if it still can."""
    if isinstance(key, CachedStates) and isinstance(value, CachedStates) and key.is_whole and key.layer is value.layer:
        options.update(cache=key.layer.cache, sequences=key.layer.sequences)
        return (key.layer.spread(query),)
    return (query, *(states.dense() if isinstance(states, CachedStates) else states for states in (key, value)))


# Tensors that models hand on to every attention, and that none of transformers' own reads in this place: where tokens are, which is
# in the mask already, what the loss is divided by, and what becomes of the logits.
_NOT_FOR_ATTENTION = (
    "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "cu_seqlens", "logits_indices", "logits_processor_args", "num_items_in_batch",
    "position_embeddings", "seq_idx",
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
    indices: torch.Tensor | None = None,
    cache: Any = None,
    output_attentions: bool | None = False,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One layer's attention, as transformers calls it.

    query is (batch, heads, queries, dim), key and value (batch, kv_heads, keys, dim) with any strides; s_aux is one
    sink per head, position_bias (batch or 1, heads, queries, keys), and indices (batch, queries, chosen) are the only keys that
    a query sees (sparse attention of DeepSeek 3.2); cache is continuous batching's, which keeps key and value and answers all of
    them. Returns (batch, queries, heads, dim) and, if output_attentions, the weights (batch, heads, queries, keys).
    """
    if cache is not None:
        key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=others)
    _refuse_unknown_tensors(others)
    queries, keys = query.shape[2], key.shape[2]
    if indices is not None:
        attention_mask = _only(indices, attention_mask, keys)
    options: dict[str, Any] = {"scale": scaling}
    if softcap is not None:
        options["softcap"] = softcap
    if isinstance(attention_mask, SeenKeys) and torch.compiler.is_compiling():
        attention_mask = attention_mask.seen()
    if attention_mask is None:
        _check_none_is_every_key(is_causal, queries)
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
