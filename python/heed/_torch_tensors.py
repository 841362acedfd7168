# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's tensors are, and who listens to what is done with them.

heed reads the memory of plain tensors. Whoever else takes part in an operation (autograd, a compiler, a tracer, a mode, a subclass)
is told by the dispatcher, so that the short way past it is taken only where nobody is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import _functorch
from torch.autograd import forward_ad

import heed
from heed import _heed

__all__ = [
    "NotComputed",
    "are_plain_to_autograd",
    "as_autocast_says",
    "beside_caches",
    "check_kinds",
    "is_autocast",
    "is_traced",
    "is_unwatched",
    "is_watched_by_autograd_alone",
    "records_gradients",
    "refuse_transforms",
    "waited",
]

_DEVICES = ("cpu", "cuda")


class NotComputed(RuntimeError):
    """What PyTorch may be asked for and heed does not compute; raised before anything runs."""


def is_unwatched(objects: tuple[Any, ...]) -> bool:
    """Whether these are plain tensors and nobody listens: no autograd, compiler, tracer, mode, transform, profiler or subclass.

    Whatever is no tensor does not count.
    """
    return not torch.compiler.is_dynamo_compiling() and _heed.is_unwatched(objects)


def is_watched_by_autograd_alone(objects: tuple[Any, ...]) -> bool:
    """Whether these tensors are plain memory but for their gradients."""
    if torch.compiler.is_dynamo_compiling():
        return False
    with torch.no_grad():
        return _heed.is_unwatched(objects)


def are_plain_to_autograd(objects: Iterable[Any]) -> bool:
    """Whether an autograd.Function may stand for operations on these: no subclass, transform of torch.func or forward mode.

    Modes and profilers see what it is made of.
    """
    if getattr(forward_ad, "_current_level", 0) >= 0 or _functorch.peek_interpreter_stack() is not None:
        return False
    return all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in objects if x is not None)


def is_traced() -> bool:
    """Whether the numbers of a shape may be symbols, which are not to be looked at."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def records_gradients(tensors: Iterable[Any]) -> bool:
    """Whether autograd records an operation on these."""
    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def waited(tensor: Any) -> Any:
    """A plain tensor in place of one whose collective is in flight (tensor parallelism hands them on); any other object as it is.

    Operations of PyTorch wait in the same way. Where autograd knows the tensor, one of them does it.
    """
    if type(tensor) is torch.Tensor or type(tensor).__name__ != "AsyncCollectiveTensor":
        return tensor
    return tensor.clone() if records_gradients((tensor,)) else tensor.trigger_wait()


def foreign_kind(tensor: torch.Tensor) -> tuple[str, str] | None:
    """What a tensor is that heed's operators can make nothing of, and how it becomes a plain one; None where they can."""
    if tensor.is_nested:
        return "nested tensor", "to_padded_tensor()"
    if tensor.layout is not torch.strided:
        return f"{str(tensor.layout).removeprefix('torch.')} tensor", "to_dense()"
    if tensor.device.type not in (*_DEVICES, "meta"):
        return f"tensor on {tensor.device}", "cpu()"
    if type(tensor) is torch.Tensor:
        return None
    for base in type(tensor).__mro__:
        if base.__module__.startswith("torch.distributed."):
            return base.__name__, "to_local()"
        if base.__module__.startswith("torch.masked."):
            return base.__name__, "get_data()"
    return None


def check_kinds(tensors: dict[str, Any]) -> None:
    """Refuses, by their names, tensors of kinds that an operator of heed cannot take."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or torch.compiler.is_compiling():
            continue
        found = foreign_kind(tensor)
        if found is not None:
            kind, as_plain = found
            raise heed.KindError(
                f"{name}: a {kind}, which heed does not compute with; pass a plain tensor, such as its {as_plain}, or use "
                "torch.nn.functional.scaled_dot_product_attention there"
            )


def is_autocast(tensor: torch.Tensor) -> bool:
    """Whether autocast is on where the tensor lies."""
    device = tensor.device.type
    return device in _DEVICES and torch.is_autocast_enabled(device)


def as_autocast_says(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """What PyTorch's own attention would compute with under autocast, which leaves float64 alone."""
    if tensor is None or not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def refuse_transforms(tensors: Iterable[Any]) -> None:
    """A tensor with a tangent, or one that torch.func has wrapped and that stands for others."""
    tensors = [t for t in tensors if isinstance(t, torch.Tensor)]
    if getattr(forward_ad, "_current_level", 0) >= 0:
        if any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
            raise NotComputed(
                "heed: derivatives in forward mode (torch.autograd.forward_ad) of attention are not computed; use backward(), or "
                "torch.nn.functional.scaled_dot_product_attention there"
            )
    levels = _functorch.get_interpreter_stack() or ()
    if any(level.key() != _functorch.TransformType.Functionalize for level in levels):  # which heed's operators are ready for
        if any(_functorch.is_functorch_wrapped_tensor(t) for t in tensors):
            raise NotComputed(
                "heed: attention knows no transforms of torch.func but functionalize (not vmap, grad, vjp, jvp and what is made of "
                "them); pass the batch as an axis, call backward(), or use torch.nn.functional.scaled_dot_product_attention there"
            )


@contextmanager
def beside_caches(tensor: torch.Tensor) -> Iterator[None]:
    """Around calls on a heed.KvCache, or on a layer, that lies where the tensor does.

    Those run on the legacy stream of their device. What the current stream has been told before comes before them, and what it is
    told afterwards after them; nothing waits but the streams. Memory that is made inside is the current stream's.
    """
    if tensor.device.type != "cuda":
        yield
        return
    with torch.cuda.device(tensor.device):
        current, legacy = torch.cuda.current_stream(), torch.cuda.default_stream()
        legacy.wait_stream(current)
        try:
            yield
        finally:
            current.wait_stream(legacy)
