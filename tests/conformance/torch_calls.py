# SPDX-License-Identifier: Apache-2.0
"""Random calls of scaled_dot_product_attention, and the textbook's steps for each.

torch_lattice.py and torch_gradients.py hold heed's results and gradients of them against PyTorch in float64, both by
FlashAttention's rule: the error may be at most twice that of the textbook's steps in the call's own dtype. Where those happen
to be exact a small floor takes over.
"""

import argparse
import dataclasses
import math
import random

import torch

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

    @property
    def scale(self):
        scale = self.options["scale"]
        return 1 / math.sqrt(self.q.shape[-1]) if scale is None else scale

    def seen(self):
        """Which query sees which key, broadcastable to (..., queries, keys)."""
        seen = torch.ones(self.q.shape[-2], self.k.shape[-2], dtype=torch.bool)
        if self.options.get("is_causal"):
            seen = seen.tril()
        mask = self.options.get("attn_mask")
        if mask is not None:
            seen = seen & (mask if mask.dtype == torch.bool else mask > -math.inf)
        return seen

    def seen_rows(self):
        """Which queries see a key, broadcastable to the output: (..., queries, 1)."""
        return self.seen().any(-1, keepdim=True)

    def repeated(self, x):
        """Keys or values, one head for every head of queries."""
        return x.repeat_interleave(self.q.shape[-3] // x.shape[-3], -3) if self.options.get("enable_gqa") else x

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


def scores_of(call, q, k, mask):
    """In the dtype of q, without regard to who sees what."""
    scores = q @ call.repeated(k).mT * call.scale
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + torch.where(mask > -math.inf, mask, 0.0)
    return scores


def weights_of(call, q, k, mask):
    """The softmax in the dtype of q: zeros where a key is not seen, and where a query sees none."""
    seen = call.seen()
    scores = scores_of(call, q, k, mask).masked_fill(~seen, -math.inf)
    scores = torch.where(call.seen_rows(), scores, 0.0)
    return torch.where(seen, torch.softmax(scores, -1), 0.0)


def textbook(call, q, k, v, mask):
    """The steps of eager attention, each rounded to the dtype of q."""
    return weights_of(call, q, k, mask) @ call.repeated(v)


def failures(script, disagreement, seeds):
    """A line for every call of which the judge says something: how to run it alone, and what was said."""
    found = ((seed, disagreement(random_call(seed))) for seed in seeds)
    return [f"python tests/conformance/{script}.py --seed {seed}  # {said}" for seed, said in found if said]


def judge_one(description, disagreement):
    """The command line of a judge: --seed N; its status is 1 where that call is wrong."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    call = random_call(parser.parse_args().seed)
    print(call.describe())
    found = disagreement(call)
    print(found or "agrees")
    return 1 if found else 0
