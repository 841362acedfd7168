# SPDX-License-Identifier: Apache-2.0
"""heed for PyTorch: a drop-in for `F.scaled_dot_product_attention`, and the attention layer as an `nn.Module`.

>>> import torch, heed.torch
>>> q, k, v = torch.randn(1, 8, 5, 64), torch.randn(1, 2, 5, 64), torch.randn(1, 2, 5, 64)
>>> heed.torch.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).shape
torch.Size([1, 8, 5, 64])

There is no backward pass yet: where autograd would need one, the call is refused with a sentence that says so.
"""

from __future__ import annotations

from typing import Any

import torch

import heed
from heed import _heed

_heed.share_openmp_threads()  # PyTorch's, which are awake anyway

__all__ = ["AttentionLayer", "dropout_seed", "refuse_gradients", "scaled_dot_product_attention"]


def refuse_gradients(**tensors: torch.Tensor | None) -> None:
    """Raises RuntimeError if autograd would record an operation on one of these."""
    if not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad:
            raise RuntimeError(
                f"{name}: requires a gradient, and heed has no backward pass yet; "
                f"pass {name}.detach(), or call it under torch.no_grad() or torch.inference_mode()"
            )


def dropout_seed() -> int:
    """A seed for heed's dropout, drawn from PyTorch's generator: `torch.manual_seed` makes it repeat."""
    return int(torch.randint(2**63 - 1, ()))


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, argument for argument, without a backward pass.

    query is (..., heads, queries, dim), key (..., heads, keys, dim), value (..., heads, keys, value_dim), attn_mask
    broadcasts to (..., heads, queries, keys): True attends, or floats to add. Returns (..., heads, queries,
    value_dim). Unlike PyTorch's, a query that sees no key yields zeros, and what is masked is never read.

    >>> q = torch.ones(2, 3, 4, 8)
    >>> heed.torch.scaled_dot_product_attention(q, q, q, is_causal=True).shape
    torch.Size([2, 3, 4, 8])
    """
    refuse_gradients(query=query, key=key, value=value, attn_mask=attn_mask)
    if torch.is_autocast_enabled("cpu"):
        query, key, value, attn_mask = map(_as_autocast_says, (query, key, value, attn_mask))
    if dropout_p == 0.0:
        return heed.scaled_dot_product_attention(
            query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa
        )
    # heed.attention lets the seed be said.
    if attn_mask is not None and is_causal:
        raise ValueError("attn_mask: given although is_causal is True; PyTorch refuses both as well")
    options = {"scale": scale, "dropout": dropout_p, "seed": dropout_seed()}
    options["causal"] = "starts" if is_causal else None
    return _in_four_axes((query, key, value), attn_mask, options, shares_heads=enable_gqa)


def _as_autocast_says(tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None or not tensor.is_floating_point():
        return tensor
    return tensor.to(torch.get_autocast_dtype("cpu"))


def _in_four_axes(
    qkv: tuple[torch.Tensor, ...], mask: torch.Tensor | None, options: dict[str, Any], *, shares_heads: bool
) -> torch.Tensor:
    """heed.attention of tensors with any leading axes, which broadcast; all but the heads become the batch."""
    rank = max(tensor.ndim for tensor in qkv)
    axes = max(4, rank)
    spread = [tensor[(None,) * (axes - tensor.ndim)] for tensor in qkv]
    common = axes - 3 if shares_heads else axes - 2
    leading = torch.broadcast_shapes(*(tensor.shape[:common] for tensor in spread))
    batch = leading[: axes - 3]
    q, k, v = (tensor.expand(leading + tensor.shape[common:]).flatten(0, axes - 4) for tensor in spread)
    if mask is not None:
        mask = mask[(None,) * (axes - mask.ndim)]
        mask = mask.expand(batch + mask.shape[axes - 3 :]).flatten(0, axes - 4)
        options["keep" if mask.dtype == torch.bool else "bias"] = mask
    out = heed.attention(q, k, v, **options)
    return out.reshape((batch + out.shape[1:])[axes - rank :])


class AttentionLayer(torch.nn.Module):
    """`heed.AttentionLayer` as a module: projections, heads, attention and output projection in one call.

    The arguments are those of heed.AttentionLayer. The parameters are q_proj.weight (heads * head_dim, model_dim),
    k_proj.weight, v_proj.weight and o_proj.weight, as Llama-style checkpoints name them, with .bias where bias is True
    (all four) or "qkv". load_state_dict also takes the names of `nn.MultiheadAttention` and W_q.weight, W_k.weight, ...

    heed keeps its own packed copy of the weights and renews it when one of them has changed. Autograd's bookkeeping
    tells, so a change that goes around it (`parameter.data.copy_`) needs a `refresh()`. Weights may be tied to others, and
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
        applies, with a seed from PyTorch's generator unless one is given.
        """
        weights = self._weights()
        refuse_gradients(x=x, context=context, value=value, **weights)
        layer = self._renewed(weights)
        if layer.training != self.training:
            layer.train(self.training)
        if self.training and self.dropout > 0.0:
            options.setdefault("seed", dropout_seed())
        return layer(x, context, value, **options)

    def refresh(self) -> None:
        """Makes the next call read the parameters anew."""
        self._seen = None

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._made_with.items() if value)

    def _make(self) -> heed.AttentionLayer:
        rotary = self._made_with["rotary"]
        arguments = self._made_with | {"rotary": rotary and heed.Rotary(**rotary)}
        self._layer = heed.AttentionLayer(**arguments)
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
        return {name: value for name, value in self.__dict__.items() if name not in ("_layer", "_seen")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._make()


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
