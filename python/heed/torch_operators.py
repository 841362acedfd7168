# SPDX-License-Identifier: Apache-2.0
"""heed's attention as operators of PyTorch, so that autograd and torch.compile know what it does.

`attention(q, k, v, options)` is heed.attention with a gradient by q, k, v, the bias and the sink. The operator behind it,
`torch.ops.heed.attention`, takes tensors in a list and every other option in one line of text, because an operator's
arguments are of few types and the options of attention are many.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch._C import _functorch as functorch
from torch.autograd import forward_ad

import heed
from heed import torch_devices

__all__ = ["attention", "drawn_seed", "records", "turned_units"]


_NOT_RECORDED = {"cache", "sequences", "out", "return_weights", "return_scores"}


def records(*tensors: Any) -> bool:
    """Whether an operation on these must be one that PyTorch knows: autograd or the compiler looks on, or asks for shapes only."""
    wants_gradients = _wants_gradients(tensors)
    if torch.compiler.is_compiling():
        return True
    _refuse_forward_mode(tensors)
    _refuse_transforms(tensors)
    return wants_gradients or not torch_devices.has_memory(tensors)


def _wants_gradients(tensors: Sequence[Any]) -> bool:
    if not torch.is_grad_enabled():
        return False
    required = [t for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]
    torch_devices.refuse_gradients(required)
    return len(required) > 0


def _refuse_forward_mode(tensors: Sequence[Any]) -> None:
    """Where nobody records, a tensor's tangent would be lost without a word."""
    if getattr(forward_ad, "_current_level", 0) < 0:  # nobody is in forward mode; asking every tensor would take 4 us
        return
    if any(isinstance(t, torch.Tensor) and forward_ad.unpack_dual(t).tangent is not None for t in tensors):
        raise RuntimeError(
            "heed: derivatives in forward mode (torch.autograd.forward_ad) of attention are not computed; use backward(), or "
            "torch.nn.functional.scaled_dot_product_attention there"
        )


def _refuse_transforms(tensors: Sequence[Any]) -> None:
    """A tensor that torch.func has wrapped stands for others, which the operators cannot see."""
    if functorch.peek_interpreter_stack() is None:
        return
    if any(isinstance(t, torch.Tensor) and functorch.is_functorch_wrapped_tensor(t) for t in tensors):
        raise RuntimeError(
            "heed: attention knows no transforms of torch.func (vmap, grad, vjp, jvp and what is made of them); pass the batch as "
            "an axis, call backward(), or use torch.nn.functional.scaled_dot_product_attention there"
        )


def _refuse_many_at_once(gradients: Sequence[torch.Tensor | None]) -> None:
    if torch.compiler.is_compiling():
        return
    if any(gradient is not None and functorch.is_legacy_batchedtensor(gradient) for gradient in gradients):
        raise RuntimeError(
            "heed: many gradients of attention at once (is_grads_batched, jacobian(vectorize=True)) are not computed; ask for them "
            "one by one"
        )


