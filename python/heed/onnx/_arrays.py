# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy, PyTorch, JAX and their like as NumPy sees them, and back."""

import sys
from typing import Any

import numpy as np

from heed._errors import Error, KindError

FLOATS = ("float32", "float16", "bfloat16")
FLOATS_AND_DOUBLE = (*FLOATS, "float64")


def to_numpy(name: str, array: Any) -> np.ndarray:
    """The array as NumPy's, without a copy where the memory can be shared."""
    if isinstance(array, np.ndarray):
        return array
    if _is_torch(array):
        return _torch_to_numpy(name, array)
    if not hasattr(array, "__dlpack__") and not hasattr(array, "__array__"):
        raise KindError(f"{name}: must be an array; found {type(array).__name__}")
    return np.asarray(array) if hasattr(array, "__array__") else np.from_dlpack(array)


def like(example: Any, array: np.ndarray) -> Any:
    """The NumPy array as an array of the example's kind."""
    if isinstance(example, np.ndarray):
        return array
    if _is_torch(example):
        return _torch_from_numpy(array)
    return example.__array_namespace__().asarray(array)


def require_float(name: str, array: np.ndarray, allowed: tuple[str, ...] = FLOATS) -> None:
    if array.dtype.name not in allowed:
        raise KindError(f"{name}: must be {', '.join(allowed[:-1])} or {allowed[-1]}; found {array.dtype.name}")


def split_heads(name: str, heads: int | None, array: np.ndarray) -> np.ndarray:
    """(batch, length, heads * dim) as a view with the axes (batch, heads, length, dim)."""
    batch, length, width = array.shape
    if heads is None or heads <= 0:
        raise Error(f"{name}: 3-D inputs need a positive number of heads; found {heads}")
    if width % heads != 0:
        raise shape_error(f"{name}: {heads} does not divide the width of a 3-D input: {width}")
    return array.reshape(batch, length, heads, width // heads).swapaxes(1, 2)


def shape_text(array: np.ndarray) -> str:
    return str(tuple(int(extent) for extent in array.shape))


def shape_error(sentence: str) -> Error:
    error = Error(sentence)
    error.code = "shape"
    return error


def _is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def _torch_to_numpy(name: str, tensor: Any) -> np.ndarray:
    torch = sys.modules["torch"]
    if tensor.requires_grad and torch.is_grad_enabled():
        raise Error(f"{name}: requires a gradient, which only heed.torch records; use torch.no_grad()")
    if tensor.device.type != "cpu":
        raise KindError(f"{name}: must be on the CPU; found {tensor.device}")
    tensor = tensor.detach().resolve_neg()
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    import ml_dtypes  # NumPy itself has no bfloat16

    return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def _torch_from_numpy(array: np.ndarray) -> Any:
    torch = sys.modules["torch"]
    if array.dtype.name != "bfloat16":
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
