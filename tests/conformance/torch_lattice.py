# SPDX-License-Identifier: Apache-2.0
"""Random calls of scaled_dot_product_attention, judged by PyTorch in float64. `--seed N` runs one.

torch_calls.py has the rule. The floor is one rounding of the output, and float32 arithmetic before it.
"""

import sys

import ml_dtypes
import torch
import torch.nn.functional as F
import torch_calls
from torch.nn.attention import SDPBackend, sdpa_kernel

import heed


def judged(call):
    """PyTorch's answer in float64.

    By its MATH backend: with is_causal and a scale of 0 or less the CPU flash kernel of 2.13.0 returns NaN.
    A query that sees no key has the answer 0 whatever PyTorch says: for years it said NaN, and in some paths
    it still does (pytorch/pytorch#103963, #41508).
    """
    q, k, v = (x.double() for x in (call.q, call.k, call.v))
    options = dict(call.options)
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype != torch.bool:
        options["attn_mask"] = mask.double()
    with sdpa_kernel(SDPBackend.MATH):
        out = F.scaled_dot_product_attention(q, k, v, **options)
    return torch.where(call.seen_rows(), out, 0.0)


def floor(call):
    """What one rounding of the output and float32 scores may cost: a weight moves by its score's error."""
    largest_value = call.v.abs().amax().item() if call.v.numel() else 0.0
    longest = [x.double().norm(dim=-1).amax().item() if x.numel() else 0.0 for x in (call.q, call.k)]
    largest_score = abs(call.scale) * longest[0] * longest[1]
    return largest_value * (torch.finfo(call.q.dtype).eps + torch.finfo(torch.float32).eps * largest_score)


def to_numpy(tensor):
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def heeds_answer(call):
    """heed's output as a tensor; the array's kind is checked on the way."""
    if call.array_kind == "torch":
        out = heed.scaled_dot_product_attention(call.q, call.k, call.v, **call.options)
        assert isinstance(out, torch.Tensor), f"torch in, {type(out).__name__} out"
        return out
    arrays = [to_numpy(x) for x in (call.q, call.k, call.v)]
    options = {n: to_numpy(o) if isinstance(o, torch.Tensor) else o for n, o in call.options.items()}
    out = heed.scaled_dot_product_attention(*arrays, **options)
    assert (
        type(out) is type(arrays[0]) and out.dtype == arrays[0].dtype
    ), f"numpy in, {type(out).__name__} out"
    if out.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(out.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(out)


def disagreement(call):
    """None, or a sentence: how many numbers of the output break the rule."""
    truth, ours = judged(call), heeds_answer(call)
    if ours.shape != truth.shape or ours.dtype != call.q.dtype:
        return f"{tuple(ours.shape)} {ours.dtype} instead of {tuple(truth.shape)} {call.q.dtype}"
    eager = torch_calls.textbook(call, call.q, call.k, call.v, call.options.get("attn_mask"))
    eager_errors = (eager.double() - truth).abs()
    limit = 2 * (eager_errors.amax().item() if truth.numel() else 0.0) + floor(call)
    errors = (ours.double() - truth).abs()
    wrong = int((~(errors <= limit)).sum())  # a NaN is wrong
    if wrong == 0:
        return None
    return f"{wrong} of {truth.numel()} numbers beyond {limit:.3g}; largest error {errors.amax().item():.3g}"


if __name__ == "__main__":
    sys.exit(torch_calls.judge_one(__doc__, disagreement))