def drawn_seed() -> torch.Tensor:
    """A seed for heed's dropout out of PyTorch's generator: `torch.manual_seed` makes it repeat."""
    return torch.randint(2**63 - 1, (), device="cpu")


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of heed.attention(q, k, v, **options). out has the heads of a token side by side in memory."""
    arrays: list[torch.Tensor] = []
    words = []
    for name, value in options.items():
        if name in _NOT_RECORDED:
            raise TypeError(f"{name}: has no gradient, so it is no option here; heed.attention takes it")
        if value is not None:
            words.append(f"{name}={_written(value, arrays)}")
    _wants_gradients((q, k, v, *arrays))
    if not torch.compiler.is_compiling():
        _refuse_forward_mode((q, k, v, *arrays))
        _refuse_transforms((q, k, v, *arrays))
    return torch.ops.heed.attention(q, k, v, arrays, " ".join(words))


def _written(value: Any, arrays: list[torch.Tensor], *, is_part: bool = False) -> str:
    """The value in words; a tensor goes to `arrays`, and a @ stands for it. So does a number, and a # stands for it, while
    the compiler looks on: it may be one that the compiler knows only by name, of a tensor's extents."""
    if isinstance(value, torch.Tensor):
        arrays.append(value)
        return "@"
    if torch.compiler.is_compiling() and isinstance(value, (int, float)) and not isinstance(value, bool):
        dtype = torch.int64 if isinstance(value, int) else torch.float64
        arrays.append(torch.full((), value, dtype=dtype, device="cpu"))
        return "#"
    if hasattr(value, "__dlpack__") or (is_part and isinstance(value, (tuple, list))):
        return _written(torch.as_tensor(value), arrays)
    if isinstance(value, (tuple, list)):
        return "".join(f"{_written(part, arrays, is_part=True)}:" for part in value) or "()"
    if isinstance(value, str):  # which must not be read as anything else
        return "'" + value.replace("%", "%25").replace(" ", "%20").replace(":", "%3A")
    return str(value)


@functools.lru_cache(maxsize=256)
def _read(said: str) -> tuple[tuple[str, Any], ...]:
    words = said.split(" ") if said else []
    return tuple((name, _value(text)) for name, _, text in (word.partition("=") for word in words))


_ARRAY, _NUMBER = object(), object()  # what a @ and a # stand for


