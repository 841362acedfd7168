# SPDX-License-Identifier: Apache-2.0
"""q, k and v of one x by three plain projections, whose gradients take fewer products than those of three modules.

The gradient by x is added up by the products themselves. The gradients by the weights are one product where those by q, k and v lie
side by side, as heed's attention leaves them when it is asked to: three small ones each leave most of a GPU idle. Which products there
are depends on the layer and the gradients that are wanted, never on who listens: the sums are the same under a profiler or a mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.nn import functional

__all__ = ["Projections", "side_by_side"]


def side_by_side(widths: Sequence[int], like: Tensor) -> list[Tensor]:
    """Empty (batch, tokens, width) for each width, the columns of one matrix; `like` is (batch, tokens, anything)."""
    joined = like.new_empty(*like.shape[:2], sum(widths))
    return list(joined.split(list(widths), -1))


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The matrix whose columns these are, one beside the other: where they lie so already, it is no copy."""
    first, width = parts[0], sum(part.shape[-1] for part in parts)
    at = first.storage_offset()
    # Whoever differentiates this, or has many gradients in one tensor, must see where the columns come from.
    are_plain = all(type(part) is Tensor and not _functorch.is_legacy_batchedtensor(part) for part in parts)
    if torch.is_grad_enabled() or not are_plain or first.stride(-1) != 1 or first.stride(0) < width:
        return torch.cat(list(parts), -1)
    for part in parts:
        is_next = part.storage_offset() == at and part.stride() == first.stride()
        if not is_next or part.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return torch.cat(list(parts), -1)
        at += part.shape[-1]
    return first.as_strided((len(first), width), first.stride())


class Projections(torch.autograd.Function):
    """(x, weights of q, k and v, biases or None) to their three products, (batch, tokens, width) each.

    are_joined: their gradients come side by side.
    """

    @staticmethod
    def forward(ctx: Any, are_joined: bool, x: Tensor, *of: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = of[:3], of[3:]
        ctx.save_for_backward(x, *weights)
        ctx.are_joined = are_joined
        return tuple(functional.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        of_x, of_weights, of_biases = ctx.needs_input_grad[1], ctx.needs_input_grad[2:5], ctx.needs_input_grad[5:]
        # Not flatten(), of which many gradients at once (is_grads_batched) know nothing.
        by = [gradient.reshape(-1, gradient.shape[-1]) for gradient in gradients]
        joined = _joined(by) if ctx.are_joined and (all(of_weights) or all(of_biases)) else None
        rows = x.reshape(-1, x.shape[-1])
        by_x = _product_sum(by, weights).view(x.shape) if of_x else None
        by_weights = _of_each(by, joined, of_weights, lambda gradient: gradient.t() @ rows)
        by_biases = _of_each(by, joined, of_biases, lambda gradient: gradient.sum(0))
        return None, by_x, *by_weights, *by_biases


def _product_sum(by: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    total = by[0] @ weights[0]
    for gradient, weight in zip(by[1:], weights[1:], strict=True):
        total = torch.addmm(total, gradient, weight)
    return total


def _of_each(
    by: Sequence[Tensor], joined: Tensor | None, wanted: Sequence[bool], made_of: Callable[[Tensor], Tensor]
) -> list[Tensor | None]:
    """made_of() each of the gradients that is wanted: of all at once where they are one matrix, and cut after that."""
    if joined is not None and all(wanted):
        return list(made_of(joined).split([gradient.shape[-1] for gradient in by]))
    return [made_of(gradient) if is_wanted else None for gradient, is_wanted in zip(by, wanted, strict=True)]
