# SPDX-License-Identifier: Apache-2.0
"""The attention layer as an `nn.Module`; heed.torch hands it on."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.nn.modules import module as hooks

import heed
from heed import _heed, _torch_formula, _torch_operators, _torch_projections, _torch_refusals, _torch_tensors

__all__ = ["AttentionLayer"]

# What a call over a cache has, and one that autograd records does not.
_OF_CACHES = ("cache", "sequences", "counts", "out")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_NAMES_OF_LINEAR, _LINEAR = vars(torch.nn.modules.linear), torch._C._nn.linear  # by which PyTorch's own are known
_CHOICES = ("model_dim", "heads", "kv_heads", "head_dim", "value_dim", "key_dim", "rotary", "head_map", "value_head_dim")


class AttentionLayer(torch.nn.Module):
    """`heed.AttentionLayer` as a module: projections, heads, attention and output projection in one call.

    The arguments are those of heed.AttentionLayer. The parameters are q_proj.weight (heads * head_dim, model_dim),
    k_proj.weight, v_proj.weight and o_proj.weight, as Llama-style checkpoints name them, with .bias where bias is True
    (all four) or "qkv". load_state_dict also takes the names of `nn.MultiheadAttention` and W_q.weight, W_k.weight, ...

    The parameters are read where they lie, at every call, and nothing of them is kept. Where nobody listens and the four projections
    are plain `nn.Linear` modules on the CPU, heed does it all. Everywhere else (autograd, a compiler or tracer, autocast, hooks,
    adapters, another device) the projections are called as modules, and the attention between them is heed's operator.

    That costs a call of one token 1.5 times the time of a frozen layer in float32 and 3.3 times in bfloat16, and one of 2048 tokens
    nothing. `freeze()` packs the weights once, for serving, and lets go of the parameters: call it before decoding token by token.

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
        given = rotary and {name: getattr(rotary, name) for name in ("base", "dims", "pairs", "scaling")}  # can be pickled
        self._made_with = {
            "model_dim": model_dim, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "value_dim": value_dim,
            "key_dim": key_dim, "bias": bias, "dropout": dropout, "rotary": given, "head_map": head_map,
            "value_head_dim": value_head_dim,
        }  # fmt: skip
        heed.AttentionLayer(1, 1, bias=bias, dropout=dropout)  # refuses what is neither
        self.dropout = dropout
        self.sliding_window: int | None = None
        self._frozen: heed.AttentionLayer | None = None
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
        applies, with a seed from PyTorch's generator unless one is given. Weights that are returned have gradients; scores have
        none.
        """
        x, context, value = map(_torch_tensors.waited, (x, context, value))
        for name, tensor in (("x", x), ("context", context), ("value", value)):
            if tensor is not None and not hasattr(tensor, "__torch_function__") or tensor is None and name == "x":
                raise heed.KindError(f"{name}: {type(tensor).__name__} is not a torch.Tensor")
        if self._frozen is not None:
            return self._call_frozen(x, context, value, options)
        lent = self._plain_weights(x, context, value, options)
        if isinstance(lent, tuple):
            drops, seed = self._drops(), options.get("seed")
            if drops and seed is None:
                seed = _torch_operators.drawn_seed()
            if isinstance(seed, torch.Tensor):
                options["seed"] = _torch_operators.checked_seed(seed).item()
            return self._over_lent_weights(self.dropout if drops else 0.0)(lent, x, context, value, **options)
        for name in _OF_CACHES:
            if options.get(name) is not None:
                raise RuntimeError(f"{name}: {lent}")
        return self._in_steps(x, context, value, options)

    def freeze(self) -> AttentionLayer:
        """Packs the weights as they are now, and lets go of the parameters. Returns self.

        A frozen layer is for serving: its weights need not be packed at every call, so that one of a single token takes 0.65 of the
        time in float32 and 0.3 in bfloat16, and one of 2048 tokens about the same (model 768, Xeon with AMX, 2 threads, November
        2026). It has nothing that could be trained, loaded or moved, and refuses to be. On a CUDA device only a frozen one takes calls
        over a cache.
        """
        if self._frozen is not None:
            return self
        for name in _PROJECTIONS:
            _refuse_more_than_linear(name, getattr(self, name))
        weights = {name: parameter.detach() for name, parameter in self._named_weights().items()}
        device = "cuda" if weights["q_proj.weight"].device.type == "cuda" else "cpu"
        biases = {name for name in weights if name.endswith("bias")}
        all_four = {f"{name}.bias" for name in _PROJECTIONS}
        if biases not in (set(), all_four - {"o_proj.bias"}, all_four):
            raise RuntimeError(f"freeze(): heed packs no biases, those of q, k and v, or all four, and there are {sorted(biases)}")
        bias = True if biases == all_four else "qkv" if biases else False
        arguments = self._made_with | {"rotary": self._rotary, "bias": bias, "dropout": self.dropout, "device": device}
        packed = heed.AttentionLayer(**arguments)
        packed.load({name: weight.cpu() for name, weight in weights.items()})
        self.train(False)
        for name in _PROJECTIONS:
            delattr(self, name)
        self._frozen = packed
        return self

    def refresh(self) -> None:
        """Nothing: the parameters are read at every call."""

    def _call_frozen(self, x: torch.Tensor, context: torch.Tensor | None, value: torch.Tensor | None, options: dict[str, Any]) -> Any:
        given = {"x": x, "context": context, "value": value} | options
        if not _torch_tensors.is_unwatched(tuple(given.values())):
            raise RuntimeError(
                "heed: a frozen layer is called under torch.no_grad() or torch.inference_mode(), with plain tensors, and is neither "
                "compiled nor traced; do that before freeze()"
            )
        with _torch_tensors.beside_caches(x):
            return self._frozen(x, context, value, **options)

    def _plain_weights(
        self, x: torch.Tensor, context: torch.Tensor | None, value: torch.Tensor | None, options: dict[str, Any]
    ) -> tuple | str:
        """The eight weights and biases where heed may read them itself; else why it may not."""
        if _torch_tensors.is_traced():
            return "is for plain tensors, and a compiler or tracer looks on"
        modules = [getattr(self, name) for name in _PROJECTIONS]
        for name, module in zip(_PROJECTIONS, modules, strict=True):
            more = _more_than_linear(module)
            if more:
                return f"{name} must be a plain nn.Linear for it, and {more}"
        weights = (*(module.weight for module in modules), *(module.bias for module in modules))
        if not _torch_tensors.is_autocast(x):
            _refuse_other_types(weights[:4], x, context, value)
        for name, weight, shape in zip(_PROJECTIONS, weights, self._shapes, strict=False):
            if weight.shape != shape:  # a rank's share, or fewer heads
                return f"{name}.weight must be {shape} for it, and is {tuple(weight.shape)}"
        given = (x, context, value, *options.values(), *weights)
        if not _torch_tensors.is_unwatched(given):
            return "has no gradient; call the layer under torch.no_grad() or torch.inference_mode(), with plain tensors"
        if any(isinstance(tensor, torch.Tensor) and tensor.device.type != "cpu" for tensor in (x, *weights)):
            return "on this device the layer must be frozen for it; call freeze()"
        if _torch_tensors.is_autocast(x) and options.get("cache") is None:
            return "is not for autocast"
        return weights

    def _in_steps(
        self,
        x: torch.Tensor,
        context: torch.Tensor | None,
        value: torch.Tensor | None,
        options: dict[str, Any],
    ) -> Any:
        """The same call with the projections as modules, each operation one that PyTorch knows."""
        options = {name: _torch_tensors.waited(value) for name, value in options.items()}
        _torch_tensors.check_kinds({"x": x, "context": context, "value": value} | options)
        if x.dtype == torch.float64:
            raise heed.KindError("x.dtype: float64 is none of float32, float16, bfloat16; pass x.float()")
        if not _torch_tensors.is_traced():
            _torch_refusals.check_layer_options(options)
            _torch_refusals.check_layer_inputs(x, context, value, self._widths)
        has_batch = x.ndim == 3
        if not has_batch:
            x, context, value = (None if t is None else t[None] for t in (x, context, value))
        is_self = context is None
        context = x if context is None else context
        value = context if value is None else value
        # By their width: a rank that has some of the heads has as many as its projections make.
        projected, are_joined = self._projected(x, context, value)
        q, k, v = (y.unflatten(-1, (-1, width)).transpose(1, 2) for y, width in zip(projected, self._head_widths, strict=True))
        q, k = self._rotated(q, k, options, is_self=is_self)
        asked = {name: options.pop(f"return_{name}", None) for name in ("weights", "lse", "scores")}
        seed = options.pop("seed", None)
        if seed is not None:
            seed = _torch_operators.checked_seed(seed)
        if self._drops():
            options |= {"dropout": self.dropout, "seed": seed}
        options["head_map"] = self._made_with["head_map"]
        found = _torch_operators.with_seed(_torch_operators.options_of(options))
        attended, lse = _torch_operators.attend(q, k, v, found, are_joined=are_joined)
        results = [self.o_proj(attended.transpose(1, 2).flatten(2))]
        if asked["weights"]:
            weights = _torch_operators.table(q, k, v, found, "weights")
            results.append(weights.mean(1) if asked["weights"] == "average" else weights)
        if asked["lse"]:
            results.append(lse)
        if asked["scores"]:
            results.append(_torch_operators.table(q, k, v, found, asked["scores"]))
        results = results if has_batch else [tensor[0] for tensor in results]
        return results[0] if len(results) == 1 else tuple(results)

    def _drops(self) -> bool:
        """Whether dropout applies; the attribute may have become anything since the layer was made."""
        if self.training and not 0.0 <= self.dropout < 1.0:
            heed.AttentionLayer(1, 1, dropout=self.dropout)  # refuses it
        return self.training and self.dropout > 0.0

    def _projected(self, x: torch.Tensor, context: torch.Tensor, value: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], bool]:
        """(q, k, v) before they are cut into heads, and whether their gradients are better side by side."""
        modules = (self.q_proj, self.k_proj, self.v_proj)
        is_eager = not _torch_tensors.is_traced() and context is x and value is x and not _torch_tensors.is_autocast(x)
        if is_eager and not any(map(_more_than_linear, modules)):
            weights, biases = [module.weight for module in modules], [module.bias for module in modules]
            # Otherwise attention would be asked for gradients that nobody wants.
            are_all_wanted = torch.is_grad_enabled() and (x.requires_grad or all(weight.requires_grad for weight in weights))
            if are_all_wanted and _torch_tensors.are_plain_to_autograd((x, *weights, *biases)):
                are_joined = self._rotary is None
                return _torch_projections.Projections.apply(are_joined, x, *weights, *biases), are_joined
        return (self.q_proj(x), self.k_proj(context), self.v_proj(value)), False

    def _rotated(
        self, q: torch.Tensor, k: torch.Tensor, options: dict[str, Any], *, is_self: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q and k after the rotary embedding, whose positions leave the options."""
        of_queries, of_keys = options.pop("positions", None), options.pop("key_positions", None)
        if self._rotary is None:
            for name, given in (("positions", of_queries), ("key_positions", of_keys)):
                if given is not None:
                    raise heed.Error(f"{name}: given, but rotary is not")
            return q, k
        if of_keys is None and is_self:
            of_keys = of_queries
        is_counted = of_queries is None and of_keys is None
        if torch.onnx.is_in_onnx_export():
            if not is_counted:
                raise heed.Error("positions: an ONNX model of the layer has tokens at 0, 1, 2, ... only")
            units = [_rotation_in_operations(x, self._head_widths[0], self._rotary) for x in (q, k)]
        elif is_counted and _torch_tensors.is_unwatched((q.detach(), k.detach())):
            reach = max(q.shape[2], k.shape[2])
            units = [_counted_rotation(x.shape[2], reach, x.shape[3], self._rotary_text, x.device) for x in (q, k)]
        else:
            of_queries, of_keys = _positions("positions", of_queries, q), _positions("key_positions", of_keys, k)
            has_tokens = _torch_tensors.is_traced() or q.shape[2] * k.shape[2] > 0
            lengths = torch.maximum(of_queries.amax(1), of_keys.amax(1)) + 1 if has_tokens else of_queries.new_ones(len(q))
            units = [
                torch.ops.heed.rotation(positions, lengths, x.shape[3], self._rotary_text).to(x.device)
                for x, positions in ((q, of_queries), (k, of_keys))
            ]
        pairs, dims = self._made_with["rotary"]["pairs"], self._made_with["rotary"]["dims"]
        return tuple(_rotate(x, u, pairs, dims or x.shape[3]) for x, u in zip((q, k), units, strict=True))

    def extra_repr(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self._made_with.items() if value)
        return said if self._frozen is None else f"{said}, frozen"

    def _make(self) -> Any:
        """What follows from the arguments, and cannot be pickled."""
        rotary = self._made_with["rotary"]
        self._rotary = rotary and heed.Rotary(**rotary)
        self._rotary_text = self._rotary and _torch_operators.text_of(self._rotary)
        layer = self._over_lent_weights(0.0)
        self._head_widths = layer.head_dim, layer.head_dim, layer.value_head_dim  # which the compiler can read
        self._shapes = (
            (layer.heads * layer.head_dim, layer.model_dim),
            (layer.kv_heads * layer.head_dim, layer.key_dim),
            (layer.kv_heads * layer.value_head_dim, layer.value_dim),
            (layer.model_dim, layer.heads * layer.value_head_dim),
        )
        self._widths = layer.model_dim, layer.key_dim, layer.value_dim
        return layer

    def _over_lent_weights(self, dropout: float) -> Any:
        made = self.__dict__.get("_lent_layer")
        if made is None or made[0] != dropout:
            arguments = {name: self._made_with[name] for name in _CHOICES} | {"rotary": self._rotary}
            made = self.__dict__["_lent_layer"] = (dropout, _heed._LentLayer(dropout=dropout, **arguments))
        return made[1]

    def _named_weights(self) -> dict[str, torch.Tensor]:
        found = {}
        for name in _PROJECTIONS:
            module = getattr(self, name)
            found[f"{name}.weight"] = module.weight
            if module.bias is not None:
                found[f"{name}.bias"] = module.bias
        return found

    def __getattr__(self, name: str) -> Any:
        if name in _PROJECTIONS and self.__dict__.get("_frozen") is not None:
            raise AttributeError(f"{name}: the layer is frozen, and has let go of its parameters")
        return super().__getattr__(name)

    def _refuse_frozen(self, what: str) -> None:
        if self._frozen is not None:
            raise RuntimeError(f"{what}: the layer is frozen; it has let go of its parameters, and answers with those it packed")

    def train(self, mode: bool = True) -> AttentionLayer:
        if mode:
            self._refuse_frozen("train()")
        return super().train(mode)

    def requires_grad_(self, requires_grad: bool = True) -> AttentionLayer:
        if requires_grad:
            self._refuse_frozen("requires_grad_()")
        return super().requires_grad_(requires_grad)

    def _apply(self, *arguments: Any, **keywords: Any) -> AttentionLayer:
        self._refuse_frozen("to() and its kind")
        return super()._apply(*arguments, **keywords)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._refuse_frozen("load_state_dict()")
        super()._load_from_state_dict(*arguments)

    def _save_to_state_dict(self, *arguments: Any) -> None:
        self._refuse_frozen("state_dict()")
        super()._save_to_state_dict(*arguments)

    def __getstate__(self) -> dict[str, Any]:
        made = ("_head_widths", "_shapes", "_widths", "_rotary", "_rotary_text", "_lent_layer")
        return {name: value for name, value in self.__dict__.items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._make()


def _more_than_linear(module: torch.nn.Module) -> str:
    """Why a projection must be called rather than read; empty where nothing of it would be lost."""
    if type(module) is not torch.nn.Linear:
        return f"it is a {type(module).__name__}"
    if getattr(torch.nn.Linear.forward, "__globals__", None) is not _NAMES_OF_LINEAR:
        return "nn.Linear.forward is patched"
    if functional.linear is not _LINEAR:
        return "F.linear is patched"
    own = module.__dict__
    if "forward" in own:
        return "it has a forward of its own"
    if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]:
        return "it has hooks"
    if hooks._global_forward_hooks or hooks._global_forward_pre_hooks or hooks._global_backward_hooks or hooks._global_backward_pre_hooks:
        return "there are hooks on all modules"
    if own["_parameters"].keys() != {"weight", "bias"} or own["_modules"]:
        return "it has more than a weight and a bias"
    if own.get("_compiled_call_impl") is not None:
        return "it is compiled"
    return ""


