# SPDX-License-Identifier: Apache-2.0
"""Gradients of random calls of heed.torch's drop-in, judged by PyTorch in float64. `--seed N` runs one.

torch_calls.py has the rule. The floor is element by element: float32 scores and a float32 log-sum-exp, out as it was saved,
and one rounding of the gradient.
"""

import math
import sys

import torch
import torch_calls

import heed.torch


def leaves(call, dtype=None):
    """(q, k, v, mask) that require gradients, the mask only where it is additive."""
    tensors = []
    for tensor in (call.q, call.k, call.v, call.options.get("attn_mask")):
        if tensor is not None and tensor.is_floating_point():
            tensor = (tensor.to(dtype) if dtype else tensor).detach().requires_grad_()
        tensors.append(tensor)
    return tensors


def floors(call, out_gradient):
    """For q, k, v and an additive mask, element by element: what the roundings of the rule above may cost."""
    q, k, v, mask = exact = leaves(call, torch.float64)
    with torch.no_grad():
        weights = torch_calls.weights_of(call, q, k, mask)
        scores = torch.where(call.seen(), torch_calls.scores_of(call, q, k, mask), 0.0)
        largest = scores.abs().amax().item() if scores.numel() else 0.0
        of_out = out_gradient.double().abs()
        values = call.repeated(v).abs()
        # |dS| <= w (|dO| |v| + |dO| |out|), each with the error of its weight and of what was saved.
        of_scores = weights * (of_out @ values.mT + (of_out * (weights @ values)).sum(-1, keepdim=True))
    of_weight = 4 * torch.finfo(torch.float32).eps * (largest + 1)
    saved = 0.0 if call.q.dtype == torch.float32 else torch.finfo(call.q.dtype).eps
    # A sum whose derivatives by q, k, v and the mask are the sums of those magnitudes, broadcast as theirs are.
    queries, keys, values = q.abs(), call.repeated(k).abs(), call.repeated(v).abs()
    cost = ((of_weight + saved) * of_scores * abs(call.scale) * (queries @ keys.mT)).sum()
    cost = cost + (of_weight * (weights @ values) * of_out).sum()
    if mask is not None and mask.requires_grad:
        cost = cost + ((of_weight + saved) * of_scores * torch.where(mask > -math.inf, mask, 0.0)).sum()
    return [x.abs() for x in gradients(cost, exact, torch.ones(()))]


def gradients(out, tensors, out_gradient):
    wanted = [t for t in tensors if t is not None and t.requires_grad]
    return torch.autograd.grad(out, wanted, out_gradient.to(out.dtype), allow_unused=True, materialize_grads=True)


def disagreement(call):
    """None, or a sentence: which gradient breaks the rule."""
    exact, stepped, ours = leaves(call, torch.float64), leaves(call), leaves(call)
    out = torch_calls.textbook(call, *exact)
    out_gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(call.q.dtype)
    truths = gradients(out, exact, out_gradient)
    eager = gradients(torch_calls.textbook(call, *stepped), stepped, out_gradient)
    options = {name: option for name, option in call.options.items() if name != "attn_mask"}
    found = gradients(
        heed.torch.scaled_dot_product_attention(*ours[:3], attn_mask=ours[3], **options), ours, out_gradient
    )
    rounding = torch.finfo(call.q.dtype).eps
    names = ("q", "k", "v", "mask")
    for name, truth, step, mine, least in zip(names, truths, eager, found, floors(call, out_gradient), strict=False):
        if mine.shape != truth.shape or mine.dtype != call.q.dtype:
            return f"{name}: {tuple(mine.shape)} {mine.dtype} instead of {tuple(truth.shape)} {call.q.dtype}"
        if truth.numel() == 0:
            continue
        limit = 2 * (step.double() - truth).abs().amax() + rounding * truth.abs() + least
        errors = (mine.double() - truth).abs()
        wrong = ~(errors <= limit)  # a NaN is wrong
        if wrong.any():
            largest = errors[wrong].amax().item()
            return f"{name}: {int(wrong.sum())} of {truth.numel()} numbers beyond; an error of {largest:.3g}"
    return None


if __name__ == "__main__":
    sys.exit(torch_calls.judge_one(__doc__, disagreement))
