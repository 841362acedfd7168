# SPDX-License-Identifier: Apache-2.0
"""What heed says of arguments that do not fit where PyTorch records the call: what the same call says without gradients.

There the arguments have become those of the operator behind it, or of PyTorch's own, which know nothing of their names. The compiler
looks on while it traces, and is asked nothing.
"""

from __future__ import annotations

from typing import Any

import torch

import heed

__all__ = [
    "check_causal_bias",
    "check_drop_in",
    "check_layer_inputs",
    "check_layer_options",
    "check_positions",
    "check_probability",
    "check_tensors",
    "common_axes",
    "refuse_type_of_input",
]

_MOST_AXES = 16
# Options of attention that are none of a layer's call: it has its own, or knows no packed sequences.
_NOT_OF_A_LAYER = ("dropout", "head_map", "query_starts", "key_starts", "query_lengths", "sequences")


def check_drop_in(
    named: dict[str, torch.Tensor], mask: torch.Tensor | None, *, is_causal: bool, enable_gqa: bool
) -> None:
    """The arguments of scaled_dot_product_attention; `named` are query, key and value."""
    for name, flag in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        _check_flag(name, flag)
    for name, tensor in named.items():
        _check_axes(name, tensor, 2, _MOST_AXES)
        if tensor.dtype != named["query"].dtype:
            raise heed.KindError(f"{name}.dtype: {_word(tensor)} is not that of query: {_word(named['query'])}")
    rank = max(3, *(tensor.ndim for tensor in named.values()))
    shapes = {name: (1,) * (rank - tensor.ndim) + tuple(tensor.shape) for name, tensor in named.items()}
    extents = [_common_extent(shapes, axis) for axis in range(rank - 3)]
    heads = shapes["query"][-3] if enable_gqa else _common_extent(shapes, rank - 3)
    if enable_gqa and shapes["key"][-3] != shapes["value"][-3]:
        _check_heads(shapes)
    if mask is not None:
        _check_mask(mask, named["query"], [*extents, heads, shapes["query"][-2], shapes["key"][-2]])


def check_causal_bias(named: dict[str, torch.Tensor], bias: Any) -> None:
    """A `CausalBias` says how many queries and keys it is of. A trace of `torch.jit` has no numbers to compare."""
    if torch.jit.is_tracing() or min(named["query"].ndim, named["key"].ndim) < 2:
        return
    queries, keys = named["query"].shape[-2], named["key"].shape[-2]
    if (bias.seq_len_q, bias.seq_len_kv) != (queries, keys):
        raise _misfit(
            f"attn_mask: a CausalBias of {bias.seq_len_q} queries and {bias.seq_len_kv} keys, but query has {queries} and key {keys}"
        )


def check_tensors(named: dict[str, torch.Tensor], mask: torch.Tensor | None) -> None:
    for name, tensor in named.items() if mask is None else (named | {"attn_mask": mask}).items():
        if not isinstance(tensor, torch.Tensor):
            raise heed.KindError(f"{name}: {type(tensor).__name__} is not a torch.Tensor")


def check_probability(dropout_p: Any) -> None:
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, (int, float)):
        raise heed.KindError(f"dropout_p: {type(dropout_p).__name__} is not a number")


def common_axes(named: dict[str, torch.Tensor]) -> int:
    """How many axes q, k and v have: 2, 3 or 4, all the same."""
    for name, tensor in named.items():
        _check_axes(name, tensor, 2, 4)
    q = named["q"]
    for name, tensor in named.items():
        if tensor.ndim != q.ndim:
            raise _misfit(f"{name}.shape: {tuple(tensor.shape)} has not as many axes as q.shape: {tuple(q.shape)}")
    return q.ndim


def _misfit(sentence: str) -> heed.Error:
    error = heed.Error(sentence)
    error.code = "shape"
    return error


