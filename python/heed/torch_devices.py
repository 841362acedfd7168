# SPDX-License-Identifier: Apache-2.0
"""Where PyTorch's tensors lie, and what follows from it: autocast, gradients, and the stream that caches go by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["as_autocast_says", "beside_caches", "has_memory", "is_autocast", "refuse_gradients"]


def has_memory(tensors: Sequence[Any]) -> bool:
    """Whether there is anything to read: a meta or fake tensor has a shape and no elements."""
    return not any(isinstance(t, torch.Tensor) and (t.is_meta or isinstance(t, FakeTensor)) for t in tensors)


def is_autocast(tensor: torch.Tensor) -> bool:
    """Whether autocast is on where the tensor lies."""
    device = tensor.device.type
    return device in ("cpu", "cuda") and torch.is_autocast_enabled(device)


def as_autocast_says(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """What PyTorch's own attention would compute with under autocast."""
    if tensor is None or not tensor.is_floating_point():
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def refuse_gradients(tensors: Sequence[Any]) -> None:
    """heed's gradients are the CPU's. Called where gradients are wanted, before anything runs."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cuda":
            raise RuntimeError(
                f"heed: gradients of attention are not computed on {tensor.device}, and a tensor there requires grad; call it "
                "under torch.no_grad(), pass .detach(), or move model and tensors to the CPU"
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
