# SPDX-License-Identifier: Apache-2.0
"""The attributes of Attention and RotaryEmbedding: their defaults, and what the standard lets them be."""

import dataclasses
import math
import numbers
import operator
from collections.abc import Mapping
from typing import Any

from heed._errors import Error, KindError

ATTENTION_OPSETS = (23, 24, 25)
SINCE_OPSET = {"left_window_size": 25, "right_window_size": 25}
DOUBLE = 11  # TensorProto.DataType
SOFTMAX_PRECISIONS = {1: "FLOAT", 10: "FLOAT16", DOUBLE: "DOUBLE", 16: "BFLOAT16"}


@dataclasses.dataclass(frozen=True)
class AttentionAttributes:
    """What the standard calls each attribute, with the standard's default."""

    is_causal: int = 0
    scale: float | None = None
    q_num_heads: int | None = None
    kv_num_heads: int | None = None
    softmax_precision: int | None = None
    softcap: float = 0.0
    qk_matmul_output_mode: int = 0
    left_window_size: int = -1
    right_window_size: int = -1


@dataclasses.dataclass(frozen=True)
class RotaryAttributes:
    interleaved: int = 0
    rotary_embedding_dim: int = 0
    num_heads: int | None = None


def attention_attributes(opset: int, given: Mapping[str, Any]) -> AttentionAttributes:
    """The attributes of one Attention node of that opset, checked."""
    if opset not in ATTENTION_OPSETS:
        raise Error(f"opset: Attention is defined by opsets 23, 24 and 25; found {opset}")
    known = [
        f.name for f in dataclasses.fields(AttentionAttributes) if SINCE_OPSET.get(f.name, opset) <= opset
    ]
    attributes = AttentionAttributes(**_typed(f"Attention-{opset}", known, given, reals=("scale", "softcap")))
    _require_one_of("is_causal", attributes.is_causal, (0, 1))
    _require_one_of("qk_matmul_output_mode", attributes.qk_matmul_output_mode, (0, 1, 2, 3))
    if attributes.softmax_precision is not None:
        _require_one_of("softmax_precision", attributes.softmax_precision, tuple(SOFTMAX_PRECISIONS))
    # The standard multiplies Q and K by the square root, so that a negative scale has no meaning there.
    if attributes.scale is not None and attributes.scale < 0:
        raise Error(f"scale: must not be negative; found {attributes.scale}")
    if attributes.softcap < 0:
        raise Error(f"softcap: must be 0 (off) or positive; found {attributes.softcap}")
    for name in SINCE_OPSET:
        if getattr(attributes, name) < -1:
            raise Error(f"{name}: must be -1 (no bound) or more; found {getattr(attributes, name)}")
    return attributes


def rotary_attributes(given: Mapping[str, Any]) -> RotaryAttributes:
    """The attributes of one RotaryEmbedding node, checked."""
    known = [f.name for f in dataclasses.fields(RotaryAttributes)]
    attributes = RotaryAttributes(**_typed("RotaryEmbedding-23", known, given, reals=()))
    _require_one_of("interleaved", attributes.interleaved, (0, 1))
    if attributes.rotary_embedding_dim < 0:
        raise Error(
            f"rotary_embedding_dim: must be 0 (all) or positive; found {attributes.rotary_embedding_dim}"
        )
    return attributes


def _typed(
    node: str, known: list[str], given: Mapping[str, Any], reals: tuple[str, ...]
) -> dict[str, int | float]:
    """Each given attribute as the standard types it, int or float; None stands for an absent one."""
    unknown = [name for name in given if name not in known]
    if unknown:
        raise KindError(f"{unknown[0]}: {node} has no such attribute; it has {', '.join(known)}")
    present = {name: value for name, value in given.items() if value is not None}
    return {n: _real(n, v) if n in reals else _integer(n, v) for n, v in present.items()}


def _integer(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise KindError(f"{name}: must be an integer; found {type(value).__name__}") from None


def _real(name: str, value: Any) -> float:
    if not isinstance(value, numbers.Real):
        raise KindError(f"{name}: must be a number; found {type(value).__name__}")
    if not math.isfinite(value):
        raise Error(f"{name}: must be finite; found {value}")
    return float(value)


def _require_one_of(name: str, value: int, allowed: tuple[int, ...]) -> None:
    if value not in allowed:
        raise Error(f"{name}: must be one of {', '.join(map(str, allowed))}; found {value}")