def _word(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_flag(name: str, flag: Any) -> None:
    if not isinstance(flag, bool):
        raise heed.KindError(f"{name}: {type(flag).__name__} is not True or False")


def _check_axes(name: str, tensor: torch.Tensor, least: int, most: int) -> None:
    if not least <= tensor.ndim <= most:
        raise _misfit(f"{name}.shape: {tuple(tensor.shape)} has {tensor.ndim} axes, outside [{least}, {most}]")


def _common_extent(shapes: dict[str, tuple[int, ...]], axis: int) -> int:
    """The extent that all agree on, 1 agreeing with everything."""
    common, whose = 1, ""
    for name, shape in shapes.items():
        if shape[axis] in (1, common):
            continue
        if whose:
            raise _misfit(f"{name}: extent {shape[axis]} does not broadcast with {common} of {whose}")
        common, whose = shape[axis], name
    return common


def _check_heads(shapes: dict[str, tuple[int, ...]]) -> None:
    heads = shapes["query"][-3]
    for name in ("key", "value"):
        own = shapes[name][-3]
        if own == 0 or heads % own != 0:
            raise _misfit(f"{name}.heads: {own} does not divide query.heads: {heads}")


def _check_mask(mask: torch.Tensor, query: torch.Tensor, scores: list[int]) -> None:
    if mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise heed.KindError(f"attn_mask.dtype: {_word(mask)} is neither boolean, nor float32, nor that of query: {_word(query)}")
    _check_axes("attn_mask", mask, 2, len(scores))
    axes = [""] * (len(scores) - 3) + [" heads", " queries", " keys"]
    for extent, wanted, axis in reversed(list(zip(mask.shape, scores[-mask.ndim :], axes[-mask.ndim :], strict=True))):
        if extent not in (1, wanted):
            raise _misfit(f"attn_mask: extent {extent} does not broadcast to {wanted}{axis}")


def check_layer_options(options: dict[str, Any]) -> None:
    for name in _NOT_OF_A_LAYER:
        if name in options:
            raise heed.KindError(f"{name}: there is no such keyword argument")
    weights = options.get("return_weights")
    if weights is not None and weights != "average":
        _check_flag("return_weights", weights)


def check_layer_inputs(
    x: torch.Tensor, context: torch.Tensor | None, value: torch.Tensor | None, widths: tuple[int, int, int]
) -> None:
    """`widths` are model_dim, key_dim and value_dim."""
    _check_axes("x", x, 2, 3)
    read, of = x, "x"  # where nothing else is given
    _check_width("x", x, "model_dim", widths[0])
    for name, tensor, own, width in (("context", context, "key_dim", widths[1]), ("value", value, "value_dim", widths[2])):
        if tensor is None:
            if read.shape[-1] != width:
                raise _misfit(f"{name}: none is given, and {of}.dim: {read.shape[-1]} is not {own}: {width}")
            continue
        if tensor.ndim != x.ndim:
            raise _misfit(
                f"{name}.shape: {tuple(tensor.shape)} has not as many axes as x.shape: {tuple(x.shape)}"
            )
        if x.ndim == 3 and tensor.shape[0] != x.shape[0]:
            raise _misfit(f"{name}.batch: {tensor.shape[0]} is not x.batch: {x.shape[0]}")
        if name == "value" and tensor.shape[-2] != read.shape[-2]:
            raise _misfit(f"value.length: {tensor.shape[-2]} is not {of}.length: {read.shape[-2]}")
        _check_width(name, tensor, own, width)
        read, of = tensor, name


def _check_width(name: str, tensor: torch.Tensor, own: str, width: int) -> None:
    if tensor.shape[-1] != width:
        raise _misfit(f"{name}.dim: {tensor.shape[-1]} is not {own}: {width}")


def refuse_type_of_input(name: str, tensor: torch.Tensor, weights: str, weight: torch.Tensor) -> None:
    raise heed.KindError(
        f"{name}.dtype: {_word(tensor)} is not that of {weights}: {_word(weight)}; give both one type, or use torch.autocast"
    )


def check_positions(name: str, positions: torch.Tensor, batch: int, length: int) -> None:
    if positions.numel() == 0 and batch * length > 0:
        raise _misfit(f"{name}: none are given; one per token is needed")
    if tuple(positions.shape) not in ((length,), (batch, length)):
        raise _misfit(
            f"{name}: {positions.numel()} entries are neither one per token: {length} nor one per batch entry and token: "
            f"{batch * length}"
        )