def _refuse_other_types(
    weights: tuple[torch.Tensor, ...], x: torch.Tensor, context: torch.Tensor | None, value: torch.Tensor | None
) -> None:
    """What nn.Linear refuses, in one sentence whoever listens."""
    of_keys = ("x", x) if context is None else ("context", context)
    of_values = of_keys if value is None else ("value", value)
    for projection, weight, (name, tensor) in zip(_PROJECTIONS, weights, (("x", x), of_keys, of_values, ("x", x)), strict=True):
        if weight.dtype != tensor.dtype != torch.float64:  # which no layer takes
            _torch_refusals.refuse_type_of_input(name, tensor, f"{projection}.weight", weight)


def _refuse_more_than_linear(name: str, module: torch.nn.Module) -> None:
    more = _more_than_linear(module)
    if more:
        raise RuntimeError(f"freeze(): {name} must be a plain nn.Linear, and {more}; merge or remove that first")


@functools.lru_cache(maxsize=8)
def _counted_rotation(tokens: int, reach: int, dim: int, rotary: str, device: torch.device) -> torch.Tensor:
    """The rotation of positions 0, 1, 2, ... in a sequence of `reach` tokens, (1, tokens, dim)."""
    positions = torch.arange(tokens, device="cpu", dtype=torch.int64)[None]
    lengths = torch.tensor([reach], device="cpu", dtype=torch.int64)
    with torch.inference_mode(False), torch.no_grad():  # whoever asks next may want gradients
        return torch.ops.heed.rotation(positions, lengths, dim, rotary).to(device)


