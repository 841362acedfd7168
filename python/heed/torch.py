# SPDX-License-Identifier: Apache-2.0
"""heed for PyTorch: a drop-in for `F.scaled_dot_product_attention`, and the attention layer as an `nn.Module`.

>>> import torch, heed.torch
>>> q, k, v = torch.randn(1, 8, 5, 64), torch.randn(1, 2, 5, 64), torch.randn(1, 2, 5, 64)
>>> heed.torch.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).shape
torch.Size([1, 8, 5, 64])

Both train on the CPU: autograd gets heed's own gradients, and `torch.compile` traces through. The gradient of a gradient,
derivatives in forward mode and the transforms of `torch.func` are refused. In a build with CUDA both take tensors on a CUDA
device, on PyTorch's current stream; gradients are refused there.
"""

from __future__ import annotations

from typing import Any

import torch

import heed
from heed import _heed, torch_devices, torch_operators, torch_refusals
from heed.torch_layer import AttentionLayer

_heed.share_openmp_threads()  # PyTorch's, which are awake anyway

__all__ = ["AttentionLayer", "attention", "dropout_seed", "scaled_dot_product_attention"]


def dropout_seed() -> int:
    """A seed for heed's dropout, drawn from PyTorch's generator: `torch.manual_seed` makes it repeat."""
    return int(torch_operators.drawn_seed())


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, return_lse: bool = False, **options: Any
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`heed.attention` of (batch, heads, length, dim), with gradients by q, k, v, bias and sink.

    options are those of heed.attention but for caches and what it returns or writes to; seed may be a tensor. Returns out (batch, heads, queries,
    value_dim), or (out, lse).

    >>> q = torch.ones(1, 4, 5, 8, requires_grad=True)
    >>> heed.torch.attention(q, q, q, causal=True, window=(2, 0)).sum().backward()
    >>> q.grad.shape
    torch.Size([1, 4, 5, 8])
    """
    out, lse = torch_operators.attention(q, k, v, options)
    return (out, lse) if return_lse else out


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, argument for argument, gradients included.

    query is (..., heads, queries, dim), key (..., heads, keys, dim), value (..., heads, keys, value_dim), attn_mask
    broadcasts to (..., heads, queries, keys): True attends, or floats to add. Returns (..., heads, queries,
    value_dim). Unlike PyTorch's, a query that sees no key yields zeros, and what is masked is never read.

    >>> q = torch.ones(2, 3, 4, 8)
    >>> heed.torch.scaled_dot_product_attention(q, q, q, is_causal=True).shape
    torch.Size([2, 3, 4, 8])
    """
    if torch_devices.is_autocast(query):
        query, key, value, attn_mask = map(torch_devices.as_autocast_says, (query, key, value, attn_mask))
    if dropout_p == 0.0 and not torch_operators.records(query, key, value, attn_mask):
        return heed.scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa
        )
    if not torch.compiler.is_compiling():
        named = {"query": query, "key": key, "value": value}
        torch_refusals.check_drop_in(named, attn_mask, is_causal=is_causal, enable_gqa=enable_gqa)
    if attn_mask is not None and is_causal:
        raise heed.Error("attn_mask: given although is_causal is True; PyTorch refuses both as well")
    options: dict[str, Any] = {"scale": scale, "causal": "starts" if is_causal else None}
    if dropout_p != 0.0:
        options |= {"dropout": dropout_p, "seed": torch_operators.drawn_seed()}
    return _in_four_axes((query, key, value), attn_mask, options, shares_heads=enable_gqa)


def _in_four_axes(
    qkv: tuple[torch.Tensor, ...], mask: torch.Tensor | None, options: dict[str, Any], *, shares_heads: bool
) -> torch.Tensor:
    """attention of tensors with any leading axes, which broadcast; all but the heads become the batch."""
    rank = max(tensor.ndim for tensor in qkv)
    axes = max(4, rank)
    spread = [tensor[(None,) * (axes - tensor.ndim)] for tensor in qkv]
    common = axes - 3 if shares_heads else axes - 2
    leading = torch.broadcast_shapes(*(tensor.shape[:common] for tensor in spread))
    batch = leading[: axes - 3]
    q, k, v = (tensor.expand(leading + tensor.shape[common:]).flatten(0, axes - 4) for tensor in spread)
    if k.shape[1] != v.shape[1]:  # PyTorch lets each share heads by itself
        k, v = (tensor.repeat_interleave(q.shape[1] // tensor.shape[1], 1) for tensor in (k, v))
    if mask is not None:
        mask = mask[(None,) * (axes - mask.ndim)]
        mask = mask.expand(batch + mask.shape[axes - 3 :]).flatten(0, axes - 4)
        options["keep" if mask.dtype == torch.bool else "bias"] = mask
    out = attention(q, k, v, **options)
    return out.reshape((batch + out.shape[1:])[axes - rank :])
