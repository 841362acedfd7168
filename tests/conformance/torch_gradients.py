# SPDX-License-Identifier: Apache-2.0
"""Gradients of random calls of heed.torch's drop-in, judged by PyTorch in float64. `--seed N` runs one.

The calls are those of torch_lattice.py and so is the rule, FlashAttention's: the error of a gradient may be at most twice
that of the same computation done eagerly, step by step, in the call's own dtype. Where eager happens to be exact a floor takes
over, element by element: float32 scores and a float32 log-sum-exp, out as it was saved, and one rounding of the gradient.
"""

import argparse
import math
import sys

import torch
import torch_lattice

import heed.torch


def leaves(call, dtype=None):
    """(q, k, v, mask) that require gradients, the mask only where it is additive."""
    tensors = []
    for tensor in (call.q, call.k, call.v, call.options.get("attn_mask")):
        if tensor is not None and tensor.is_floating_point():
            tensor = (tensor.to(dtype) if dtype else tensor).detach().requires_grad_()
        tensors.append(tensor)
    return tensors


def weights_of(q, k, mask, call):
    """The softmax in the dtype of q, without a NaN where a query sees no key, and the largest score that is seen."""
    if call.options.get("enable_gqa"):
        group = q.shape[-3] // k.shape[-3]
        k = k.repeat_interleave(group, -3)
    scale = call.options["scale"]
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if call.options.get("is_causal"):
        seen = seen.tril()
    if mask is not None:
        seen = seen & (mask if mask.dtype == torch.bool else mask > -math.inf)
        if mask.dtype != torch.bool:
            scores = scores + torch.where(seen, mask, 0.0)
    scores = scores.masked_fill(~seen, -math.inf)
    scores = torch.where(seen.any(-1, keepdim=True), scores, 0.0)
    return torch.where(seen, torch.softmax(scores, -1), 0.0), torch.where(seen, scores, 0.0)


def repeated(v, call):
    return v.repeat_interleave(call.q.shape[-3] // v.shape[-3], -3) if call.options.get("enable_gqa") else v


def textbook(q, k, v, mask, call):
    """The steps of eager attention, in the dtype of q."""
    return weights_of(q, k, mask, call)[0] @ repeated(v, call)


def floors(call, out_gradient):
    """For q, k, v and an additive mask, element by element: what the roundings of the rule above may cost."""
    q, k, v, mask = exact = leaves(call, torch.float64)
    with torch.no_grad():
        weights, scores = weights_of(q, k, mask, call)
        largest = scores.abs().amax().item() if scores.numel() else 0.0
        of_out = out_gradient.double().abs()
        values = repeated(v, call).abs()
        # |dS| <= w (|dO| |v| + |dO| |out|), each with the error of its weight and of what was saved.
        of_scores = weights * (of_out @ values.mT + (of_out * (weights @ values)).sum(-1, keepdim=True))
    of_weight = 4 * torch.finfo(torch.float32).eps * (largest + 1)
    saved = 0.0 if call.q.dtype == torch.float32 else torch.finfo(call.q.dtype).eps
    scale = call.options["scale"]
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else abs(scale)
    # A sum whose derivatives by q, k, v and the mask are the sums of those magnitudes, broadcast as theirs are.
    queries, keys, values = q.abs(), repeated(k, call).abs(), repeated(v, call).abs()
    cost = ((of_weight + saved) * of_scores * scale * (queries @ keys.mT)).sum()
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
    out = textbook(*exact, call)
    out_gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(7)).to(call.q.dtype)
    truths = gradients(out, exact, out_gradient)
    eager = gradients(textbook(*stepped, call), stepped, out_gradient)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    call = torch_lattice.random_call(parser.parse_args().seed)
    print(call.describe())
    found = disagreement(call)
    print(found or "agrees")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
