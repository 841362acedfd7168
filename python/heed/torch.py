# SPDX-License-Identifier: Apache-2.0
"""heed for PyTorch: a drop-in for `F.scaled_dot_product_attention`, and the attention layer as an `nn.Module`.

>>> import torch, heed.torch
>>> q, k, v = torch.randn(1, 8, 5, 64), torch.randn(1, 2, 5, 64), torch.randn(1, 2, 5, 64)
>>> heed.torch.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).shape
torch.Size([1, 8, 5, 64])

`heed.torch.activate()` puts both PyTorch's `F.scaled_dot_product_attention` and `nn.MultiheadAttention` on heed in programs that
are not changed, and `heed.torch.varlen_attn` is `torch.nn.attention.varlen.varlen_attn`.

Drop-in and layer train: autograd gets heed's own gradients, which have the same bits every time. `torch.compile`, `torch.export`,
`torch.jit.trace` and `make_fx` see an operator, `torch.ops.heed.attention`, and an ONNX model gets PyTorch's own operations. The gradient of a gradient, derivatives in
forward mode and the transforms of `torch.func` but functionalize are refused. In a build with CUDA both take tensors on a CUDA
device, on PyTorch's current stream, and train there.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function_variadic

import heed
from heed import _heed, _torch_operators, _torch_refusals, _torch_tensors
from heed._torch_activation import activate, activated, deactivate
from heed._torch_drop_in import as_tensor, scaled_dot_product_attention
from heed._torch_layer import AttentionLayer

_heed.share_openmp_threads()  # PyTorch's, which are awake anyway

__all__ = [
    "AttentionLayer",
    "activate",
    "activated",
    "attention",
    "deactivate",
    "dropout_seed",
    "scaled_dot_product_attention",
    "varlen_attn",
]


def dropout_seed() -> int | torch.Tensor:
    """A seed for heed's dropout, drawn from PyTorch's generator: `torch.manual_seed` makes it repeat.

    Under torch.compile it is a tensor, since a number would be the same in every step.
    """
    seed = _torch_operators.drawn_seed()
    return seed if torch.compiler.is_compiling() else int(seed)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, layout: str = "bhsd", return_lse: bool = False, **options: Any
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`heed.attention` of (batch, heads, length, dim), with gradients by q, k, v, bias and sink.

    All three may leave out the batch, or batch and heads. options are those of heed.attention but for caches and what it returns or
    writes to; seed may be a tensor, and where none is given dropout draws one from PyTorch's generator, so that `torch.manual_seed`
    makes it repeat. With layout="bshd" q, k, v and out are (batch, length, heads, dim), as FlashAttention has them.
    Returns out (batch, heads, queries, value_dim), or (out, lse).

    >>> q = torch.ones(1, 4, 5, 8, requires_grad=True)
    >>> heed.torch.attention(q, q, q, causal=True, window=(2, 0)).sum().backward()
    >>> q.grad.shape
    torch.Size([1, 4, 5, 8])
    """
    q, k, v = map(_torch_tensors.waited, (q, k, v))
    if has_torch_function_variadic(q, k, v):
        return handle_torch_function(attention, (q, k, v), q, k, v, layout=layout, return_lse=return_lse, **options)
    found = _torch_operators.with_seed(_torch_operators.options_of(options))
    qkv = [tensor if isinstance(tensor, torch.Tensor) else as_tensor(name, tensor) for name, tensor in zip("qkv", (q, k, v), strict=True)]
    _torch_tensors.check_kinds(dict(zip("qkv", qkv, strict=True)))
    axes = _torch_refusals.common_axes(dict(zip("qkv", qkv, strict=True)))
    if layout not in ("bhsd", "bshd"):
        raise heed.Error(f'layout: "{layout}" is none of "bhsd", "bshd"')
    if layout == "bshd" and axes > 2:
        qkv = [tensor.transpose(-3, -2) for tensor in qkv]
    if axes == 4:
        out, lse = _torch_operators.attend(*qkv, found)
    else:
        first = (0,) * (4 - axes)
        out, lse = (x[first] for x in _torch_operators.attend(*(tensor[(None,) * (4 - axes)] for tensor in qkv), found))
    if layout == "bshd" and axes > 2:
        out = out.transpose(-3, -2)
    return (out, lse) if return_lse else out


def varlen_attn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: Any = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    num_splits: int | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`torch.nn.attention.varlen.varlen_attn`, argument for argument, on the CPU too and in float32 too, gradients included.

    query is (all queries, heads, dim), key and value (all keys, kv_heads, dim); sequence n has rows cu_seq_q[n] to cu_seq_q[n + 1].
    window_size is (left, right) around a query's own position, counted from the last query and the last key; -1 is no limit, and
    (-1, 0) is causal. The keys that seqused_k and block_table name are copied once. max_q, max_k and num_splits change nothing: heed
    needs no bound, and a sequence's bits do not depend on the others. Returns out (all queries, heads, dim), or with return_aux.lse
    (out, lse), lse (heads, all queries).

    >>> q, starts = torch.ones(5, 4, 8), torch.tensor([0, 2, 5])
    >>> heed.torch.varlen_attn(q, q, q, starts, starts, 3, 3, window_size=(-1, 0)).shape
    torch.Size([5, 4, 8])
    """
    heads, kv_heads = query.shape[1], key.shape[-2]
    if not enable_gqa and heads != kv_heads:
        raise heed.Error(f"key.heads: {kv_heads} is not query.heads: {heads}; say enable_gqa=True where heads share keys")
    if seqused_k is not None or block_table is not None:
        key, value, cu_seq_k = _used_keys(key, value, cu_seq_k, seqused_k, block_table)
    window = tuple(None if reach == -1 else reach for reach in window_size)
    options: dict[str, Any] = {"query_starts": cu_seq_q, "key_starts": cu_seq_k, "scale": scale}
    if window == (None, 0):
        options["causal"] = "ends"
    elif window != (None, None):
        options["window"] = (*window, "ends")
    out, lse = attention(query, key, value, layout="bshd", return_lse=True, **options)
    return (out, lse) if return_aux is not None and return_aux.lse else out


def _used_keys(
    key: torch.Tensor,
    value: torch.Tensor,
    starts: torch.Tensor | None,
    used: torch.Tensor | None,
    pages: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The first used[n] keys and values of every sequence n, one after the other, and where each begins."""
    if used is None:
        raise heed.Error("seqused_k: None, but block_table is given; it says how many keys of its pages a sequence has")
    if starts is None and pages is None:
        raise heed.Error("cu_seq_k: None, but block_table is not given; one of them says where a sequence's keys are")
    counts = used.tolist()
    if pages is None:
        first = starts.tolist()
        rows = [torch.arange(first[n], first[n] + count) for n, count in enumerate(counts)]
    else:
        size = key.shape[1]
        places = torch.arange(size, device=pages.device)
        rows = [(table[: -(-count // size), None] * size + places).flatten()[:count] for table, count in zip(pages, counts, strict=True)]
        key, value = key.flatten(0, 1), value.flatten(0, 1)
    chosen = torch.cat(rows).to(key.device, torch.int64) if rows else torch.zeros(0, dtype=torch.int64)
    return key[chosen], value[chosen], torch.tensor([0, *itertools.accumulate(counts)])
