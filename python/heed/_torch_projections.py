# SPDX-License-Identifier: Apache-2.0
"""q, k and v of one x by three plain projections, whose gradients take fewer products than those of three modules.

The gradient by x is added up by the products themselves. The gradients by the weights are one product where those by q, k and v lie
side by side, as heed's attention leaves them when it is asked to: three small ones each leave most of a GPU idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from heed import _torch_tensors

__all__ = ["Projections", "side_by_side"]


def side_by_side(widths: Sequence[int], like: Tensor) -> list[Tensor]:
    """Empty (batch, tokens, width) for each width, the columns of one matrix; `like` is (batch, tokens, anything)."""
    joined = like.new_empty(*like.shape[:2], sum(widths))
    return list(joined.split(list(widths), -1))


def _joined(parts: Sequence[Tensor]) -> Tensor | None:
    """The matrix whose columns these are, one beside the other; None where they are not."""
    first, width = parts[0], sum(part.shape[-1] for part in parts)
    at, memory = first.storage_offset(), first.untyped_storage().data_ptr()
    if first.stride(-1) != 1 or first.stride(0) < width:
        return None
    for part in parts:
        if part.untyped_storage().data_ptr() != memory or part.storage_offset() != at or part.stride() != first.stride():
            return None
        at += part.shape[-1]
    return first.as_strided((len(first), width), first.stride())


class Projections(torch.autograd.Function):
    """(x, weights of q, k and v, biases or None) to their three products, (batch, tokens, width) each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *of: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = of[:3], of[3:]
        ctx.save_for_backward(x, *weights)
        return tuple(functional.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        of_x, of_weights, of_biases = ctx.needs_input_grad[0], ctx.needs_input_grad[1:4], ctx.needs_input_grad[4:]
        by = [gradient.flatten(0, 1) for gradient in gradients]
        joined = None
        if _torch_tensors.is_unwatched((*by, x, *weights)):
            joined = _joined(by)
            by_x = _product_sum(by, weights).view_as(x) if of_x else None
        else:  # somebody asks for gradients of these, or for many at once
            by_x = sum(gradient @ weight for gradient, weight in zip(gradients, weights, strict=True)) if of_x else None
        rows = x.flatten(0, 1)
        by_weights = _of_each(by, joined, of_weights, lambda gradient: gradient.t() @ rows)
        by_biases = _of_each(by, joined, of_biases, lambda gradient: gradient.sum(0))
        return by_x, *by_weights, *by_biases


def _product_sum(by: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    total = by[0] @ weights[0]
    for gradient, weight in zip(by[1:], weights[1:], strict=True):
        total.addmm_(gradient, weight)
    return total


def _of_each(by: Sequence[Tensor], joined: Tensor | None, wanted: Sequence[bool], made_of: Any) -> list[Tensor | None]:
    """made_of() each of the gradients that is wanted: of all at once where they are one matrix, and cut after that."""
    if joined is not None and all(wanted):
        return list(made_of(joined).split([gradient.shape[-1] for gradient in by]))
    return [made_of(gradient) if is_wanted else None for gradient, is_wanted in zip(by, wanted, strict=True)]
