# SPDX-License-Identifier: Apache-2.0
"""`F.scaled_dot_product_attention` computed by heed, as heed.torch has it."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.overrides import handle_torch_function, has_torch_function_variadic

import heed
from heed import _heed, _torch_operators, _torch_refusals, _torch_tensors

__all__ = ["DTYPES", "as_tensor", "observed", "past_the_dispatcher", "scaled_dot_product_attention"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def as_tensor(name: str, array: Any) -> torch.Tensor:
    try:
        return torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError):
        raise heed.KindError(f"{name}: {type(array).__name__} is not a torch.Tensor") from None


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
    broadcasts to (..., heads, queries, keys): True attends, or floats to add. It may be an array of NumPy's, or a `CausalBias`.
    Returns (..., heads, queries, value_dim). Unlike PyTorch's, a query that sees no key yields zeros, and what is masked is never
    read. Tensors that heed does not compute with (nested, distributed, sparse) are handed to PyTorch's function.

    >>> import torch, heed.torch
    >>> q = torch.ones(2, 3, 4, 8)
    >>> heed.torch.scaled_dot_product_attention(q, q, q, is_causal=True).shape
    torch.Size([2, 3, 4, 8])
    """
    if torch.jit.is_scripting():
        return torch._C._nn.scaled_dot_product_attention(  # PyTorch's own, whatever is put in its place
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    else:
        if not torch.compiler.is_dynamo_compiling():
            out = past_the_dispatcher(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
            if out is not NotImplemented:
                return out
        return observed(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def past_the_dispatcher(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any) -> Any:
    """The drop-in where nobody listens, or autograd alone; NotImplemented where PyTorch's dispatcher is to be told."""
    out = _heed.unwatched_scaled_dot_product_attention(query, key, value, *rest)
    if out is not NotImplemented or not _heed.is_plain_drop_in(query, key, value, *rest):
        return out
    if _torch_tensors.is_autocast(query) and torch.get_autocast_dtype(query.device.type) != query.dtype:
        return NotImplemented
    _, _, is_causal, scale, _ = rest
    return _torch_operators.attend_plainly(query, key, value, "starts" if is_causal else None, scale)


def observed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """The drop-in where somebody listens, or a tensor is not plain memory."""
    query, key, value, attn_mask = map(_torch_tensors.waited, (query, key, value, attn_mask))
    named = {"query": query, "key": key, "value": value}
    is_traced = _torch_tensors.is_traced()
    are_tensors = all(isinstance(tensor, torch.Tensor) for tensor in named.values())
    if not isinstance(attn_mask, torch.Tensor) and hasattr(attn_mask, "__dlpack__"):  # another library's array
        attn_mask = as_tensor("attn_mask", attn_mask).clone()  # backward reads it again
    if are_tensors and (dropout_p == 1.0 or _is_for_torch(query, key, value, attn_mask)):
        return torch._C._nn.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    is_named = isinstance(attn_mask, CausalBias)
    listening = (query, key, value, None if is_named else attn_mask)
    if has_torch_function_variadic(*listening) or (torch._C._len_torch_function_stack() and not torch.compiler.is_compiling()):
        return handle_torch_function(
            scaled_dot_product_attention, listening, query, key, value, attn_mask,
            dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa,
        )  # fmt: skip
    _torch_refusals.check_tensors(named, attn_mask)
    _torch_refusals.check_probability(dropout_p)
    causal = "starts" if is_causal else None
    if is_named:
        if is_causal:
            raise heed.Error("attn_mask: CausalBias should not be used with causal=True")
        causal = "starts" if attn_mask.variant == CausalVariant.UPPER_LEFT else "ends"
        _torch_refusals.check_causal_bias(named, attn_mask)
        attn_mask = None
    if _torch_tensors.is_autocast(query):
        query, key, value, attn_mask = map(_torch_tensors.as_autocast_says, (query, key, value, attn_mask))
        named = {"query": query, "key": key, "value": value}
    if not is_traced:
        _torch_refusals.check_drop_in(named, attn_mask, is_causal=is_causal, enable_gqa=enable_gqa)
    if attn_mask is not None and is_causal:
        raise heed.Error("attn_mask: Explicit attn_mask should not be set when is_causal=True")
    options: dict[str, Any] = {"scale": scale, "causal": causal}
    if dropout_p != 0.0:
        options["dropout"] = dropout_p
    if not torch.jit.is_tracing():
        return _in_four_axes((query, key, value), attn_mask, options, shares_heads=enable_gqa)
    with warnings.catch_warnings():  # which axes broadcast is part of a trace, as it is of PyTorch's own
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return _in_four_axes((query, key, value), attn_mask, options, shares_heads=enable_gqa)


def _is_for_torch(query: torch.Tensor, *others: torch.Tensor | None) -> bool:
    """Whether heed does not compute with these: PyTorch's own function says what becomes of them."""
    if query.dtype not in DTYPES and (query.is_floating_point() or query.is_complex()):
        return True
    if query.dtype == torch.float64 and query.is_cuda:
        return True
    if torch.compiler.is_compiling():
        return False
    given = [tensor for tensor in (query, *others) if isinstance(tensor, torch.Tensor)]
    return any(_torch_tensors.foreign_kind(tensor) is not None for tensor in given)


def _in_four_axes(
    qkv: tuple[torch.Tensor, ...], mask: torch.Tensor | None, options: dict[str, Any], *, shares_heads: bool
) -> torch.Tensor:
    """attention of tensors with any leading axes, which broadcast; all but the heads become the batch."""
    rank = max(tensor.ndim for tensor in qkv)
    axes = max(4, rank)
    spread = [tensor if tensor.ndim == axes else tensor[(None,) * (axes - tensor.ndim)] for tensor in qkv]
    common = axes - 3 if shares_heads else axes - 2
    leading, *others = (tensor.shape[:common] for tensor in spread)
    if any(shape != leading for shape in others):
        leading = torch.broadcast_shapes(leading, *others)
    batch = leading[: axes - 3]
    q, k, v = (_expanded(tensor, leading, axes) for tensor in spread)
    if k.shape[1] != v.shape[1]:  # PyTorch lets each share heads by itself
        k, v = (tensor.repeat_interleave(q.shape[1] // tensor.shape[1], 1) for tensor in (k, v))
    if mask is not None:
        mask = _expanded(mask[(None,) * (axes - mask.ndim)], batch, axes)
        options["keep" if mask.dtype == torch.bool else "bias"] = mask
    out, _ = _torch_operators.attend(q, k, v, _torch_operators.with_seed(_torch_operators.options_of(options)))
    return out if rank == 4 else out.reshape((batch + out.shape[1:])[axes - rank :])


def _expanded(tensor: torch.Tensor, leading: tuple[int, ...], axes: int) -> torch.Tensor:
    """With these leading axes, all but the last three as one. What fits already is left alone, so that a trace has no number of it."""
    if tuple(tensor.shape[: len(leading)]) != tuple(leading):
        tensor = tensor.expand(tuple(leading) + tuple(tensor.shape[len(leading) :]))
    return tensor if axes == 4 else tensor.flatten(0, axes - 4)
