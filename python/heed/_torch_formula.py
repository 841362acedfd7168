# SPDX-License-Identifier: Apache-2.0
"""Attention as the textbook writes it, in PyTorch's own operations: for whoever cannot be handed an operator of heed.

An ONNX model is made of it, and it is how gradients of weights that were returned are computed. All (queries, keys) numbers are in
memory at once. A number that is hidden is multiplied by 0: NaN or infinity in it does reach a result of an ONNX model.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

import heed
from heed import _torch_tensors

if TYPE_CHECKING:
    from heed._torch_operators import Options

__all__ = ["Tables", "attention", "attention_backward", "computed_in", "counted", "table", "weights_backward"]


def computed_in(q: Tensor) -> torch.dtype:
    """Of the numbers on the way to a result, and of a log-sum-exp."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def attention(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """(out, lse) of (batch, heads, length, dim)."""
    weights, lse = _softmax(_scores(q, k, options, "biased"), options)
    return (weights @ _for_each_head(v, q.shape[1], options).to(computed_in(q))).to(q.dtype), lse


def table(q: Tensor, k: Tensor, options: Options, stage: str) -> Tensor:
    """The weights, or the scores at a stage."""
    if stage != "weights":
        return _scores(q, k, options, stage).to(q.dtype)
    return _softmax(_scores(q, k, options, "biased"), options)[0].to(q.dtype)


class Tables(NamedTuple):
    """What gradients are made of: (batch, heads, queries, keys) but for the last."""

    weights: Tensor
    undropped: Tensor  # weights before dropout
    capped: Tensor | None  # scores after the softcap, where there is one
    of_sink: Tensor | None  # (batch, heads, queries): the sink's weight, where there is one


def attention_backward(
    by: tuple[Tensor | None, Tensor | None], qkv: tuple[Tensor, Tensor, Tensor], tables: Tables, options: Options
) -> dict[str, Tensor]:
    """The gradients of a loss by q, k, v, bias and sink from those by out and by the log-sum-exp."""
    q, k, v = qkv
    out_gradient, lse_gradient = by
    if out_gradient is None:
        return weights_backward(torch.zeros_like(tables.weights), lse_gradient, (q, k), tables, options)
    wide = computed_in(q)
    by_out = out_gradient.to(wide)
    found = weights_backward(by_out @ _for_each_head(v, q.shape[1], options).to(wide).mT, lse_gradient, (q, k), tables, options)
    found["v"] = _sum_over_heads(_product(tables.weights.to(wide).mT, by_out, tables.undropped.mT), v.shape[1], options).to(v.dtype)
    return found


def weights_backward(
    gradient: Tensor, lse_gradient: Tensor | None, qk: tuple[Tensor, Tensor], tables: Tables, options: Options
) -> dict[str, Tensor]:
    """The gradients of a loss by q, k, bias and sink from that by the weights that were returned, and by the log-sum-exp."""
    q, k = qk
    weights, undropped, capped, of_sink = tables
    heads, kv_heads = q.shape[1], k.shape[1]
    wide = computed_in(q)
    # 0 where a key is not seen, whose value may be no number (G6).
    by_weights, p = gradient.to(wide).masked_fill(undropped == 0, 0.0), undropped.to(wide)
    if options.dropout > 0.0:
        by_weights = by_weights * (weights != 0) / (1.0 - options.dropout)
    inner = (by_weights * p).sum(-1, keepdim=True)
    if lse_gradient is not None:
        inner = inner - lse_gradient.to(wide).unsqueeze(-1)
    by_scores = (p * (by_weights - inner)).masked_fill(undropped == 0, 0.0)
    found = {}
    if options.bias is not None:
        bias = options.bias
        found["bias"] = by_scores.sum_to_size(*(1,) * (4 - bias.ndim), *bias.shape).reshape(bias.shape).to(bias.dtype)
    if options.sink is not None:
        by_sink = (-of_sink.to(wide) * inner[..., 0]).sum(2)
        found["sink"] = by_sink.sum_to_size(*(1,) * (2 - options.sink.ndim), *options.sink.shape).reshape(options.sink.shape)
        found["sink"] = found["sink"].to(options.sink.dtype)
    if capped is not None:
        by_scores = by_scores * (1.0 - (capped.to(wide) / options.softcap) ** 2).masked_fill(undropped == 0, 0.0)
    scaled = by_scores * _scale(q, options)
    found["q"] = _product(scaled, _for_each_head(k, heads, options).to(wide), undropped).to(q.dtype)
    found["k"] = _sum_over_heads(_product(scaled.mT, q.to(wide), undropped.mT), kv_heads, options).to(k.dtype)
    return found


def _product(of: Tensor, x: Tensor, weights: Tensor) -> Tensor:
    """of @ x, to which what is no number in x comes only where a weight is not 0: 0 times NaN is NaN (G6)."""
    is_none = ~torch.isfinite(x)
    if x.device.type == "cpu" and _torch_tensors.is_unwatched((x,)) and not is_none.any():  # a GPU would have to wait for the answer
        return of @ x
    seen = (weights != 0).to(x.dtype) @ is_none.to(x.dtype)
    return (of @ x.masked_fill(is_none, 0.0)).masked_fill(seen > 0, torch.nan)


def _sum_over_heads(by_each: Tensor, kv_heads: int, options: Options) -> Tensor:
    """What every query head gives to its KV head, (batch, heads, keys, dim), summed."""
    batch, heads, *rest = by_each.shape
    if options.head_map == "interleaved":
        return by_each.reshape(batch, kv_heads, heads // kv_heads, *rest).sum(2)
    return by_each.reshape(batch, heads // kv_heads, kv_heads, *rest).sum(1)


def _scale(q: Tensor, options: Options) -> float:
    return q.shape[3] ** -0.5 if options.scale is None else options.scale


def _for_each_head(x: Tensor, heads: int, options: Options) -> Tensor:
    """Keys or values, once for every query head."""
    times = heads // x.shape[1]
    return x.repeat_interleave(times, 1) if options.head_map == "interleaved" else x.repeat(1, times, 1, 1)


def _scores(q: Tensor, k: Tensor, options: Options, stage: str) -> Tensor:
    wide = computed_in(q)
    _check_places(q, k, options)
    scores = (q.to(wide) * _scale(q, options)) @ _for_each_head(k, q.shape[1], options).to(wide).transpose(2, 3)
    if stage == "raw":
        return scores
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    if stage == "softcapped":
        return scores
    if options.bias is not None:
        scores = scores + options.bias.to(wide)
    if options.alibi is not None:
        query, key = _places(q, k, options.alibi_align or _said_align(options))
        slopes = options.alibi.float()
        slopes = slopes[..., None, None] if slopes.ndim == 2 else slopes[:, None, None]
        scores = scores - slopes * (query - key).abs()
    seen = _seen(q, k, options)
    return scores if seen is None else scores.masked_fill(~seen, -torch.inf)


def _softmax(scores: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """(weights, lse). A query that sees no key has weights of 0."""
    if options.dropout > 0.0:
        raise heed.Error("dropout: an ONNX model has none of heed's; call model.eval() before it is exported")
    logits = scores
    if options.sink is not None:
        sink = options.sink.to(scores.dtype)
        sink = (sink if sink.ndim == 2 else sink[None])[:, :, None, None]
        logits = torch.cat([scores, sink.expand(*scores.shape[:3], 1)], -1)
    most = logits.amax(-1, keepdim=True)
    most = most.masked_fill(most == -torch.inf, 0.0)
    exponentials = torch.exp(logits - most)
    total = exponentials.sum(-1, keepdim=True)
    of_keys = exponentials if options.sink is None else exponentials[..., :-1]
    weights = of_keys / total.masked_fill(total == 0, 1.0)
    return weights, (torch.log(total) + most)[..., 0]


def _said_align(options: Options) -> str:
    return "ends" if options.causal == "ends" else "starts"


def _check_places(q: Tensor, k: Tensor, options: Options) -> None:
    """A place that nobody has said is one place only where queries and keys are as many."""
    is_said = options.causal in ("starts", "ends")
    unsaid = {
        "causal": options.causal == "equal",
        "window": options.window is not None and not (is_said or options.window_align),
        "document": options.document is not None and options.query_document is None and not (is_said or options.document_align),
        "alibi": options.alibi is not None and not (is_said or options.alibi_align),
    }
    for name in (name for name, is_unsaid in unsaid.items() if is_unsaid):
        with warnings.catch_warnings():  # a trace does not hold for others, whose lengths differ
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            if q.shape[2] != k.shape[2]:
                raise heed.Error(f'{name}: {int(q.shape[2])} queries, {int(k.shape[2])} keys; say "starts" or "ends"')


def _places(q: Tensor, k: Tensor, align: str) -> tuple[Tensor, Tensor]:
    """The positions of queries, (queries, 1), and of keys, (1, keys)."""
    query, key = counted(q), counted(k)
    first = key[-1:] - query[-1:] if align == "ends" else 0
    return (query + first)[:, None], key[None, :]


def counted(x: Tensor) -> Tensor:
    """0, 1, 2, ... for as many tokens as (batch, heads, length, dim) has; out of its elements, so that no
    exporter makes a constant of the length."""
    column = x[0, 0, :, 0]
    return torch.logical_or(column == column, column != column).to(torch.int64).cumsum(0) - 1  # NaN counts, too


def _seen(q: Tensor, k: Tensor, options: Options) -> Tensor | None:
    """Which keys each query sees, broadcasting to (batch, heads, queries, keys); None: all."""
    for name in ("query_starts", "key_starts", "query_lengths", "tree"):
        if getattr(options, name) is not None:
            raise heed.Error(f"{name}: an ONNX model of heed's attention has none")
    parts = []
    if options.causal is not None:
        query, key = _places(q, k, _said_align(options))
        parts.append(key <= query)
    if options.window is not None:
        query, key = _places(q, k, options.window_align or _said_align(options))
        before, after = (min(reach, 2**62) for reach in options.window)
        left = key >= query - before
        parts.append((left | (key < options.front) if options.front else left) & (key <= query + after))
    if options.key_lengths is not None:
        key = counted(k)
        parts.append((key < options.key_lengths.to(q.device)[:, None])[:, None, None, :])
    if options.document is not None:
        parts.append(_same_document(q, k, options))
    if options.keep is not None:
        parts.append(options.keep)
    if options.hide is not None:
        parts.append(~options.hide)
    seen = None
    for part in parts:
        seen = part if seen is None else seen & part
    return seen


def _same_document(q: Tensor, k: Tensor, options: Options) -> Tensor:
    of_keys = options.document.to(q.device)
    if options.query_document is not None:
        same = options.query_document.to(q.device)[..., :, None] == of_keys[..., None, :]
    else:
        query, key = _places(q, k, options.document_align or _said_align(options))
        at = query.clamp(min=0).minimum(key[:, -1:])  # a query that stands at no key is of no document
        same = (of_keys[..., at[:, 0], None] == of_keys[..., None, :]) & (at == query)
    return same[:, None] if same.ndim == 3 else same
