# SPDX-License-Identifier: Apache-2.0
"""torch.nn.MultiheadAttention against heed.AttentionLayer with its state dict.

The judge is the module in float64; the error may be at most twice that of the module in float32, plus a few
roundings. True means "ignore" in both of torch's masks: attn_mask goes to hide, the padding becomes
keep.
"""

import dataclasses
import itertools
import math

import pytest
import torch

import heed

MODEL, HEADS, BATCH = 24, 4, 3
WIDTHS = {"one_width": (None, None), "kdim_and_vdim": (20, 28)}
LENGTHS = {"self": (7, 7), "longer_context": (5, 9), "one_query": (1, 6)}
MASKS = (
    "none",
    "bool",
    "float",
    "per_head",
    "padding",
    "float_padding",
    "bool_and_padding",
    "float_and_padding",
)


@dataclasses.dataclass
class Masks:
    """One choice of masks in torch's words and in heed's, and which (batch, head, query) sees a key."""

    torch: dict
    heed: dict
    seen: torch.Tensor


def draw_masks(kind, queries, keys, generator):
    """Some rows see no key: torch knows no rule for them, heed does."""

    def coin(*shape, probability=0.4):
        return torch.rand(shape, generator=generator) < probability

    def additive(hidden):
        return torch.randn(hidden.shape, generator=generator).masked_fill(hidden, -math.inf)

    in_torch, in_heed, hidden = {}, {}, torch.zeros(BATCH, HEADS, queries, keys, dtype=torch.bool)
    if kind.startswith(("bool", "float_and")) or kind in ("float", "per_head"):
        shape = (BATCH, HEADS, queries, keys) if kind == "per_head" else (queries, keys)
        attn = coin(*shape)
        hidden = hidden | attn
        if kind.startswith("float"):
            attn = additive(attn)
        in_torch["attn_mask"] = attn.flatten(0, 1) if kind == "per_head" else attn
        in_heed["bias" if attn.is_floating_point() else "hide"] = attn
    if kind.endswith("padding"):
        padding = torch.arange(keys) >= torch.tensor([[keys], [keys - 2], [2]])
        hidden = hidden | padding[:, None, None]
        if kind == "float_padding":
            padding = additive(padding)
            in_heed["bias"] = padding[:, None, None]
        else:
            in_heed["keep"] = ~padding[:, None, None]
            if kind == "float_and_padding":  # torch wants both of one type
                padding = torch.zeros(padding.shape).masked_fill(padding, -math.inf)
        in_torch["key_padding_mask"] = padding
    return Masks(in_torch, in_heed, ~hidden.all(-1))


def torch_answer(module, inputs, masks, weights, dtype):
    """(out, weights) of the module in that dtype, rows without a visible key corrected.

    With need_weights=True the module makes NaN of it (pytorch/pytorch#41508, #160064): out is taken from the
    other path, which knows zeros, and the weights of the row are compared with zeros.
    """
    module = module.to(dtype)
    options = {n: m.to(dtype) if m.is_floating_point() else m for n, m in masks.torch.items()}
    inputs = [x.to(dtype) for x in inputs]
    out, _ = module(*inputs, need_weights=False, **options)
    if weights is None:
        return out, None
    _, per_head = module(*inputs, need_weights=True, average_attn_weights=False, **options)
    per_head = torch.where(masks.seen[..., None], per_head, 0.0)
    return out, per_head if weights == "per_head" else per_head.mean(1)


def heed_answer(module, inputs, masks, weights):
    layer = heed.AttentionLayer(
        MODEL, HEADS, key_dim=module.kdim, value_dim=module.vdim, bias=module.in_proj_bias is not None
    )
    layer.load(module.state_dict())
    if not module.batch_first:
        inputs = [x.transpose(0, 1) for x in inputs]
    found = layer(
        *inputs, return_weights={None: False, "per_head": True, "average": "average"}[weights], **masks.heed
    )
    out, found_weights = (found, None) if weights is None else found
    return out if module.batch_first else out.transpose(0, 1), found_weights


def disagreements(module, inputs, masks, weights):
    """How many numbers of out and of weights are beyond the limit."""
    found = heed_answer(module.float(), inputs, masks, weights)
    exact = torch_answer(module, inputs, masks, weights, torch.float64)
    eager = torch_answer(module, inputs, masks, weights, torch.float32)
    count = 0
    for ours, truth, theirs in zip(found, exact, eager, strict=True):
        if truth is not None:
            assert ours.shape == truth.shape and ours.dtype == torch.float32
            floor = 4 * torch.finfo(torch.float32).eps * truth.abs().amax()
            limit = 2 * (theirs.double() - truth).abs().amax() + floor
            count += int((~((ours.double() - truth).abs() <= limit)).sum())
    return count


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "length_first"])
@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no_biases"])
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("mask", MASKS)
def test_the_layer_agrees_with_the_module_it_was_loaded_from(mask, widths, bias, batch_first):
    kdim, vdim = WIDTHS[widths]
    generator = torch.Generator().manual_seed(MASKS.index(mask))
    module = torch.nn.MultiheadAttention(
        MODEL, HEADS, bias=bias, kdim=kdim, vdim=vdim, batch_first=batch_first
    )
    with torch.no_grad():
        for parameter in module.parameters():  # the module starts with biases of zero
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    failures = []
    for (name, (queries, keys)), weights in itertools.product(LENGTHS.items(), (None, "average", "per_head")):
        shapes = ((queries, MODEL), (keys, module.kdim), (keys, module.vdim))
        inputs = [torch.randn(BATCH, *shape, generator=generator) for shape in shapes]
        if name == "self" and kdim is None:
            inputs = inputs[:1] * 3
        if not batch_first:
            inputs = [x.transpose(0, 1).contiguous() for x in inputs]
        masks = draw_masks(mask, queries, keys, generator)
        with torch.no_grad():
            wrong = disagreements(module, inputs, masks, weights)
        if wrong:
            failures.append(f"{name}, weights {weights}: {wrong} numbers")
    assert not failures, "\n".join(failures)


def test_the_masks_leave_some_rows_without_a_key_and_most_with_one():
    generator = torch.Generator().manual_seed(0)
    seen = torch.cat([draw_masks(kind, 7, 7, generator).seen.flatten() for kind in MASKS for _ in range(20)])
    assert 0 < (~seen).sum() < seen.sum()


def test_an_input_without_a_batch_axis_needs_none():
    module = torch.nn.MultiheadAttention(MODEL, HEADS)
    layer = heed.AttentionLayer(MODEL, HEADS, bias=True)
    layer.load(module.state_dict())
    x = torch.randn(6, MODEL, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        out, weights = layer(x, return_weights="average")
        wanted_out, wanted_weights = module.double()(*[x.double()] * 3)
    assert out.shape == wanted_out.shape and weights.shape == wanted_weights.shape
    assert (
        int(((out - wanted_out).abs() > 1e-6).sum()) + int(((weights - wanted_weights).abs() > 1e-6).sum())
        == 0
    )
