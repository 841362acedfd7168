# SPDX-License-Identifier: Apache-2.0
"""Random calls of scaled_dot_product_attention, judged by PyTorch in float64. `--seed N` runs one.

The rule is FlashAttention's: the error may be at most twice that of the same computation done eagerly, step
by step, in the call's own dtype. Where eager happens to be exact a small floor takes over: one rounding of
the output, and float32 arithmetic before it.
"""

import argparse
import dataclasses
import math
import random
import sys

import ml_dtypes
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import heed

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LENGTHS = (0, 1, 1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 65, 100, 130)
DIMS = (1, 2, 3, 4, 7, 8, 16, 20, 32, 33, 64, 80, 128)
LAYOUTS = ("packed", "heads_inside", "every_other_number", "rows_of_a_larger_array", "repeated")


@dataclasses.dataclass(frozen=True)
class Call:
    """One call: the tensors, the options, and in words what was drawn."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    options: dict
    array_kind: str
    features: frozenset

    def describe(self):
        options = {
            n: o if not isinstance(o, torch.Tensor) else tuple(o.shape) for n, o in self.options.items()
        }
        shapes = " ".join(
            f"{n}{tuple(x.shape)}" for n, x in zip("qkv", (self.q, self.k, self.v), strict=True)
        )
        return f"{shapes} {options} [{', '.join(sorted(self.features))}]"


class Draw:
    """The random choices of one seed."""

    def __init__(self, seed):
        self.choose = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.features = set()

    def one_of(self, *alternatives):
        return self.choose.choice(alternatives)

    def feature(self, *names):
        name = self.one_of(*names)
        self.features.add(name)
        return name

    def chance(self, probability):
        return self.choose.random() < probability

    def normal(self, shape):
        return torch.randn(shape, generator=self.generator, dtype=torch.float32)

    def tensor(self, shape, dtype, magnitude):
        """Normally distributed numbers in one of several memory layouts."""
        layout = self.feature(*LAYOUTS)
        if layout == "heads_inside" and len(shape) >= 3:
            swapped = (*shape[:-3], shape[-2], shape[-3], shape[-1])
            return (self.normal(swapped) * magnitude).to(dtype).transpose(-3, -2)
        if layout == "every_other_number":
            return (self.normal((*shape[:-1], 2 * shape[-1])) * magnitude).to(dtype)[..., ::2]
        if layout == "rows_of_a_larger_array":
            larger = (*shape[:-2], shape[-2] + 3, shape[-1] + 5)
            return (self.normal(larger) * magnitude).to(dtype)[..., 2 : shape[-2] + 2, 1 : shape[-1] + 1]
        if layout == "repeated" and len(shape) >= 3:
            return (self.normal((1, *shape[1:])) * magnitude).to(dtype).expand(shape)
        return (self.normal(shape) * magnitude).to(dtype)

    def mask(self, target, dtype):
        """A boolean or additive mask that broadcasts to the target; some rows may hide every key."""
        kind = self.feature("bool_mask", "float_mask")
        shape = [1 if self.chance(0.25) else extent for extent in target]
        shape = shape[self.choose.randrange(len(shape) - 1) :]  # at least (queries, keys)
        keep = torch.rand(shape, generator=self.generator) < self.one_of(0.1, 0.5, 0.9)
        if self.chance(0.3):
            keep &= torch.rand((*shape[:-1], 1), generator=self.generator) < 0.7
        if kind == "bool_mask":
            return keep
        return self.normal(shape).masked_fill(~keep, -math.inf).to(dtype)


def random_call(seed):
    """The call with that number."""
    draw = Draw(seed)
    dtype = draw.one_of(*DTYPES)
    draw.features.add(str(dtype).removeprefix("torch."))
    queries, keys = draw.one_of(*LENGTHS), draw.one_of(*LENGTHS)
    if draw.chance(0.3):
        keys = queries
    dim = draw.one_of(*DIMS)
    value_dim = draw.one_of(*DIMS) if draw.chance(0.3) else dim
    lead = draw.one_of((), (1,), (3,), (2, 2), (1, 4), (3, 1), (2, 1, 2))
    group = draw.one_of(1, 1, 2, 3) if lead else 1
    draw.features.add(f"rank_{len(lead) + 2}")
    draw.features.update({"gqa"} if group > 1 else {})
    q_lead = (*lead[:-1], lead[-1] * group) if lead else ()
    magnitude = draw.one_of(0.1, 1.0, 1.0, 4.0)
    options = {"scale": draw.one_of(None, None, 0.3, 1.0, 0.0, -0.5)}
    if group > 1:
        options["enable_gqa"] = True
    visibility = draw.feature("no_mask", "causal", "mask", "mask")
    if visibility == "causal":
        options["is_causal"] = True
    elif visibility == "mask":
        options["attn_mask"] = draw.mask((*q_lead, queries, keys), dtype)
    return Call(
        q=draw.tensor((*q_lead, queries, dim), dtype, magnitude),
        k=draw.tensor((*lead, keys, dim), dtype, magnitude),
        v=draw.tensor((*lead, keys, value_dim), dtype, 1.0),
        options=options,
        array_kind=draw.feature("torch", "torch", "numpy"),
        features=frozenset(draw.features),
    )


def seen_rows(call):
    """Which queries see a key, broadcastable to the output: (..., queries, 1)."""
    queries, keys = call.q.shape[-2], call.k.shape[-2]
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if call.options.get("is_causal"):
        seen = seen.tril()
    mask = call.options.get("attn_mask")
    if mask is not None:
        seen = seen & (mask if mask.dtype == torch.bool else mask > -math.inf)
    return seen.any(-1, keepdim=True)


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
    return torch.where(seen_rows(call), out, 0.0)


def eager(call):
    """The textbook's steps, each rounded to the call's dtype."""
    q, k, v = call.q, call.k, call.v
    if call.options.get("enable_gqa"):
        group = q.shape[-3] // k.shape[-3]
        k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    scale = call.options["scale"]
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if call.options.get("is_causal"):
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    mask = call.options.get("attn_mask")
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return torch.where(seen_rows(call), torch.softmax(scores, -1) @ v, 0.0)


def floor(call):
    """What one rounding of the output and float32 scores may cost: a weight moves by its score's error."""
    largest_value = call.v.abs().amax().item() if call.v.numel() else 0.0
    scale = call.options["scale"]
    scale = 1 / math.sqrt(call.q.shape[-1]) if scale is None else abs(scale)
    longest = [x.double().norm(dim=-1).amax().item() if x.numel() else 0.0 for x in (call.q, call.k)]
    largest_score = scale * longest[0] * longest[1]
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
    eager_errors = (eager(call).double() - truth).abs()
    limit = 2 * (eager_errors.amax().item() if truth.numel() else 0.0) + floor(call)
    errors = (ours.double() - truth).abs()
    wrong = int((~(errors <= limit)).sum())  # a NaN is wrong
    if wrong == 0:
        return None
    return f"{wrong} of {truth.numel()} numbers beyond {limit:.3g}; largest error {errors.amax().item():.3g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    call = random_call(parser.parse_args().seed)
    print(call.describe())
    found = disagreement(call)
    print(found or "agrees")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
