# SPDX-License-Identifier: Apache-2.0
"""heed in the place of PyTorch's own attention, in programs that are not changed.

`F.scaled_dot_product_attention` and `F.multi_head_attention_forward`, which `nn.MultiheadAttention` calls, are replaced as attributes
of `torch.nn.functional`; PyTorch's fused inference path of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer`, which goes past
both, is switched off. What heed refuses is computed by PyTorch, and logged once for each reason.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import CausalBias
from torch.overrides import has_torch_function_variadic

import heed
from heed import _torch_drop_in, _torch_operators, _torch_tensors

__all__ = ["activate", "activated", "deactivate"]

_LOGGER = logging.getLogger("heed.torch")
_PYTORCHS_LAYER = inspect.unwrap(F.multi_head_attention_forward)
_NO_TORCH_FUNCTIONS = (Tensor.__torch_function__, torch.nn.Parameter.__torch_function__)
_reasons_logged: set[str] = set()

_LOCK = threading.Lock()
_is_asked_for = False  # by activate()
_blocks = 0  # of activated(), in all threads
_is_active = False
_had_fast_path = True  # before heed was active
_before: dict[str, Any] = {}  # what F had there, for deactivate()
_left: dict[str, Any] = {}  # what was laid over heed's functions, and stayed when heed left
# What heed's functions are while heed is not active: what F had before anybody could hold one of heed's, which may not call itself.
_beneath: dict[str, Any] = {}


def activate() -> None:
    """Makes unmodified programs compute `F.scaled_dot_product_attention` and `nn.MultiheadAttention` with heed.

    On the CPU, and on CUDA devices in a build with CUDA. Holds for the whole process until `deactivate()`; a second call changes
    nothing. PyTorch's fused inference path is off meanwhile, and with it nested tensors into `nn.MultiheadAttention` and what is made of
    it; `torch.backends.mha.set_fastpath_enabled(True)` brings both back. Programs that took the function itself before (`from torch.nn.functional import scaled_dot_product_attention`) keep
    PyTorch's. What heed refuses (nested tensors, transforms of torch.func, float64 on a GPU) is computed by PyTorch, and the logger
    "heed.torch" says so once for each reason. `sdpa_kernel()`, which chooses among PyTorch's kernels, chooses nothing here.

    >>> import torch, heed.torch
    >>> heed.torch.activate()
    >>> q = torch.ones(1, 2, 4, 8)
    >>> torch.nn.functional.scaled_dot_product_attention(q, q, q).shape
    torch.Size([1, 2, 4, 8])
    >>> heed.torch.deactivate()
    """
    global _is_asked_for
    with _LOCK:
        _is_asked_for = True
        _come_or_leave()


def deactivate() -> None:
    """Puts back what was there before `activate()`. Without that, nothing happens; who is in a with statement of `activated()` keeps heed.

    A function that somebody has laid over heed's since stays where it is; what it calls is then what was there before heed.

    >>> import torch, heed.torch
    >>> heed.torch.deactivate()
    """
    global _is_asked_for
    with _LOCK:
        _is_asked_for = False
        _come_or_leave()


@contextmanager
def activated() -> Iterator[None]:
    """`activate()` for the time of a with statement, in all threads. Where heed was active before, or is in another thread, it stays so.

    >>> import torch, heed.torch
    >>> with heed.torch.activated():
    ...     y, weights = torch.nn.MultiheadAttention(16, 2)(*[torch.ones(3, 1, 16)] * 3)
    >>> weights.shape
    torch.Size([1, 3, 3])
    """
    _count_blocks(1)
    try:
        yield
    finally:
        _count_blocks(-1)


def _count_blocks(more: int) -> None:
    global _blocks
    with _LOCK:
        _blocks += more
        _come_or_leave()


def _come_or_leave() -> None:
    """Under the lock: heed is active as long as anybody holds it."""
    global _is_active, _had_fast_path
    is_wanted = _is_asked_for or _blocks > 0
    if is_wanted == _is_active:
        return
    _is_active = is_wanted
    if is_wanted:
        _had_fast_path = torch.backends.mha.get_fastpath_enabled()
        _lay_over()
    else:
        _take_away()
    torch.backends.mha.set_fastpath_enabled(False if is_wanted else _had_fast_path)


def _lay_over() -> None:
    for name, function in _HEEDS.items():
        found = getattr(F, name)
        if found is function or found is _left.get(name):  # which has heed's beneath it
            continue
        _before[name] = found
        _beneath.setdefault(name, found)
        setattr(F, name, function)


def _take_away() -> None:
    for name, function in _HEEDS.items():
        found = getattr(F, name)
        if found is function:
            setattr(F, name, _before[name])
        else:
            _left[name] = found


def _scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if torch.jit.is_scripting():
        return torch._C._nn.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    else:  # which torch.jit.script does not read
        if not _is_active:
            beneath = _beneath["scaled_dot_product_attention"]
            return beneath(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        return _by_heed_or_pytorch(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _by_heed_or_pytorch(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool, *rest: Any
) -> Tensor:
    query, key, value, attn_mask = map(_torch_tensors.waited, (query, key, value, attn_mask))
    said = (query, key, value, attn_mask, dropout_p, is_causal, *rest)
    try:
        if not torch.compiler.is_dynamo_compiling():
            out = _torch_drop_in.past_the_dispatcher(*said)
            if out is not NotImplemented:
                return out
        reason = _reason_for_pytorch({"query": query, "key": key, "value": value, "attn_mask": attn_mask})
        if reason is None:
            return _torch_drop_in.observed(*said)
    except (heed.Error, _torch_tensors.NotComputed) as refusal:
        reason = str(refusal)
    scale, enable_gqa = rest
    if isinstance(attn_mask, CausalBias):  # which looks for PyTorch's function in its place
        out = CausalBias._dispatch(*said)
    else:
        out = torch._C._nn.scaled_dot_product_attention(*said[:6], scale=scale, enable_gqa=enable_gqa)
    _log(reason)  # not where PyTorch refuses as well
    return out


def _reason_for_pytorch(named: dict[str, Any]) -> str | None:
    """Why these tensors are PyTorch's business from the beginning; None where heed is asked."""
    tensors = {name: tensor for name, tensor in named.items() if isinstance(tensor, Tensor) and not isinstance(tensor, CausalBias)}
    for name, tensor in tensors.items():
        if name != "attn_mask" and tensor.dtype in (torch.complex64, torch.complex128):
            return f"{name}.dtype: heed does not compute in {str(tensor.dtype).removeprefix('torch.')}"
        if name != "attn_mask" and tensor.dtype == torch.float64 and tensor.is_cuda:
            return f"{name}.dtype: heed computes in float64 on the CPU alone, not on {tensor.device}"
        if torch.compiler.is_compiling():
            continue
        found = _torch_tensors.foreign_kind(tensor)
        if found is not None:
            return f"{name}: heed does not compute with a {found[0]}"
        if type(tensor).__torch_function__ not in _NO_TORCH_FUNCTIONS:
            return f"{name}: {type(tensor).__name__} has a __torch_function__ of its own"
    return None


