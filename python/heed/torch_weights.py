# SPDX-License-Identifier: Apache-2.0
"""The weights of heed.torch.AttentionLayer: what is made of them, and the names they are loaded by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import heed

__all__ = ["WeightsCopy", "loading", "refuse_more_than_weight_and_bias", "rename", "side_by_side"]


class WeightsCopy:
    """Something made of the weights, and made again when one of them has changed."""

    def __init__(self, make: Callable[[dict[str, torch.Tensor]], Any]) -> None:
        self._make = make
        self.forget()

    def forget(self) -> None:
        self._made: Any = None
        self._seen: list[tuple[torch.Tensor, int | None]] | None = None

    def of(self, weights: dict[str, torch.Tensor]) -> Any:
        if self._seen is None or not all(map(_is_unchanged, self._seen, weights.values())):
            self._made = self._make(weights)
            # An alias keeps the memory that was read from being given to somebody else.
            self._seen = [(weight.detach(), _version(weight)) for weight in weights.values()]
        return self._made


def loading(layer: heed.AttentionLayer) -> Callable[[dict[str, torch.Tensor]], heed.AttentionLayer]:
    def load(weights: dict[str, torch.Tensor]) -> heed.AttentionLayer:
        layer.load({name: weight.detach().cpu() for name, weight in weights.items()})
        return layer

    return load


def side_by_side(weights: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weights of q, k and v one below the other, and their biases."""
    names = ("q_proj", "k_proj", "v_proj")
    has_bias = "q_proj.bias" in weights
    return (
        torch.cat([weights[f"{name}.weight"].detach() for name in names]),
        torch.cat([weights[f"{name}.bias"].detach() for name in names]) if has_bias else None,
    )


def refuse_more_than_weight_and_bias(name: str, module: torch.nn.Module) -> None:
    if not module._modules and module._parameters.keys() <= {"weight", "bias"}:
        return
    for own, _ in module.named_parameters():
        if own not in ("weight", "bias") and not own.startswith("parametrizations."):
            raise RuntimeError(
                f"{name}.{own}: the layer reads weight and bias only and never calls {name}; merge what is beside "
                "them into them, or use torch.nn.utils.parametrize"
            )
    if not isinstance(module.weight, torch.Tensor):
        raise RuntimeError(f"{name}.weight: is not a tensor")


def _version(parameter: torch.Tensor) -> int | None:
    """How often autograd saw it change; None if it does not count."""
    return None if parameter.is_inference() else parameter._version


def _is_unchanged(seen: tuple[torch.Tensor, int | None], parameter: torch.Tensor) -> bool:
    alias, version = seen
    return (
        version is not None
        and alias.data_ptr() == parameter.data_ptr()
        and alias.dtype == parameter.dtype
        and version == _version(parameter)
    )


def rename(module: torch.nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Gives what has the names of nn.MultiheadAttention or of the paper (W_q.weight) the module's own, in the copy being loaded."""
    errors = rest[-1]
    rows = [linear.out_features for linear in (module.q_proj, module.k_proj, module.v_proj)]
    for kind in ("weight", "bias"):
        packed = state.pop(f"{prefix}in_proj_{kind}", None)
        if packed is not None and packed.shape[0] != sum(rows):
            errors.append(f"in_proj_{kind}: its {packed.shape[0]} rows are not the {sum(rows)} of q, k and v")
        elif packed is not None:
            for letter, part in zip("qkv", packed.split(rows), strict=True):
                state[f"{prefix}{letter}_proj.{kind}"] = part
        names = {f"out_proj.{kind}": "o"} | {f"{letter}_proj_{kind}": letter for letter in "qkv"}
        for theirs, letter in (names | {f"W_{letter}.{kind}": letter for letter in "qkvo"}).items():
            if prefix + theirs in state:
                state[f"{prefix}{letter}_proj.{kind}"] = state.pop(prefix + theirs)
    for name in ("bias_k", "bias_v"):
        if state.pop(prefix + name, None) is not None:
            errors.append(f"{name}: heed's layer has no extra key and value")
