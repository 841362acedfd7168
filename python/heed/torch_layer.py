# SPDX-License-Identifier: Apache-2.0
"""The attention layer as an `nn.Module`; heed.torch hands it on."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

import heed
from heed import torch_operators

__all__ = ["AttentionLayer"]

# What a call may ask for beside out when gradients are recorded; the rest has none, or is a cache's.
_ONLY_WITHOUT_GRADIENTS = ("cache", "sequences", "counts", "out")


class AttentionLayer(torch.nn.Module):
    """`heed.AttentionLayer` as a module: projections, heads, attention and output projection in one call.

    The arguments are those of heed.AttentionLayer. The parameters are q_proj.weight (heads * head_dim, model_dim),
    k_proj.weight, v_proj.weight and o_proj.weight, as Llama-style checkpoints name them, with .bias where bias is True
    (all four) or "qkv". load_state_dict also takes the names of `nn.MultiheadAttention` and W_q.weight, W_k.weight, ...

    Where autograd records or the compiler traces, the projections are PyTorch's and the attention is heed's, with its
    gradients. Elsewhere heed does it all, and keeps its own packed copy of the weights, which it renews when one of them has
    changed. Autograd's bookkeeping tells, so a change that goes around it (`parameter.data.copy_`) needs a `refresh()`. Weights may be tied to others, and
    computed from others by `torch.nn.utils.parametrize`. The four modules are read and never called: one that is more than
    its weight and bias (an adapter, a pruning hook) is refused.

    >>> layer = heed.torch.AttentionLayer(model_dim=64, heads=8, kv_heads=2)
    >>> with torch.no_grad():
    ...     layer(torch.ones(1, 10, 64), causal=True).shape
    torch.Size([1, 10, 64])
    """

    def __init__(
        self,
        model_dim: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        key_dim: int | None = None,
        bias: bool | str = False,
        dropout: float = 0.0,
        rotary: heed.Rotary | None = None,
        head_map: str = "interleaved",
        *,
        value_head_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        turned = rotary and {name: getattr(rotary, name) for name in ("base", "dims", "pairs", "scaling")}  # can be pickled
        self._made_with = {
            "model_dim": model_dim, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim,
            "value_dim": value_dim, "key_dim": key_dim, "bias": bias, "dropout": dropout, "rotary": turned,
            "head_map": head_map, "value_head_dim": value_head_dim,
        }  # fmt: skip
        self.dropout = dropout
        self.sliding_window: int | None = None
        layer = self._make()
        q, k, v = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim, layer.kv_heads * layer.value_head_dim
        where = {"device": device, "dtype": dtype}
        self.q_proj = torch.nn.Linear(model_dim, q, bias=bool(bias), **where)
        self.k_proj = torch.nn.Linear(layer.key_dim, k, bias=bool(bias), **where)
        self.v_proj = torch.nn.Linear(layer.value_dim, v, bias=bool(bias), **where)
        self.o_proj = torch.nn.Linear(heads * layer.value_head_dim, model_dim, bias=bias is True, **where)
        self.register_load_state_dict_pre_hook(_rename)

    @classmethod
    def from_pretrained(cls, folder: Any, layer: int = 0, **options: Any) -> AttentionLayer:
        """One attention layer of a model that transformers saved, as heed.AttentionLayer.from_pretrained reads it.

        options are device and dtype. `sliding_window` is the model's, or None: say it as window= at every call.
        """
        read = heed.AttentionLayer.from_pretrained(folder, layer)
        names = ("model_dim", "heads", "kv_heads", "head_dim", "bias", "dropout", "rotary")
        made = cls(**{name: getattr(read, name) for name in names}, **options)
        # float64 holds every element type, bfloat16 included, which torch.from_numpy does not know.
        state = {name: torch.from_numpy(array.astype("float64")) for name, array in read.state_dict("llama").items()}
        made.load_state_dict(state)
        made.sliding_window = read.sliding_window
        return made

    def forward(
        self,
        x: torch.Tensor,
        context: torch.Tensor | None = None,
        value: torch.Tensor | None = None,
        **options: Any,
    ) -> Any:
        """heed.AttentionLayer's call: x (batch, queries, model_dim) attends to context (batch, keys, key_dim) or x.

        options are those of heed.AttentionLayer's call: masks, return_weights, positions. In training mode dropout
        applies, with a seed from PyTorch's generator unless one is given. Weights and scores that are returned have no
        gradient.
        """
        weights = self._weights()
        given = (x, context, value, options.get("bias"), options.get("sink"), *weights.values())
        is_autocast = torch.is_autocast_enabled("cpu") and options.get("cache") is None
        if is_autocast or torch_operators.records(*given):
            return self._recorded(weights, x, context, value, options)
        layer = self._renewed(weights)
        if layer.training != self.training:
            layer.train(self.training)
        if self.training and self.dropout > 0.0 and options.get("seed") is None:
            options["seed"] = int(torch_operators.drawn_seed())
        return layer(x, context, value, **options)

    def _recorded(
        self,
        weights: dict[str, torch.Tensor],
        x: torch.Tensor,
        context: torch.Tensor | None,
        value: torch.Tensor | None,
        options: dict[str, Any],
    ) -> Any:
        """The same call in steps that autograd records."""
        for name in _ONLY_WITHOUT_GRADIENTS:
            if options.get(name) is not None:
                raise RuntimeError(f"{name}: has no gradient; call the layer under torch.no_grad() or torch.inference_mode()")
        (count, kv_count), has_batch = self._heads, x.ndim == 3
        if not has_batch:
            x, context, value = (None if t is None else t[None] for t in (x, context, value))
        context = x if context is None else context
        value = context if value is None else value

        def heads(tensor: torch.Tensor, name: str, number: int) -> torch.Tensor:
            y = functional.linear(tensor, weights[f"{name}.weight"], weights.get(f"{name}.bias"))
            return y.unflatten(-1, (number, -1)).transpose(1, 2)

        q, k, v = heads(x, "q_proj", count), heads(context, "k_proj", kv_count), heads(value, "v_proj", kv_count)
        q, k = self._turned(q, k, options, is_self=context is x)
        asked = {name: options.pop(f"return_{name}", None) for name in ("weights", "lse", "scores")}
        seed = options.pop("seed", None)
        if self.training and self.dropout > 0.0:
            options |= {"dropout": self.dropout, "seed": torch_operators.drawn_seed() if seed is None else seed}
        options["head_map"] = self._made_with["head_map"]
        attended, lse = torch_operators.attention(q, k, v, options)
        out = functional.linear(attended.transpose(1, 2).flatten(2), weights["o_proj.weight"], weights.get("o_proj.bias"))
        results = {"out": out} | _beside((q, k, v), asked, options) | ({"lse": lse} if asked["lse"] else {})
        found = [results[name] for name in ("out", "weights", "lse", "scores") if name in results]
        found = found if has_batch else [tensor[0] for tensor in found]
        return found[0] if len(found) == 1 else tuple(found)

    def _turned(
        self, q: torch.Tensor, k: torch.Tensor, options: dict[str, Any], *, is_self: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q and k after the rotary embedding, whose positions leave the options."""
        of_queries, of_keys = options.pop("positions", None), options.pop("key_positions", None)
        if self._turning is None:
            if of_queries is not None or of_keys is not None:
                raise heed.Error("positions: given, but the layer has no rotary")
            return q, k
        if of_keys is None and is_self:
            of_keys = of_queries
        of_queries, of_keys = _positions(of_queries, q), _positions(of_keys, k)
        lengths = torch.maximum(of_queries.amax(1), of_keys.amax(1)) + 1
        said, pairs, dims = self._turning
        return tuple(
            _turn(x, torch_operators.turned_units(positions, lengths, x.shape[3], said), pairs, dims or x.shape[3])
            for x, positions in ((q, of_queries), (k, of_keys))
        )

    def refresh(self) -> None:
        """Makes the next call read the parameters anew."""
        self._seen = None

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._made_with.items() if value)

    def _make(self) -> heed.AttentionLayer:
        rotary = self._made_with["rotary"]
        arguments = self._made_with | {"rotary": rotary and heed.Rotary(**rotary)}
        self._layer = heed.AttentionLayer(**arguments)
        self._heads = self._layer.heads, self._layer.kv_heads  # which the compiler can read
        self._turning = rotary and (repr(rotary), rotary["pairs"], rotary["dims"])
        self._seen: list[tuple[torch.Tensor, int | None]] | None = None
        return self._layer

    def _weights(self) -> dict[str, torch.Tensor]:
        """The weights and biases by name, as they are now; parametrised ones are computed."""
        found = {}
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            module = getattr(self, name)
            _refuse_more_than_weight_and_bias(name, module)
            found[f"{name}.weight"] = module.weight
            if module.bias is not None:
                found[f"{name}.bias"] = module.bias
        return found

    def _renewed(self, weights: dict[str, torch.Tensor]) -> heed.AttentionLayer:
        """The layer with these weights."""
        seen = self._seen
        if seen is None or not all(map(_is_unchanged, seen, weights.values())):
            self._layer.load(weights)
            # An alias keeps the memory that was read from being given to somebody else.
            self._seen = [(weight.detach(), _version(weight)) for weight in weights.values()]
        return self._layer

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_layer", "_seen", "_heads", "_turning")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._make()


