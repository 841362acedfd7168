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
from torch._C import _autograd, _functorch, _get_tracing_state, _len_torch_dispatch_stack, _len_torch_function_stack
from torch.autograd import forward_ad

import heed

__all__ = [
    "as_autocast_says",
    "beside_caches",
    "check_kinds",
    "is_autocast",
    "is_traced",
    "is_unwatched",
    "records_gradients",
    "refuse_gradients",
    "refuse_transforms",
]

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_DISABLED = torch.Tensor.__torch_dispatch__
_DEVICES = ("cpu", "cuda")


def is_unwatched(tensors: Iterable[Any]) -> bool:
    """Whether these are plain tensors and nobody listens: no autograd, compiler, tracer, mode, transform, profiler or subclass.

    Whatever is no tensor does not count. Three tensors take 2.0 us (Xeon, Python 3.12, November 2026), most of it functorch's stack.
    """
    if (
        torch.compiler.is_compiling()
        or _len_torch_dispatch_stack()
        or _len_torch_function_stack()
        or _get_tracing_state() is not None
        or _functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or _autograd._profiler_enabled()
    ):
        return False
    records = torch.is_grad_enabled()
    for tensor in tensors:
        if type(tensor) in _PLAIN_TYPES:
            if (records and tensor.requires_grad) or tensor.is_nested or tensor.is_meta:
                return False
        elif tensor is not None and hasattr(tensor, "__torch_function__"):
            return False
    return True


def is_traced() -> bool:
    """Whether the numbers of a shape may be symbols, which are not to be looked at."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def records_gradients(tensors: Iterable[Any]) -> bool:
    """Whether autograd records an operation on these."""
    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def kind_name(tensor: torch.Tensor) -> str | None:
    """What a tensor is that heed's operators can make nothing of; None where they can."""
    if tensor.is_nested:
        return "nested tensor"
    if tensor.layout is not torch.strided:
        return f"{str(tensor.layout).removeprefix('torch.')} tensor"
    if tensor.device.type not in (*_DEVICES, "meta"):
        return f"tensor on {tensor.device}"
    for base in type(tensor).__mro__:
        if base.__module__.startswith(("torch.distributed.", "torch.masked.")):
            return base.__name__
    return None


def check_kinds(tensors: dict[str, Any]) -> None:
    """Refuses, by their names, tensors of kinds that an operator of heed cannot take."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or torch.compiler.is_compiling():
            continue
        kind = kind_name(tensor)
        if kind is not None:
            raise heed.KindError(
                f"{name}: a {kind}, which heed does not compute with; pass a plain tensor (such as its to_local() or to_padded_tensor()), or "
                "use torch.nn.functional.scaled_dot_product_attention there"
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


def refuse_gradients(tensors: Iterable[Any]) -> None:
    """heed's gradients are the CPU's. Called where gradients are wanted, before anything runs."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad and tensor.device.type == "cuda":
            raise RuntimeError(
                f"heed: gradients of attention are not computed on {tensor.device}, and a tensor there requires grad; call it "
                "under torch.no_grad(), pass .detach(), or move model and tensors to the CPU"
            )


def refuse_transforms(tensors: Iterable[Any]) -> None:
    """A tensor with a tangent, or one that torch.func has wrapped and that stands for others."""
    tensors = [t for t in tensors if isinstance(t, torch.Tensor)]
    if getattr(forward_ad, "_current_level", 0) >= 0:
        if any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):
            raise RuntimeError(
                "heed: derivatives in forward mode (torch.autograd.forward_ad) of attention are not computed; use backward(), or "
                "torch.nn.functional.scaled_dot_product_attention there"
            )
    if _functorch.peek_interpreter_stack() is not None:
        if any(_functorch.is_functorch_wrapped_tensor(t) for t in tensors):
            raise RuntimeError(
                "heed: attention knows no transforms of torch.func (vmap, grad, vjp, jvp and what is made of them); pass the batch as "
                "an axis, call backward(), or use torch.nn.functional.scaled_dot_product_attention there"
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