def _log(reason: str) -> None:
    if not torch.compiler.is_compiling() and reason not in _reasons_logged:
        _reasons_logged.add(reason)
        _LOGGER.warning("computed by PyTorch: %s", reason)


# nn.MultiheadAttention asks for the weights unless told otherwise, and PyTorch makes them of bmm and softmax. Here its function runs
# as if nobody had asked, with an attention that leaves the weights beside it.


class _Weights(threading.local):
    found: Tensor | None = None


_WEIGHTS = _Weights()


def _attention_with_weights(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool
) -> Tensor:
    """(batch, heads, queries, dim); the weights, (batch, heads, queries, keys), are in _WEIGHTS."""
    q, k, v, attn_mask = map(_torch_tensors.waited, (q, k, v, attn_mask))
    reason = _reason_for_pytorch({"query": q, "key": k, "value": v, "attn_mask": attn_mask})
    if reason is not None:
        raise heed.Error(reason)
    if _torch_tensors.is_autocast(q):
        q, k, v, attn_mask = map(_torch_tensors.as_autocast_says, (q, k, v, attn_mask))
    said: dict[str, Any] = {"bias": attn_mask, "causal": "starts" if is_causal else None}
    if dropout_p != 0.0:
        said["dropout"] = dropout_p
    options = _torch_operators.with_seed(_torch_operators.options_of(said))
    if _torch_tensors.is_unwatched((q, k, v, *options.tensors.values())):
        out, _WEIGHTS.found = heed.attention(q, k, v, return_weights=True, **options.keywords())
    else:
        out, _ = _torch_operators.attend(q, k, v, options)
        _WEIGHTS.found = _torch_operators.table(q, k, v, options, "weights")
    return out


_SIGNATURE = inspect.signature(_PYTORCHS_LAYER)


def _without_weights(**said: Any) -> tuple[Tensor, None]:
    """PyTorch's own function with that attention, and with whatever else lies in F by now: `linear` may be somebody else's."""
    names = vars(F) | {"scaled_dot_product_attention": _attention_with_weights}
    return types.FunctionType(_PYTORCHS_LAYER.__code__, names)(**said)


@functools.wraps(_PYTORCHS_LAYER)
def _multi_head_attention_forward(*args: Any, **keywords: Any) -> tuple[Tensor, Tensor | None]:
    if not _is_active:
        return _beneath["multi_head_attention_forward"](*args, **keywords)
    bound = _SIGNATURE.bind(*args, **keywords)
    bound.apply_defaults()
    said = bound.arguments
    tensors = [argument for argument in said.values() if isinstance(argument, Tensor)]
    if not said["need_weights"] or torch.jit.is_tracing() or has_torch_function_variadic(*tensors) or 1.0 == said["dropout_p"]:
        return _PYTORCHS_LAYER(*args, **keywords)
    if said["attn_mask"] is not None:
        said["is_causal"] = False  # a hint, which PyTorch takes only where nobody asks for the weights
    try:
        out, _ = _without_weights(**said | {"need_weights": False})
    except (heed.Error, _torch_tensors.NotComputed) as refusal:
        out_and_weights = _PYTORCHS_LAYER(*args, **keywords)
        _log(str(refusal))
        return out_and_weights
    weights, _WEIGHTS.found = _WEIGHTS.found, None
    if said["average_attn_weights"]:
        weights = weights.mean(dim=1)
    return out, weights if said["query"].dim() == 3 else weights.squeeze(0)


# The names by which torch.jit.script and torch.compile find what a wrapper stands for: they see PyTorch's function.
_multi_head_attention_forward.__original_fn = _PYTORCHS_LAYER
_multi_head_attention_forward.__script_if_tracing_wrapper = True

# By which context_parallel and its kind put their own in its place.
for _attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
    setattr(_scaled_dot_product_attention, _attribute, getattr(torch._C._nn.scaled_dot_product_attention, _attribute))

_HEEDS = {
    "scaled_dot_product_attention": _scaled_dot_product_attention,
    "multi_head_attention_forward": _multi_head_attention_forward,
}
if getattr(_PYTORCHS_LAYER, "__globals__", None) is not vars(F):  # somebody else's since before heed was imported, with no way to PyTorch's
    del _HEEDS["multi_head_attention_forward"]