def _positions(given: Any, x: torch.Tensor) -> torch.Tensor:
    """(batch, length), counted from 0 where none are given."""
    batch, _, length, _ = x.shape
    positions = torch.arange(length) if given is None else torch.as_tensor(given)
    return positions.expand(batch, length).contiguous()


def _turn(x: torch.Tensor, units: torch.Tensor, pairs: str, dims: int) -> torch.Tensor:
    """x (batch, heads, length, dim) turned as `units` (batch, length, dim) say."""
    turning, rest = x[..., :dims], x[..., dims:]
    units = units[:, None, :, :dims]  # float32, and so is what is turned until it is rounded
    if pairs == "halves":
        (x0, x1), (cos, sin) = turning.chunk(2, -1), units.chunk(2, -1)
        turned = torch.cat([x0 * cos - x1 * sin, x0 * sin + x1 * cos], -1)
    else:
        x0, x1, cos, sin = turning[..., ::2], turning[..., 1::2], units[..., ::2], units[..., 1::2]
        turned = torch.stack([x0 * cos - x1 * sin, x0 * sin + x1 * cos], -1).flatten(-2)
    return torch.cat([turned.to(x.dtype), rest], -1)


def _beside(qkv: tuple[torch.Tensor, ...], asked: dict[str, Any], options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The weights and scores that a call asks for, without gradients."""
    if not (asked["weights"] or asked["scores"]):
        return {}
    said = {name: value for name, value in options.items() if value is not None}
    if "seed" in said:
        said["seed"] = int(said["seed"])
    with torch.no_grad():
        _, *found = heed.attention(
            *qkv, return_weights=bool(asked["weights"]), return_scores=asked["scores"] or None, **said
        )
    results = dict(zip([name for name in ("weights", "scores") if asked[name]], found, strict=True))
    if asked["weights"] == "average":
        results["weights"] = results["weights"].mean(1)
    return results


def _refuse_more_than_weight_and_bias(name: str, module: torch.nn.Module) -> None:
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


def _rename(module: AttentionLayer, state: dict[str, Any], prefix: str, *rest: Any) -> None:
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