def _rotation_in_operations(x: torch.Tensor, dim: int, rotary: heed.Rotary) -> torch.Tensor:
    """The same for a graph that knows no operator of heed; a scaled one for as many tokens as there are while it is made."""
    unit = _torch_operators.unit_pairs(dim, rotary)
    if rotary.scaling is not None:
        tokens = int(x.shape[2])
        units = np.broadcast_to(unit, (1, 1, tokens, dim)).copy()
        return torch.tensor(heed.rotate(units, np.arange(tokens)[None], rotary)[:, 0].tolist(), dtype=torch.float32)
    rotated = dim if rotary.dims is None else rotary.dims
    frequencies = torch.tensor([rotary.base ** (-2 * n / rotated) for n in range(rotated // 2)], dtype=torch.float64)
    angles = _torch_formula.counted(x).double()[:, None] * frequencies
    cos, sin = torch.cos(angles).float(), torch.sin(angles).float()
    pairs = torch.cat([cos, sin], -1) if rotary.pairs == "halves" else torch.stack([cos, sin], -1).flatten(-2)
    return functional.pad(pairs, (0, dim - rotated), value=1.0)[None]


def _positions(name: str, given: Any, x: torch.Tensor) -> torch.Tensor:
    """(batch, length), counted from 0 where none are given."""
    batch, _, length, _ = x.shape
    positions = torch.arange(length, device="cpu", dtype=torch.int64) if given is None else torch.as_tensor(given)
    _torch_tensors.check_kinds({name: positions})
    if not _torch_tensors.is_traced():
        _torch_refusals.check_positions(name, positions, batch, length)
    return positions.expand(batch, length).contiguous()


def _rotate(x: torch.Tensor, units: torch.Tensor, pairs: str, dims: int) -> torch.Tensor:
    """x (batch, heads, length, dim) rotated as `units` (batch, length, dim) say."""
    rotating, rest = x[..., :dims], x[..., dims:]
    units = units[:, None, :, :dims]  # float32, and so is what is rotated until it is rounded
    if pairs == "halves":
        (x0, x1), (cos, sin) = rotating.chunk(2, -1), units.chunk(2, -1)
        rotated = torch.cat([x0 * cos - x1 * sin, x0 * sin + x1 * cos], -1)
    else:
        x0, x1, cos, sin = rotating[..., ::2], rotating[..., 1::2], units[..., ::2], units[..., 1::2]
        rotated = torch.stack([x0 * cos - x1 * sin, x0 * sin + x1 * cos], -1).flatten(-2)
    return torch.cat([rotated.to(x.dtype), rest], -1)


def _rename(module: torch.nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Gives what has the names of nn.MultiheadAttention or of the paper (W_q.weight) the module's own, in the copy being loaded."""
    errors = rest[-1]
    if module._frozen is not None:
        return  # it refuses
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