def _value(text: str) -> Any:
    if text.endswith(":"):
        return tuple(_value(part) for part in text[:-1].split(":"))
    if text.startswith("'"):
        return text[1:].replace("%3A", ":").replace("%20", " ").replace("%25", "%")
    constants = {"None": None, "True": True, "False": False, "@": _ARRAY, "#": _NUMBER, "()": ()}
    if text in constants:
        return constants[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def _options(arrays: Sequence[torch.Tensor], said: str) -> dict[str, Any]:
    """heed's keywords again. A seed may be a tensor, since drawing one must not stop the compiler."""
    left = iter(arrays)

    def filled(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(filled(part) for part in value)
        if value is _NUMBER:
            return next(left).item()
        return next(left) if value is _ARRAY else value

    options = {name: filled(value) for name, value in _read(said)}
    if isinstance(options.get("seed"), torch.Tensor):
        options["seed"] = options["seed"].item()
    return options


def _place(said: str, name: str) -> int | None:
    """Which of the arrays is the option of this name."""
    before = 0
    for found, value in _read(said):
        parts = value if isinstance(value, tuple) else (value,)
        count = sum(part is _ARRAY or part is _NUMBER for part in parts)
        if found == name:
            return before if count else None
        before += count
    return None


def _empty_out(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """(batch, heads, queries, value_dim) with the heads of a token side by side, as a projection reads them."""
    batch, heads, queries, _ = q.shape
    return q.new_empty(batch, queries, heads, v.shape[3]).transpose(1, 2)


@torch.library.custom_op("heed::attention", mutates_args=())
def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, arrays: Sequence[torch.Tensor], said: str
) -> tuple[torch.Tensor, torch.Tensor]:
    out = _empty_out(q, v)
    _, lse = heed.attention(q, k, v, out=out, return_lse=True, **_options(arrays, said))
    return out, lse


@_attention.register_fake
def _(q, k, v, arrays, said):  # noqa: ANN001, ANN202
    return _empty_out(q, v), q.new_empty(q.shape[:3], dtype=torch.float32)


def _empty_gradient(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """By q, k or v: it lies as its argument does, so that a projection's heads need no copy on their way back either."""
    return torch.empty_like(tensor) if name in "qkv" else tensor.new_empty(tensor.shape)


@torch.library.custom_op("heed::attention_backward", mutates_args=())
def _attention_backward(
    out_gradient: torch.Tensor,
    lse_gradient: torch.Tensor | None,
    saved: Sequence[torch.Tensor],
    arrays: Sequence[torch.Tensor],
    said: str,
    by: str,
) -> list[torch.Tensor]:
    q, k, v, out, lse = saved
    options = _options(arrays, said)
    options.pop("kernel", None)  # one of the forward pass
    names = tuple(by.split())
    into = [_empty_gradient(name, tensor) for name, tensor in zip("qkv", saved[:3], strict=True) if name in names]
    return list(
        heed.attention_backward(
            out_gradient, q, k, v, out, lse, lse_gradient=lse_gradient, by=names, into=into, **options
        )
    )


@_attention_backward.register_fake
def _(out_gradient, lse_gradient, saved, arrays, said, by):  # noqa: ANN001, ANN202
    named = dict(zip("qkv", saved[:3], strict=True))
    for name in ("bias", "sink"):
        place = _place(said, name)
        if place is not None:
            named[name] = arrays[place]
    return [_empty_gradient(name, named[name]) for name in by.split()]


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    q, k, v, arrays, ctx.said = inputs
    ctx.save_for_backward(q, k, v, *output, *arrays)
    ctx.set_materialize_grads(False)
    named = {"q": q, "k": k, "v": v}
    for name in ("bias", "sink"):
        place = _place(ctx.said, name)
        if place is not None:
            named[name] = arrays[place]
    ctx.by = " ".join(name for name, tensor in named.items() if tensor.requires_grad)


def _differentiate(ctx: Any, out_gradient: torch.Tensor | None, lse_gradient: torch.Tensor | None) -> tuple:
    _refuse_many_at_once((out_gradient, lse_gradient))
    q, k, v, out, lse, *arrays = ctx.saved_tensors
    if out_gradient is None:
        out_gradient = torch.zeros_like(out)
    found = torch.ops.heed.attention_backward(
        out_gradient, lse_gradient, [q, k, v, out, lse], arrays, ctx.said, ctx.by
    )
    gradients = dict(zip(ctx.by.split(), found, strict=True))
    by_arrays: list[torch.Tensor | None] = [None] * len(arrays)
    for name in ("bias", "sink"):
        place = _place(ctx.said, name)
        if place is not None:
            by_arrays[place] = gradients.get(name)
    return gradients.get("q"), gradients.get("k"), gradients.get("v"), by_arrays, None


def _refuse_twice(ctx: Any, *gradients: Any) -> tuple:
    raise RuntimeError(
        "heed: the gradient of a gradient of attention (double backward) is not computed; call backward() without create_graph, "
        "or use torch.nn.functional.scaled_dot_product_attention there"
    )


_attention.register_autograd(_differentiate, setup_context=_save)
_attention_backward.register_autograd(_refuse_twice)


@functools.lru_cache(maxsize=16)
def _rotary(said: str) -> heed.Rotary:
    import ast

    return heed.Rotary(**ast.literal_eval(said))


@torch.library.custom_op("heed::turned_units", mutates_args=())
def turned_units(positions: torch.Tensor, lengths: torch.Tensor, dim: int, said: str) -> torch.Tensor:
    """How a heed.Rotary, given as the text of its arguments, turns the first of every pair: (batch, length, dim).

    A pair of it is (a * cos, a * sin). positions is (batch, length), lengths (batch,).
    """
    rotary = _rotary(said)
    turning = dim if rotary.dims is None else rotary.dims
    unit = torch.zeros(dim, device="cpu")
    unit[turning:] = 1
    if rotary.pairs == "halves":
        unit[: turning // 2] = 1
    else:
        unit[:turning:2] = 1
    units = unit.expand(*positions.shape[:1], 1, *positions.shape[1:], dim).contiguous()
    return heed.rotate(units, positions, rotary, lengths=lengths)[:, 0]


@turned_units.register_fake
def _(positions, lengths, dim, said):  # noqa: ANN001, ANN202
    return positions.new_empty((*positions.shape, dim), dtype=torch.float32)
