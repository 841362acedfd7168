# SPDX-License-Identifier: Apache-2.0
"""heed's attention as operators of PyTorch, so that autograd, compilers and tracers know what it does.

`torch.ops.heed.attention` takes q, k and v and then every option of heed.attention, tensors first: an `Options` says in which order.
`torch.ops.heed.attention_backward` are its gradients by q, k, v, the bias and the sink, and `torch.ops.heed.attention_table` the
weights or scores, (queries, keys) each.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._C import _functorch

import heed
from heed import _torch_formula, _torch_projections, _torch_tensors

__all__ = ["Options", "attend", "attend_plainly", "checked_seed", "drawn_seed", "options_of", "table", "text_of", "unit_pairs", "with_seed"]

_NO_LIMIT = 2**63 - 1  # of a window
_WORDS_OF_ALIGNMENT = ("starts", "ends")


class Options(NamedTuple):
    """The options of heed.attention in the order and the types that the operators have them.

    causal is "equal" where the caller said True, which wants as many queries as keys. A window has two numbers, how many keys before
    and after, and what is aligned may say how.
    """

    bias: Tensor | None = None
    sink: Tensor | None = None
    keep: Tensor | None = None
    hide: Tensor | None = None
    tree: Tensor | None = None
    alibi: Tensor | None = None
    key_lengths: Tensor | None = None
    document: Tensor | None = None
    query_document: Tensor | None = None
    query_starts: Tensor | None = None
    key_starts: Tensor | None = None
    query_lengths: Tensor | None = None
    seed: Tensor | None = None
    causal: str | None = None
    window: Sequence[int] | None = None
    window_align: str | None = None
    document_align: str | None = None
    alibi_align: str | None = None
    front: int = 0
    scale: float | None = None
    softcap: float | None = None
    dropout: float = 0.0
    head_map: str = "interleaved"
    kernel: str | None = None
    threads: int | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in zip(_TENSORS, self, strict=False) if value is not None}

    def keywords(self) -> dict[str, Any]:
        """heed.attention's own."""
        said = {name: value for name, value in self._asdict().items() if value is not None}
        for name in _ALIGNED:
            align = said.pop(f"{name}_align", None)
            if align is not None:
                said[name] = (said[name], align)
        if self.causal == "equal":
            said["causal"] = True
        if self.window is not None:
            align = said.pop("window_align", None)
            said["window"] = tuple(self.window) + ((align,) if align else ())
        if self.seed is not None:
            said["seed"] = self.seed.item()
        if self.dropout == 0.0:
            del said["dropout"]
        if self.front == 0:
            del said["front"]
        return said


_TENSORS = Options._fields[: Options._fields.index("causal")]
_FLOATS = heed._heed.keywords_of("floats", "sinks", "aligned slopes")
_INTEGERS = heed._heed.keywords_of("lengths", "starts", "ids", "aligned ids")
_NUMBERS = heed._heed.keywords_of("number", "probability")
_ALIGNED = heed._heed.keywords_of("aligned ids", "aligned slopes")
_ELSEWHERE = heed._heed.keywords_of("elsewhere")
_WITHOUT_GRADIENT = {
    "alibi": "pass the bias that it makes",
    "scale": "multiply q by it, and say scale=1.0",
    "softcap": "there is none by it",
}


def options_of(said: dict[str, Any]) -> Options:
    """The keywords of heed.attention as the operators take them. Arrays of other libraries are copied: backward reads them again."""
    found: dict[str, Any] = {}
    for name, value in said.items():
        if value is None:
            continue
        if name in _ELSEWHERE:
            raise heed.KindError(f"{name}: is no option here, where every result has a gradient; heed.attention takes it")
        _refuse_lost_gradient(name, value)
        if name in _ALIGNED:
            value, found[f"{name}_align"] = _anchored(value)
        if name == "causal":
            found[name] = _causal(value)
        elif name == "window":
            found[name], found["window_align"] = _window(value)
        elif name == "seed":
            found[name] = checked_seed(value)
        elif name in _TENSORS:
            found[name] = _tensor(name, value)
        elif name in _NUMBERS:
            found[name] = _number(name, value)
        elif name in Options._fields and not name.endswith("_align"):
            found[name] = value
        else:
            from heed._hints import unknown_keyword

            known = [field for field in Options._fields if not field.endswith("_align")]
            raise heed.KindError(unknown_keyword(name, known))
    return Options(**found)


