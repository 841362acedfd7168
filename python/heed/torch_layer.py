# SPDX-License-Identifier: Apache-2.0
"""The attention layer as an `nn.Module`; heed.torch hands it on."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn import functional

import heed
from heed import torch_devices, torch_operators, torch_refusals
from heed.torch_weights import WeightsCopy, loading, refuse_more_than_weight_and_bias, rename, side_by_side

__all__ = ["AttentionLayer"]

# What a call may ask for beside out when gradients are recorded; the rest has none, or is a cache's.
_ONLY_WITHOUT_GRADIENTS = ("cache", "sequences", "counts", "out")
# What _make() makes again.
_MADE = ("_heads", "_widths", "_turning", "_copies", "_side_by_side")


class AttentionLayer(torch.nn.Module):
    """`heed.AttentionLayer` as a module: projections, heads, attention and output projection in one call.

    The arguments are those of heed.AttentionLayer. The parameters are q_proj.weight (heads * head_dim, model_dim),
    k_proj.weight, v_proj.weight and o_proj.weight, as Llama-style checkpoints name them, with .bias where bias is True
    (all four) or "qkv". load_state_dict also takes the names of `nn.MultiheadAttention` and W_q.weight, W_k.weight, ...

    Where autograd records or the compiler traces, the projections are PyTorch's and the attention is heed's, with its
    gradients. Elsewhere heed does it all, and keeps its own packed copy of the weights, which it renews when one of them has
    changed. On a CUDA device, where there are no gradients, the projections are PyTorch's as well, on its current stream; over a
    cache heed does it all there too. Autograd's bookkeeping tells, so a change that goes around it (`parameter.data.copy_`) needs a `refresh()`. Weights may be tied to others, and
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
        self.register_load_state_dict_pre_hook(rename)

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
        is_autocast = torch_devices.is_autocast(x) and options.get("cache") is None
        if is_autocast or torch_operators.records(*given):
            for name in _ONLY_WITHOUT_GRADIENTS:
                if options.get(name) is not None:
                    raise RuntimeError(
                        f"{name}: has no gradient; call the layer under torch.no_grad() or torch.inference_mode()"
                    )
            return self._in_steps(weights, x, context, value, options)
        on_its_stream = x.device.type == "cuda" and all(options.get(name) is None for name in _ONLY_WITHOUT_GRADIENTS)
        if on_its_stream:
            return self._in_steps(weights, x, context, value, options)
        if self.training and self.dropout > 0.0 and options.get("seed") is None:
            options["seed"] = int(torch_operators.drawn_seed())
        with torch_devices.beside_caches(x):
            layer = self._copies["cuda" if x.device.type == "cuda" else "cpu"].of(weights)
            if layer.training != self.training:
                layer.train(self.training)
            return layer(x, context, value, **options)

    def _in_steps(
        self,
        weights: dict[str, torch.Tensor],
        x: torch.Tensor,
        context: torch.Tensor | None,
        value: torch.Tensor | None,
        options: dict[str, Any],
    ) -> Any:
        """The same call with PyTorch's projections, which autograd records, on the stream that is current."""
        if not torch.compiler.is_compiling():
            torch_refusals.check_layer_options(options)
            torch_refusals.check_layer_inputs(x, context, value, self._widths)
        has_batch = x.ndim == 3
        if not has_batch:
            x, context, value = (None if t is None else t[None] for t in (x, context, value))
        context = x if context is None else context
        value = context if value is None else value
        q, k, v = self._projected(weights, x, context, value)
        q, k = self._turned(q, k, options, is_self=context is x)
        asked = {name: options.pop(f"return_{name}", None) for name in ("weights", "lse", "scores")}
        if self.training and self.dropout > 0.0:
            options["dropout"] = self.dropout
            if options.get("seed") is None:
                options["seed"] = torch_operators.drawn_seed()
        options["head_map"] = self._made_with["head_map"]
        attended, lse = torch_operators.attention(q, k, v, options)
        out = functional.linear(attended.transpose(1, 2).flatten(2), weights["o_proj.weight"], weights.get("o_proj.bias"))
        results = {"out": out} | _beside((q, k, v), asked, options) | ({"lse": lse} if asked["lse"] else {})
        found = [results[name] for name in ("out", "weights", "lse", "scores") if name in results]
        found = found if has_batch else [tensor[0] for tensor in found]
        return found[0] if len(found) == 1 else tuple(found)

    def _projected(
        self, weights: dict[str, torch.Tensor], x: torch.Tensor, context: torch.Tensor, value: torch.Tensor
    ) -> list[torch.Tensor]:
        """q, k and v, (batch, heads, length, dim)."""
        names, counts = ("q_proj", "k_proj", "v_proj"), (self._heads[0], self._heads[1], self._heads[1])
        is_one = value is x and context is x and x.device.type == "cuda" and not torch_operators.records(x, *weights.values())
        if is_one:  # one product fills a GPU where three would leave some of it idle
            weight, bias = self._side_by_side.of(weights)
            rows = [weights[f"{name}.weight"].shape[0] for name in names]
            projected = functional.linear(x, weight, bias).split(rows, -1)
        else:
            projected = [
                functional.linear(tensor, weights[f"{name}.weight"], weights.get(f"{name}.bias"))
                for name, tensor in zip(names, (x, context, value), strict=True)
            ]
        return [y.unflatten(-1, (n, -1)).transpose(1, 2) for y, n in zip(projected, counts, strict=True)]

    def _turned(
        self, q: torch.Tensor, k: torch.Tensor, options: dict[str, Any], *, is_self: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q and k after the rotary embedding, whose positions leave the options."""
        of_queries, of_keys = options.pop("positions", None), options.pop("key_positions", None)
        if self._turning is None:
            if of_queries is not None or of_keys is not None:
                raise heed.Error("positions: given, but rotary is not")
            return q, k
        if of_keys is None and is_self:
            of_keys = of_queries
        said, pairs, dims = self._turning
        is_counted = of_queries is None and of_keys is None
        if is_counted and not torch.compiler.is_compiling() and torch_devices.has_memory((q, k)):
            reach = max(q.shape[2], k.shape[2])
            units = [_counted_units(x.shape[2], reach, x.shape[3], said, x.device) for x in (q, k)]
        else:
            of_queries, of_keys = _positions("positions", of_queries, q), _positions("key_positions", of_keys, k)
            lengths = torch.maximum(of_queries.amax(1), of_keys.amax(1)) + 1
            units = [
                torch_operators.turned_units(positions, lengths, x.shape[3], said).to(x.device)
                for x, positions in ((q, of_queries), (k, of_keys))
            ]
        return tuple(_turn(x, u, pairs, dims or x.shape[3]) for x, u in zip((q, k), units, strict=True))

    def refresh(self) -> None:
        """Makes the next call read the parameters anew."""
        for copy in self._copies.values():
            copy.forget()

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._made_with.items() if value)

    def _make(self) -> heed.AttentionLayer:
        rotary = self._made_with["rotary"]
        arguments = self._made_with | {"rotary": rotary and heed.Rotary(**rotary)}
        layer = heed.AttentionLayer(**arguments)
        self._heads = layer.heads, layer.kv_heads  # which the compiler can read
        self._widths = layer.model_dim, layer.key_dim, layer.value_dim
        self._turning = rotary and (repr(rotary), rotary["pairs"], rotary["dims"])
        self._copies = {
            "cpu": WeightsCopy(loading(layer)),
            "cuda": WeightsCopy(lambda weights: loading(heed.AttentionLayer(**arguments, device="cuda"))(weights)),
        }
        self._side_by_side = self._copies["side by side"] = WeightsCopy(side_by_side)
        return layer

    def _weights(self) -> dict[str, torch.Tensor]:
        """The weights and biases by name, as they are now; parametrised ones are computed."""
        found = {}
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            module = getattr(self, name)
            refuse_more_than_weight_and_bias(name, module)
            found[f"{name}.weight"] = module.weight
            if module.bias is not None:
                found[f"{name}.bias"] = module.bias
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _MADE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._make()


@functools.lru_cache(maxsize=8)
def _counted_units(tokens: int, reach: int, dim: int, said: str, device: torch.device) -> torch.Tensor:
    """turned_units of positions 0, 1, 2, ... in a sequence of `reach` tokens, (1, tokens, dim)."""
    positions, lengths = torch.arange(tokens, device="cpu")[None], torch.tensor([reach], device="cpu")
    with torch.inference_mode(False), torch.no_grad():  # whoever asks next may want gradients
        return torch_operators.turned_units(positions, lengths, dim, said).to(device)


def _positions(name: str, given: Any, x: torch.Tensor) -> torch.Tensor:
    """(batch, length), counted from 0 where none are given."""
    batch, _, length, _ = x.shape
    positions = torch.arange(length, device="cpu") if given is None else torch.as_tensor(given)
    if not torch.compiler.is_compiling():
        torch_refusals.check_positions(name, positions, batch, length)
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