def _refuse_lost_gradient(name: str, value: Any) -> None:
    instead = _WITHOUT_GRADIENT.get(name)
    if instead is not None and isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled():
        raise heed.KindError(f"{name}: requires grad, and heed has no gradient by it; {instead}, or pass .detach()")


def _anchored(value: Any) -> tuple[Any, str | None]:
    is_pair = isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str)
    return value if is_pair else (value, None)


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return _torch_tensors.waited(value)
    dtype = torch.float32 if name in _FLOATS and isinstance(value, (list, tuple)) else None
    try:
        made = torch.as_tensor(value, dtype=dtype, device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise heed.KindError(f"{name}: {type(value).__name__} is not an array ({error})") from None
    made = made.clone() if hasattr(value, "__dlpack__") else made
    return made.to(torch.int64) if name in _INTEGERS and made.numel() == 0 else made


def _causal(value: Any) -> str | None:
    if value is True:
        return "equal"
    if value is False:
        return None
    if not isinstance(value, str):
        raise heed.KindError(f'causal: {type(value).__name__} is not True, False, "starts" or "ends"')
    if value not in _WORDS_OF_ALIGNMENT:
        raise heed.Error(f'causal: "{value}" is none of "starts", "ends"')
    return value


def _window(value: Any) -> tuple[list[int], str | None]:
    if not isinstance(value, (tuple, list)) or len(value) not in (2, 3):
        raise heed.KindError(f'window: {type(value).__name__} is not (left, right) or (left, right, "starts" or "ends")')
    return [_NO_LIMIT if reach is None else reach for reach in value[:2]], value[2] if len(value) == 3 else None


def checked_seed(value: Any) -> Tensor:
    """64 bits without a sign. A compiler keeps one that was drawn, or that is another in every call, as it is: it is not read here."""
    if isinstance(value, Tensor) and torch.compiler.is_compiling():
        return value
    try:
        is_uint64 = isinstance(value, Tensor) and value.dtype == torch.uint64  # whose __index__ has 63 bits
        is_number = isinstance(value, (int, torch.SymInt))
        number = value if is_number else value.item() if is_uint64 and value.numel() == 1 else operator.index(value)
    except TypeError:
        raise heed.KindError(f"seed: {type(value).__name__} is not an integer") from None
    if _is_known(number < 0) or _is_known(number >= 2**64):
        raise heed.Error(f"seed: {number} is outside [0, {2**64 - 1}]")
    if isinstance(value, Tensor):
        return value
    return torch.scalar_tensor(number, dtype=torch.uint64 if _is_known(number >= 2**63) else torch.int64, device="cpu")


def _is_known(condition: Any) -> bool:
    """Whether it holds, as far as a compiler can tell that knows a number by its name alone."""
    if not torch.compiler.is_compiling():
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import guard_or_false  # which takes 0.3 s to import

    return guard_or_false(condition)


def _number(name: str, value: Any) -> Any:
    if isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and not isinstance(value, bool):
        return value
    if isinstance(value, Tensor) and value.numel() != 1:
        raise heed.KindError(f"{name}: a tensor of {value.numel()} elements is not a number")
    try:
        return float(value if not isinstance(value, (str, bytes)) else None)
    except (TypeError, ValueError):
        raise heed.KindError(f"{name}: {type(value).__name__} is not a number") from None


def drawn_seed() -> Tensor:
    """A seed for heed's dropout out of PyTorch's generator: `torch.manual_seed` makes it repeat."""
    return torch.randint(2**63 - 1, (), device="cpu", dtype=torch.int64)


def with_seed(options: Options) -> Options:
    """A seed for dropout that was given none. Nobody looks at it, so that a tracer may draw another at every run."""
    needs_one = options.dropout != 0.0 and options.seed is None
    return options._replace(seed=drawn_seed()) if needs_one else options


def attend(q: Tensor, k: Tensor, v: Tensor, options: Options, *, are_joined: bool = False) -> tuple[Tensor, Tensor]:
    """(out, lse) of heed.attention, (batch, heads, queries, value_dim) and (batch, heads, queries); out lies as q does.

    are_joined: the heads of q, k and v are the columns of projections of one x, and so are those of their gradients, side by side.
    """
    q, k, v = map(_torch_tensors.waited, (q, k, v))  # a projection of a rank may hand on such
    arrays = (q, k, v, *options.tensors.values())
    if _torch_tensors.is_unwatched(arrays):
        return _attention(q, k, v, options)
    if _torch_tensors.is_watched_by_autograd_alone(arrays):
        return HeedAttention.apply(q, k, v, options.bias, options.sink, options, None, are_joined)
    _check((q, k, v), options)
    if torch.onnx.is_in_onnx_export():
        return _torch_formula.attention(q, k, v, options)
    return torch.ops.heed.attention(q, k, v, *options)


def attend_plainly(q: Tensor, k: Tensor, v: Tensor, causal: str | None, scale: float | None) -> Tensor:
    """What `attend` makes of tensors that nobody watches but autograd. A small call is mostly the road to it."""
    options = Options(causal=causal, scale=scale)
    if _torch_tensors.records_gradients((q, k, v)):
        return HeedAttention.apply(q, k, v, None, None, options, None)[0]
    return heed.attention(q, k, v, out=_empty_out(q, v), **options.keywords())


def table(q: Tensor, k: Tensor, v: Tensor, options: Options, stage: str) -> Tensor:
    """(batch, heads, queries, keys): the weights, or the scores at a stage, as return_weights= and return_scores= have them."""
    arrays = (q, k, v, *options.tensors.values())
    if _torch_tensors.is_unwatched(arrays):
        return _table(q, k, v, options, stage)
    if _torch_tensors.is_watched_by_autograd_alone(arrays):
        return HeedTable.apply(q, k, v, options.bias, options.sink, options, stage, None)
    _check((q, k, v), options)
    if torch.onnx.is_in_onnx_export():
        return _torch_formula.table(q, k, options, stage)
    return torch.ops.heed.attention_table(q, k, v, *options, stage)


def _check(qkv: tuple[Tensor, ...], options: Options) -> None:
    named = dict(zip("qkv", qkv, strict=True)) | options.tensors
    _torch_tensors.check_kinds(named)
    for name, tensor in named.items():
        if tensor.is_meta != qkv[0].is_meta and name not in ("seed", *_INTEGERS) or tensor.is_meta > qkv[0].is_meta:
            raise heed.KindError(f"{name}.device: {tensor.device} is not that of q: {qkv[0].device}")
    if not torch.compiler.is_compiling():
        _torch_tensors.refuse_transforms(named.values())


def _empty_out(q: Tensor, v: Tensor) -> Tensor:
    """(batch, heads, queries, value_dim), with the strides that PyTorch's attention gives its result."""
    batch, heads, queries, _ = q.shape
    if q.stride(3) == 1 and q.shape[3] == v.shape[3]:
        return torch.empty_like(q)
    if q.stride(3) == 1 and q.stride(1) < q.stride(2):  # the heads of a token side by side, as a projection has them
        return q.new_empty(batch, queries, heads, v.shape[3]).transpose(1, 2)
    return q.new_empty(batch, heads, queries, v.shape[3])


def _attention(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    out = _empty_out(q, v)
    if options.query_lengths is not None:
        out.zero_()  # rows that are not there are left as they are
    _, lse = heed.attention(q, k, v, out=out, return_lse=True, **options.keywords())
    return out, lse


def _table(q: Tensor, k: Tensor, v: Tensor, options: Options, stage: str) -> Tensor:
    asked = {"return_weights": True} if stage == "weights" else {"return_scores": stage}
    return heed.attention(q, k, v, **asked, **options.keywords())[1]


_TYPES = {"Tensor": "Tensor", "str": "str", "float": "float", "int": "SymInt", "Sequence[int]": "SymInt[]"}


def _schema() -> str:
    """The fields of Options as the schema of an operator has them: "Tensor? bias, ..., str? kernel"."""
    types = {name: type.__forward_arg__.split(" | ") for name, type in Options.__annotations__.items()}
    return ", ".join(f"{_TYPES[type]}{'?' * len(or_none)} {name}" for name, (type, *or_none) in types.items())


_OPTIONS = _schema()

_LIBRARY = torch.library.Library("heed", "DEF")
_LIBRARY.define(f"attention(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)", tags=torch.Tag.pt2_compliant_tag)
_LIBRARY.define(
    f"attention_backward(Tensor? out_gradient, Tensor? lse_gradient, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, {_OPTIONS}, "
    "bool[5] wanted) -> Tensor[]",
    tags=torch.Tag.pt2_compliant_tag,
)
_LIBRARY.define(f"attention_table(Tensor q, Tensor k, Tensor v, {_OPTIONS}, str stage) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
_LIBRARY.define("rotation(Tensor positions, Tensor lengths, SymInt dim, str rotary) -> Tensor", tags=torch.Tag.pt2_compliant_tag)

_BY = ("q", "k", "v", "bias", "sink")  # what there are gradients by


def _on_one_device(named: dict[str, Tensor]) -> None:
    """Where only shapes are known: what the kernels would refuse, before an uninitialised result is made."""
    q = named["q"]
    for name in ("k", "v", "bias", "sink"):
        tensor = named.get(name)
        if tensor is not None and tensor.device != q.device:
            raise heed.KindError(f"{name}.device: {tensor.device} is not that of q: {q.device}")


@torch.library.impl(_LIBRARY, "attention", "CompositeExplicitAutograd")
def _run_attention(q: Tensor, k: Tensor, v: Tensor, *said: Any) -> tuple[Tensor, Tensor]:
    options = Options(*said)
    if q.is_meta or k.is_meta or v.is_meta:
        return _shapes_of_attention(q, k, v, *said)
    return _attention(q, k, v, options)


@torch.library.register_fake("heed::attention", lib=_LIBRARY)
def _shapes_of_attention(q: Tensor, k: Tensor, v: Tensor, *said: Any) -> tuple[Tensor, Tensor]:
    _on_one_device({"q": q, "k": k, "v": v} | Options(*said).tensors)
    return _empty_out(q, v), q.new_empty(q.shape[:3], dtype=_torch_formula.computed_in(q))


@torch.library.impl(_LIBRARY, "attention_table", "CompositeExplicitAutograd")
def _run_table(q: Tensor, k: Tensor, v: Tensor, *said: Any) -> Tensor:
    if q.is_meta or k.is_meta or v.is_meta:
        return _shape_of_table(q, k, v, *said)
    return _table(q, k, v, Options(*said[:-1]), said[-1])


@torch.library.register_fake("heed::attention_table", lib=_LIBRARY)
def _shape_of_table(q: Tensor, k: Tensor, v: Tensor, *said: Any) -> Tensor:
    _on_one_device({"q": q, "k": k, "v": v} | Options(*said[:-1]).tensors)
    return q.new_empty(*q.shape[:3], k.shape[2])


def _empty_gradient(name: str, tensor: Tensor) -> Tensor:
    """By q, k or v: it lies as its argument does, so that a projection's heads need no copy on their way back either."""
    return torch.empty_like(tensor) if name in "qkv" else tensor.new_empty(tensor.shape)


class Saved(NamedTuple):
    """What a forward pass leaves for its gradients."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor


def _joined_gradients(saved: Saved) -> list[Tensor]:
    """By q, k and v, (batch, heads, tokens, dim) each: columns of one matrix that has a row for each token."""
    three = saved[:3]
    columns = _torch_projections.side_by_side([x.shape[1] * x.shape[3] for x in three], saved.q.transpose(1, 2))
    return [part.unflatten(-1, (x.shape[1], x.shape[3])).transpose(1, 2) for part, x in zip(columns, three, strict=True)]


def _gradients(
    by: tuple[Tensor | None, Tensor | None], saved: Saved, options: Options, wanted: Sequence[bool], *, are_joined: bool = False
) -> Sequence[Tensor]:
    """By those of q, k, v, the bias and the sink that are wanted; `by` are those by out and by its log-sum-exp."""
    keywords = options.keywords()
    keywords.pop("kernel", None)  # one of the forward pass
    names = tuple(name for name, is_wanted in zip(_BY, wanted, strict=True) if is_wanted)
    if are_joined and all(wanted[:3]):
        into = _joined_gradients(saved)
    else:
        into = [_empty_gradient(name, tensor) for name, tensor in zip("qkv", saved, strict=False) if name in names]
    by_out = torch.zeros_like(saved.out) if by[0] is None else by[0]
    return heed.attention_backward(by_out, *saved, lse_gradient=by[1], by=names, into=into, **keywords)


@torch.library.impl(_LIBRARY, "attention_backward", "CompositeExplicitAutograd")
def _run_backward(
    out_gradient: Tensor | None, lse_gradient: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *said: Any
) -> list[Tensor]:
    *options, wanted = said
    return list(_gradients((out_gradient, lse_gradient), Saved(q, k, v, out, lse), Options(*options), wanted))


@torch.library.register_fake("heed::attention_backward", lib=_LIBRARY)
def _shapes_of_backward(
    out_gradient: Tensor | None, lse_gradient: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *said: Any
) -> list[Tensor]:
    named = {"q": q, "k": k, "v": v} | Options(*said[:-1]).tensors
    return [_empty_gradient(name, named[name]) for name, is_wanted in zip(_BY, said[-1], strict=True) if is_wanted]


def _save(ctx: Any, tensors: Sequence[Tensor], options: Options) -> None:
    named = options.tensors
    ctx.save_for_backward(*tensors, *named.values())
    ctx.named = tuple(named)
    ctx.rest = options._replace(**dict.fromkeys(named)) if named else options


def _saved_options(ctx: Any, tensors: Sequence[Tensor]) -> Options:
    return ctx.rest._replace(**dict(zip(ctx.named, tensors, strict=True))) if ctx.named else ctx.rest


def _differentiate_attention(ctx: Any, *by: Tensor | None) -> list[Tensor | None]:
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    saved, options, wanted = Saved(q, k, v, out, lse), _saved_options(ctx, tensors), ctx.needs_input_grad[:5]
    if _are_many_at_once(by):
        named = _many_gradients(by, q, k, v, options)
        return [named.get(name) if is_wanted else None for name, is_wanted in zip(_BY, wanted, strict=True)]
    if _torch_tensors.is_unwatched((*by, *saved, *tensors)):
        found = iter(_gradients(by, saved, options, wanted, are_joined=ctx.are_joined))
    else:
        found = iter(torch.ops.heed.attention_backward(*by, *saved, *options, list(wanted)))
    return [next(found) if is_wanted else None for is_wanted in wanted]


def _are_many_at_once(gradients: Sequence[Tensor | None]) -> bool:
    """Whether they have one more axis, which PyTorch alone sees (is_grads_batched, jacobian(vectorize=True), gradcheck)."""
    if torch.compiler.is_compiling():
        return False
    return any(gradient is not None and _functorch.is_legacy_batchedtensor(gradient) for gradient in gradients)


def _many_gradients(
    by: tuple[Tensor | None, Tensor | None], q: Tensor, k: Tensor, v: Tensor, options: Options
) -> dict[str, Tensor]:
    """By PyTorch's own operations, which know that axis, with the weights in memory."""
    if options.query_starts is not None:
        raise RuntimeError("heed: many gradients of packed sequences at once are not computed; ask for them one by one")
    weights = torch.ops.heed.attention_table(q, k, v, *options, "weights")
    return _torch_formula.attention_backward(by, (q, k, v), _tables((q, k, v), weights, options), options)


def _tables(qkv: tuple[Tensor, ...], weights: Tensor, options: Options) -> _torch_formula.Tables:
    q, k, v = qkv
    plain = options._replace(dropout=0.0, seed=None)
    undropped = weights if options.dropout == 0.0 else torch.ops.heed.attention_table(q, k, v, *plain, "weights")
    capped = None if options.softcap is None else torch.ops.heed.attention_table(q, k, v, *plain, "softcapped")
    of_sink = None
    if options.sink is not None:  # 1 less the sum of weights would be their rounding
        lse = torch.ops.heed.attention(q, k, v, *plain)[1]
        of_sink = torch.exp(options.sink.to(lse.dtype)[..., None] - lse).masked_fill(options.sink[..., None] == -torch.inf, 0.0)
    return _torch_formula.Tables(weights, undropped, capped, of_sink)


def _save_nothing(ctx: Any, inputs: tuple, output: Any) -> None:
    pass


def _refuse_twice(ctx: Any, *gradients: Any) -> tuple:
    raise RuntimeError(
        "heed: the gradient of a gradient of attention (double backward) is not computed; call backward() without create_graph, "
        "or use torch.nn.functional.scaled_dot_product_attention there"
    )


def _differentiate_table(ctx: Any, gradient: Tensor) -> tuple:
    if ctx.stage != "weights":
        raise RuntimeError(
            f'heed: scores (return_scores="{ctx.stage}") have no gradient; detach() what becomes of them, or make them from q and k'
        )
    q, k, v, weights, *tensors = ctx.saved_tensors
    options = _saved_options(ctx, tensors)
    found = _torch_formula.weights_backward(gradient, None, (q, k), _tables((q, k, v), weights, options), options)
    return tuple(found.get(name) if is_needed else None for name, is_needed in zip(_BY, ctx.needs_input_grad, strict=False))


# What torch.library.register_autograd makes of an operator, but for the defaults of its arguments: it looks for them in the schema,
# which makes 0.9 ms of a call with 28 arguments. None of these has a default. `keys` are the dispatch keys, or None where nobody but
# autograd watches: the dispatcher would take 0.1 ms.


def _below_autograd(name: str, keys: Any, inputs: Sequence[Any]) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return getattr(torch.ops.heed, name).default.redispatch(keys & torch._C._after_autograd_keyset, *inputs)


class HeedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sink: Tensor | None,
        options: Options,
        keys: Any,
        are_joined: bool = False,
    ) -> tuple[Tensor, Tensor]:
        if bias is not None or sink is not None:
            options = options._replace(bias=bias, sink=sink)
        output = _attention(q, k, v, options) if keys is None else _below_autograd("attention", keys, (q, k, v, *options))
        _save(ctx, (q, k, v, *output), options)
        ctx.are_joined = are_joined
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple:
        return (*_differentiate_attention(ctx, *gradients), None, None, None)


class HeedTable(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sink: Tensor | None, options: Options, stage: str, keys: Any
    ) -> Tensor:
        options = options._replace(bias=bias, sink=sink)
        inputs = (q, k, v, *options, stage)
        output = _table(q, k, v, options, stage) if keys is None else _below_autograd("attention_table", keys, inputs)
        _save(ctx, (q, k, v, output), options)
        ctx.stage = stage
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:
        return (*_differentiate_table(ctx, gradient), None, None, None)


def _register_autograd(name: str, function: type[torch.autograd.Function]) -> None:
    def recorded(keys: Any, *inputs: Any) -> Any:
        if not _torch_tensors.records_gradients(inputs):
            return _below_autograd(name, keys, inputs)
        said, rest = inputs[3 : 3 + len(Options._fields)], inputs[3 + len(Options._fields) :]
        options = Options(*said)
        return function.apply(*inputs[:3], options.bias, options.sink, options, *rest, keys)

    _LIBRARY.impl(name, recorded, "Autograd", with_keyset=True)


_register_autograd("attention", HeedAttention)
_register_autograd("attention_table", HeedTable)
torch.library.register_autograd("heed::attention_backward", _refuse_twice, setup_context=_save_nothing, lib=_LIBRARY)


def text_of(rotary: heed.Rotary) -> str:
    """Its arguments as JSON: what the operator is handed."""
    return json.dumps({name: getattr(rotary, name) for name in ("base", "dims", "pairs", "scaling")})


@functools.lru_cache(maxsize=16)
def _rotary_of(said: str) -> heed.Rotary:
    return heed.Rotary(**json.loads(said))


@torch.library.impl(_LIBRARY, "rotation", "CompositeExplicitAutograd")
def _run_rotation(positions: Tensor, lengths: Tensor, dim: int, said: str) -> Tensor:
    """How a rotary embedding rotates the first of every pair, (batch, length, dim): a pair of it is (a * cos, a * sin).

    positions is (batch, length), lengths (batch,).
    """
    if positions.is_meta:
        return _shape_of_rotation(positions, lengths, dim, said)
    rotary = _rotary_of(said)
    unit = torch.from_numpy(unit_pairs(dim, rotary))
    units = unit.expand(*positions.shape[:1], 1, *positions.shape[1:], dim).contiguous()
    return heed.rotate(units, positions, rotary, lengths=lengths)[:, 0]


def unit_pairs(dim: int, rotary: heed.Rotary) -> np.ndarray:
    """(dim,): (1, 0) for every pair that is rotated, and 1 for what is not."""
    unit = np.zeros(dim, np.float32)
    rotated = dim if rotary.dims is None else rotary.dims
    unit[rotated:] = 1
    unit[slice(0, rotated // 2) if rotary.pairs == "halves" else slice(0, rotated, 2)] = 1
    return unit


@torch.library.register_fake("heed::rotation", lib=_LIBRARY)
def _shape_of_rotation(positions: Tensor, lengths: Tensor, dim: int, said: str) -> Tensor:
    return positions.new_empty((*positions.shape, dim), dtype=torch.float32)
