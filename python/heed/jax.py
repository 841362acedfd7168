# SPDX-License-Identifier: Apache-2.0
"""heed for JAX: attention that XLA calls by itself, inside `jit`, `grad`, `vmap`, `checkpoint` and `shard_map`, on the CPU and on CUDA.

>>> import jax, heed.jax
>>> q = k = v = jax.numpy.ones((1, 8, 16, 64))     # (batch, heads, length, dim)
>>> jax.jit(lambda q, k, v: heed.jax.attention(q, k, v, causal=True))(q, k, v).shape
(1, 8, 16, 64)

Nothing is copied and no Python runs while XLA does: the handlers are C++, and write into XLA's buffers. Gradients are heed's own, the
same bits every time. What does not fit is refused while JAX traces, with the sentences of `heed.attention`; what only the numbers
in an array or the device can tell is refused when they are there, by an exception of JAX's that has the sentence.

On a CUDA device, in a build with CUDA, a call is launched on XLA's stream and returns; float32 has the bits of the CPU. What the CPU
reads (lengths, starts, documents, slopes, the seed) is copied from the device, for which a call with such a list waits.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_batching import custom_vmap
from jax.typing import ArrayLike

import heed
from heed import _heed

__all__ = ["attention", "attention_backward", "dot_product_attention"]

for _platform, _handlers in _heed.xla_handlers().items():
    for _name, _handler in _handlers.items():
        jax.ffi.register_ffi_target(_name, _handler, platform=_platform)

_TABLES = _heed.keywords_of("booleans", "floats")  # broadcast to (batch, heads, queries, keys)
_SINKS = _heed.keywords_of("sinks")  # (batch, heads) or (heads)
_ALIGNED = _heed.keywords_of("aligned ids", "aligned slopes")
_IDS = _heed.keywords_of("ids", "aligned ids")
_ROWS = (*_IDS, *_heed.keywords_of("aligned slopes"))  # (batch, tokens or heads), or without the batch
_LISTS = _heed.keywords_of("lengths")  # (batch,)
_STARTS = _heed.keywords_of("starts")
_INTEGERS = (*_IDS, *_LISTS, *_STARTS)
_ARRAYS = (*_TABLES, *_SINKS, *_ROWS, *_LISTS, *_STARTS, "seed")
_READ_BY_THE_CPU = frozenset((*_ROWS, *_LISTS, *_STARTS, "seed"))
_ELSEWHERE = _heed.keywords_of("elsewhere")
_BY = ("q", "k", "v", "bias", "sink")  # what there are gradients by
_RESULTS = ("out", "lse")  # a call writes the first, or both
_NO_LIMIT = 2**63 - 1  # of a window


class _Static(NamedTuple):
    """The options that are no arrays, as attributes of the call: causal "equal" wants as many queries as keys."""

    layout: str
    given: tuple[tuple[str, Any], ...]

    def attributes(self) -> dict[str, Any]:
        return {"layout": self.layout, **dict(self.given)}


@overload
def attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, layout: str = "bhsd", return_lse: Literal[False] = False, **options: Any
) -> Array: ...


@overload
def attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, layout: str = "bhsd", return_lse: Literal[True], **options: Any
) -> tuple[Array, Array]: ...


def attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, *, layout: str = "bhsd", return_lse: bool = False, **options: Any
) -> Array | tuple[Array, Array]:
    """`heed.attention` of (batch, heads, length, dim) under every transform of JAX but forward mode, on the CPU and on CUDA.

    All three may leave out the batch, or batch and heads; layout="bshd" is (batch, length, heads, dim). options are those of
    heed.attention but for caches, weights, scores and what it writes to. Arrays among them may be traced; seed may be a key of
    `jax.random`, or its words, and dropout needs one. Gradients are by q, k, v, bias, sink and the log-sum-exp. Under `vmap` mapped
    axes become part of the batch; calls with dropout and packed sequences run one after the other. Returns out (batch, heads, queries, value_dim), or (out, lse), lse (batch, heads, queries) in float32, or in
    float64 as q.

    >>> import jax, heed.jax
    >>> q = jax.numpy.ones((1, 4, 5, 8))
    >>> loss = lambda q: heed.jax.attention(q, q, q, causal=True, window=(2, 0)).sum()
    >>> jax.jit(jax.grad(loss))(q).shape
    (1, 4, 5, 8)
    """
    arrays, static = _read((q, k, v), {"layout": layout, **options})
    out, *lse = _attend(static, _RESULTS if return_lse else _RESULTS[:1], arrays)
    shape = jnp.shape(q)
    out = out.reshape((*shape[:-1], out.shape[-1]))
    return (out, lse[0].reshape(lse[0].shape[4 - len(shape) :])) if return_lse else out


def attention_backward(
    out_gradient: ArrayLike,
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    out: ArrayLike,
    lse: ArrayLike,
    *,
    lse_gradient: ArrayLike | None = None,
    by: tuple[str, ...] = ("q", "k", "v"),
    **options: Any,
) -> tuple[Array, ...]:
    """`heed.attention_backward` under `jit`, `vmap` and `shard_map`: the gradients by those named, in the order q, k, v, bias, sink.

    out and lse are what `attention(..., return_lse=True)` gave for the same options.

    >>> import jax, heed.jax
    >>> q = jax.numpy.ones((1, 4, 5, 8))
    >>> out, lse = heed.jax.attention(q, q, q, return_lse=True)
    >>> [gradient.shape for gradient in heed.jax.attention_backward(out, q, q, q, out, lse)]
    [(1, 4, 5, 8), (1, 4, 5, 8), (1, 4, 5, 8)]
    """
    arrays, static = _read((q, k, v), {"layout": "bhsd"} | options)
    for name in by:
        if name not in _BY:
            raise heed.Error(f'by: "{name}" is none of "q", "k", "v", "bias", "sink"')
        if name not in arrays:
            raise heed.Error(f'by: "{name}", but {name} is not given')
    of_rows = (*arrays["q"].shape[:-1], arrays["v"].shape[-1])
    heads, queries = of_rows[1:3] if static.layout == "bhsd" else (of_rows[2], of_rows[1])
    shapes = {"out_gradient": of_rows, "out": of_rows, "lse": (of_rows[0], heads, queries), "lse_gradient": (of_rows[0], heads, queries)}
    given = {"out_gradient": out_gradient, "out": out, "lse": lse, "lse_gradient": lse_gradient}
    for name, array in given.items():
        if array is not None:
            arrays[name] = _reshaped(name, jnp.asarray(array), shapes[name])
    wanted = tuple(name for name in _BY if name in by)
    found = _backward(static, wanted)(_varying_alike(arrays))
    own = {"q": q, "k": k, "v": v} | options
    return tuple(found[name].reshape(jnp.shape(own[name])) for name in wanted)


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    return_residual: bool = False,
) -> Array | tuple[Array, Array]:
    """`jax.nn.dot_product_attention`, argument for argument but for `implementation`.

    query is (batch, queries, heads, dim), key and value (batch, keys, kv_heads, dim), or all without the batch; bias and mask
    broadcast to (batch, heads, queries, keys), True attends. Unlike JAX's, a query that sees no key yields zeros. Returns out
    (batch, queries, heads, dim), or (out, residual): the log-sum-exps, (batch, queries, heads), without a gradient.

    >>> import jax, heed.jax
    >>> q = jax.numpy.ones((2, 5, 8, 16))
    >>> heed.jax.dot_product_attention(q, q[:, :, :2], q[:, :, :2], is_causal=True).shape
    (2, 5, 8, 16)
    """
    query = jnp.asarray(query)
    for name, array in (("bias", bias), ("mask", mask)):
        if array is not None and jnp.ndim(array) > 4:
            raise heed.Error(f"{name}.shape: {jnp.shape(array)} has {jnp.ndim(array)} axes, outside [0, 4]")
    if bias is not None:
        bias = jnp.asarray(bias)
        if bias.dtype not in (query.dtype, jnp.float32):
            bias = bias.astype(jnp.float32)
    if isinstance(local_window_size, int):
        local_window_size = (local_window_size, local_window_size)
    found = attention(
        query, key, value, layout="bshd", return_lse=return_residual, bias=bias, keep=mask, scale=scale,
        causal="starts" if is_causal else None, query_lengths=query_seq_lengths, key_lengths=key_value_seq_lengths,
        window=None if local_window_size is None else (*local_window_size, "starts"),
    )  # fmt: skip
    if not return_residual:
        return found
    out, lse = found
    return out, jax.lax.stop_gradient(jnp.swapaxes(lse, -1, -2).astype(query.dtype))


# Arguments: every array gets the batch as its first axis, of extent 1 where it serves all entries.


def _read(qkv: tuple[ArrayLike, ...], options: dict[str, Any]) -> tuple[dict[str, Array], _Static]:
    said = {name: value for name, value in options.items() if value is not None}
    for name in _ELSEWHERE:
        if name in said:
            raise heed.KindError(f"{name}: is no option under JAX; heed.attention takes it, outside of traced functions")
    static: dict[str, Any] = {}
    for name in _ALIGNED:
        value = said.get(name)
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):
            said[name], static[f"{name}_align"] = value
    arrays = {name: _array(name, array) for name, array in zip("qkv", qkv, strict=True)}
    arrays |= {name: _option(name, said[name]) for name in _ARRAYS if name in said}
    _check(arrays, said, static)
    static |= _attributes(said, static)
    layout = said["layout"]
    axes = arrays["q"].ndim
    for name in "qkv":
        shape = arrays[name].shape
        without_heads = axes == 2 and layout == "bshd"
        arrays[name] = arrays[name].reshape((1, shape[0], 1, shape[1]) if without_heads else (1,) * (4 - axes) + shape)
    if "dropout" not in static:
        arrays.pop("seed", None)
    elif "seed" not in arrays:
        raise heed.Error("dropout: needs a seed, an integer or a key of jax.random; nothing draws one under JAX")
    return _varying_alike({name: _with_batch(name, array) for name, array in arrays.items()}), _Static(layout, tuple(static.items()))


def _option(name: str, value: Any) -> Array:
    if name == "seed":
        return _seed_words(value)
    if name in _INTEGERS:
        return _in_32_bits(name, value)
    array = _array(name, value, jnp.float32 if name == "alibi" and isinstance(value, (list, tuple)) else None)
    return array.astype(jnp.float32) if name == "alibi" and jnp.issubdtype(array.dtype, jnp.floating) else array


def _array(name: str, value: Any, dtype: Any = None) -> Array:
    try:
        return jnp.asarray(value, dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise heed.KindError(f"{name}: {type(value).__name__} is not an array ({error})") from None


def _whole(name: str, value: Any) -> Array | np.ndarray:
    """Integers as they are: what is no array of JAX's yet would lose its upper 32 bits in becoming one."""
    if isinstance(value, Array):
        return value
    try:
        return np.asarray(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise heed.KindError(f"{name}: {type(value).__name__} is not an array ({error})") from None


def _in_32_bits(name: str, value: Any) -> Array:
    """Counts and documents. What is beyond them stays so: it is refused here, or is the largest count, which is refused later."""
    array = _whole(name, value)
    if array.size > 0 and not jnp.issubdtype(array.dtype, jnp.integer):
        raise heed.KindError(f"{name}.dtype: {array.dtype} is no integer type")
    limits = jnp.iinfo(jnp.int32)
    if array.size == 0 or jnp.can_cast(array.dtype, jnp.int32):
        return jnp.asarray(array, jnp.int32)
    if not isinstance(array, jax.core.Tracer):
        numbers = np.asarray(array)
        if numbers.min() < limits.min or numbers.max() > limits.max:
            raise heed.Error(f"{name}: {numbers.max() if numbers.max() > limits.max else numbers.min()} is no number of 32 bits")
        return jnp.asarray(numbers.astype(np.int32))
    if name in _IDS:
        raise heed.KindError(f"{name}.dtype: {array.dtype}, and nobody can tell while JAX traces that 32 bits suffice; say .astype(jnp.int32)")
    return jnp.clip(array, limits.min, limits.max).astype(jnp.int32)


def _seed_words(value: Any) -> Array:
    """(2,): the low word and the high one, of an integer, of a key of jax.random, or of its words.

    A key of four words, which "rbg" and "unsafe_rbg" have, is the sum of its first two and twice its last two: all count, and where
    both pairs are alike, as those of a new key, nothing is lost.
    """
    array = _whole("seed", value)
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    if isinstance(value, int) and not isinstance(value, bool):  # of any size
        numbers = [value]
    elif not jnp.issubdtype(array.dtype, jnp.integer) or array.shape not in ((), (2,), (4,)):
        raise heed.KindError(f"seed: {array.dtype}{list(array.shape)} is not an integer, a key of jax.random or its two or four words")
    else:
        numbers = [] if isinstance(array, jax.core.Tracer) else np.asarray(array).flatten().tolist()
    most = 2**32 if array.ndim else 2**64
    for number in numbers:
        if not 0 <= number < most:
            raise heed.Error(f"seed: {number} is outside [0, {most - 1}]")
    if array.ndim == 0:
        if numbers:
            return jnp.asarray([numbers[0] % 2**32, numbers[0] >> 32], jnp.uint32)
        low = array.astype(jnp.uint32)
        return jnp.stack([low, (array >> 32).astype(jnp.uint32) if array.dtype.itemsize == 8 else jnp.zeros_like(low)])
    words = jnp.asarray(array, jnp.uint32)
    return words if words.size == 2 else words[:2] + 2 * words[2:]


def _check(arrays: dict[str, Array], said: dict[str, Any], static: dict[str, Any]) -> None:
    """Has heed.plan, which computes nothing, refuse what does not fit: with arrays of these shapes that have no memory."""
    rows = {name: np.broadcast_to(np.zeros((), array.dtype), array.shape) for name, array in arrays.items() if name != "seed"}
    q, k = rows["q"], rows["k"]
    axis = -2 if said["layout"] != "bshd" or q.ndim < 3 else -3
    if q.ndim > 1 and k.ndim == q.ndim:
        lengths = {"query_lengths": q.shape[axis], "key_lengths": k.shape[axis], "query_starts": q.shape[axis], "key_starts": k.shape[axis]}
        for name, length in lengths.items():
            if name in rows:
                rows[name] = np.full(rows[name].shape, length, np.int32)
                if name in _STARTS and rows[name].ndim == 1:
                    rows[name][:-1] = 0
    keywords = {name: rows.get(name, value) for name, value in said.items() if name != "seed"}
    for name in _ALIGNED:
        if f"{name}_align" in static:
            keywords[name] = (keywords[name], static[f"{name}_align"])
    heed.plan(*(rows[name] for name in "qkv"), **keywords)


def _attributes(said: dict[str, Any], aligned: dict[str, Any]) -> dict[str, Any]:
    """What heed.plan has found right, as attributes. What has no anchor of its own shares the causal mask's."""
    found: dict[str, Any] = {}
    causal = said.get("causal", False)
    anchor = causal if isinstance(causal, str) else None
    if causal is not False:
        found["causal"] = anchor or "equal"
    for name in _ALIGNED:
        if name in said:
            found[f"{name}_align"] = aligned.get(f"{name}_align", anchor)
    if "window" in said:
        left, right, *align = said["window"]
        found |= {"window_left": _reach(left), "window_right": _reach(right), "window_align": align[0] if align else anchor}
    found |= {name: np.int64(said[name]) for name in _heed.keywords_of("count") if name in said}
    found |= {name: np.float64(said[name]) for name in _heed.keywords_of("number") if name in said}
    if said.get("dropout", 0.0) != 0.0:
        found["dropout"] = np.float64(said["dropout"])
    found |= {name: said[name] for name in _heed.keywords_of("word") if name in said}
    return {name: value for name, value in found.items() if value is not None}


def _reach(count: int | None) -> np.int64:
    return np.int64(_NO_LIMIT if count is None else count)


def _with_batch(name: str, array: Array) -> Array:
    if name in _SINKS and array.ndim <= 2:
        return array.reshape((1,) * (2 - array.ndim) + array.shape + (1, 1))
    axes = 4 if name in (*_TABLES, *_SINKS) else 2 if name in _ROWS else array.ndim
    return array.reshape((1,) * (axes - array.ndim) + array.shape)


def _reshaped(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    if [extent for extent in array.shape if extent != 1] != [extent for extent in shape if extent != 1]:
        raise heed.Error(f"{name}.shape: {array.shape} is not that of the call: {shape}")
    return array.reshape(shape)


# The calls themselves, and what becomes of them under vmap: mapped axes are merged with the batch, but for some calls one by one.


def _extents_of_results(static: _Static, arrays: dict[str, Array]) -> list[jax.ShapeDtypeStruct]:
    q = arrays["q"].shape
    rows = q[:3] if static.layout == "bhsd" else (q[0], q[2], q[1])
    out, lse = (*q[:3], arrays["v"].shape[3]), rows
    dtype = arrays["q"].dtype
    return [jax.ShapeDtypeStruct(out, dtype), jax.ShapeDtypeStruct(lse, jnp.promote_types(dtype, jnp.float32))]


# Under shard_map the type of an array says over which axes of the mesh it varies; JAX before 0.10 calls that vma.


def _axes_varied_over(array: Array) -> frozenset[str]:
    kind = jax.typeof(array)
    return kind.manual_axis_type.varying if hasattr(kind, "manual_axis_type") else getattr(kind, "vma", frozenset())


def _varying_over(array: Array, axes: frozenset[str]) -> Array:
    return jax.lax.pcast(array, tuple(axes - _axes_varied_over(array)), to="varying")


def _varying_alike(arrays: dict[str, Array]) -> dict[str, Array]:
    axes = frozenset().union(*map(_axes_varied_over, arrays.values()))
    return {name: _varying_over(array, axes) for name, array in arrays.items()} if axes else arrays


def _called(target: str, results: list[jax.ShapeDtypeStruct], arrays: dict[str, Array], **attributes: Any) -> list[Array]:
    """A call with lists goes to a target of its own, which no command buffer of XLA's captures."""
    if not _READ_BY_THE_CPU.isdisjoint(arrays):
        target += "_with_lists"
    found = jax.ffi.ffi_call(target, results)(*arrays.values(), arrays=" ".join(arrays), **attributes)
    axes = _axes_varied_over(arrays["q"])
    return [_varying_over(result, axes) for result in found] if axes else found


def _without_padding(static: _Static, lengths: Array, found: list[Array]) -> list[Array]:
    """heed writes nothing for rows of padding (S19): here they are as if they saw no key."""
    queries = found[0].shape[2 if static.layout == "bhsd" else 1]
    are_rows = jnp.arange(queries) < lengths[:, None]  # (batch, queries)
    of_out = are_rows[:, None, :, None] if static.layout == "bhsd" else are_rows[:, :, None, None]
    out = jnp.where(of_out, found[0], jnp.zeros((), found[0].dtype))
    return [out, *(jnp.where(are_rows[:, None], lse, jnp.array(-jnp.inf, lse.dtype)) for lse in found[1:])]


@functools.lru_cache(maxsize=1024)
def _forward(static: _Static, results: tuple[str, ...]) -> Any:
    are_mapped = (True,) * len(results)

    @custom_vmap
    def call(arrays: dict[str, Array]) -> tuple[Array, ...]:
        extents = _extents_of_results(static, arrays)[: len(results)]
        found = _called("heed_attention", extents, arrays, **static.attributes())
        return tuple(_without_padding(static, arrays["query_lengths"], found) if "query_lengths" in arrays else found)

    @call.def_vmap
    def mapped_call(size: int, is_mapped: list, arrays: dict[str, Array]) -> tuple:
        mapped = is_mapped[0]
        if _is_one_by_one(static, mapped):
            return _one_by_one(call, mapped, arrays), are_mapped
        batch = arrays["q"].shape[int(mapped["q"])]
        merged = {name: _merged(name, array, mapped[name], (size, batch)) for name, array in arrays.items()}
        return tuple(result.reshape((size, batch, *result.shape[1:])) for result in call(merged)), are_mapped

    return call


@functools.lru_cache(maxsize=1024)
def _backward(static: _Static, by: tuple[str, ...]) -> Any:
    @custom_vmap
    def call(arrays: dict[str, Array]) -> dict[str, Array]:
        results = [jax.ShapeDtypeStruct(arrays[name].shape, arrays[name].dtype) for name in by]
        attributes = static.attributes()
        attributes.pop("kernel", None)  # one of the forward pass
        found = _called("heed_attention_backward", results, arrays, by=" ".join(by), **attributes)
        return dict(zip(by, found, strict=True))

    @call.def_vmap
    def mapped_call(size: int, is_mapped: list, arrays: dict[str, Array]) -> tuple:
        mapped = is_mapped[0]
        if _is_one_by_one(static, mapped):
            return _one_by_one(call, mapped, arrays), dict.fromkeys(by, True)
        batch = arrays["q"].shape[int(mapped["q"])]
        merged = {
            name: _merged(name, array, mapped[name], (size, batch), is_shared=name not in by) for name, array in arrays.items()
        }
        found = {name: result.reshape((size, batch, *result.shape[1:])) for name, result in call(merged).items()}
        for name in by:
            if arrays[name].shape[int(mapped[name])] == 1 < batch:  # one bias or sink for all entries
                found[name] = found[name].sum(axis=1, keepdims=True)
        return found, dict.fromkeys(by, True)

    return call


def _merged(name: str, array: Array, is_mapped: bool, sizes: tuple[int, int], *, is_shared: bool = True) -> Array:
    """With sizes = (mapped, batch) as one first axis. What serves all entries of all calls alike stays as it is."""
    broadcasts = name in (*_TABLES, *_SINKS, *_ROWS) and array.shape[0] == 1
    if name == "seed" or broadcasts and is_shared and not is_mapped:
        return array
    rest = array.shape[2:] if is_mapped else array.shape[1:]
    spread = jnp.broadcast_to(array if is_mapped else array[None], (*sizes, *rest))
    return spread.reshape((sizes[0] * sizes[1], *rest))


def _is_one_by_one(static: _Static, mapped: dict[str, bool]) -> bool:
    """Packed sequences have no batch to merge with; what dropout drops depends on the seed and the place in the batch."""
    return any(name in mapped for name in _STARTS) or "dropout" in static.attributes()


def _one_by_one(call: Any, mapped: dict[str, bool], arrays: dict[str, Array]) -> Any:
    shared = {name: array for name, array in arrays.items() if not mapped[name]}
    own = {name: array for name, array in arrays.items() if mapped[name]}
    return jax.lax.map(lambda one: call({name: one[name] if name in one else shared[name] for name in arrays}), own)


# Gradients. JAX says which arguments they are wanted by, so that a bias that is no parameter costs nothing.


@jax.tree_util.register_static
class _Wanted(tuple):
    """Names out of _BY."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(static: _Static, results: tuple[str, ...], arrays: dict[str, Array]) -> tuple[Array, ...]:
    return _forward(static, results)(arrays)


def _attend_and_save(static: _Static, results: tuple[str, ...], arrays: dict[str, Any]) -> tuple:
    if "alibi" in arrays and arrays["alibi"].perturbed:
        raise heed.KindError("alibi: heed has no gradient by it; pass the bias that it makes, or jax.lax.stop_gradient(slopes)")
    wanted = _Wanted(name for name in _BY if name in arrays and arrays[name].perturbed)
    values = {name: array.value for name, array in arrays.items()}
    out, lse = _forward(static, _RESULTS)(values)
    return (out, lse)[: len(results)], (values, out, lse, wanted)


def _differentiate(static: _Static, results: tuple[str, ...], saved: tuple, gradients: tuple) -> tuple:
    values, out, lse, wanted = saved
    is_zero = [isinstance(gradient, jax.custom_derivatives.SymbolicZero) for gradient in gradients]
    found: dict[str, Array] = {}
    if not all(is_zero) and wanted:
        arrays = {"out_gradient": jnp.zeros_like(out) if is_zero[0] else gradients[0], **values, "out": out, "lse": lse}
        if not all(is_zero[1:]):
            arrays["lse_gradient"] = gradients[1]
        found = _backward(static, tuple(wanted))(arrays)
    return ({name: found.get(name) for name in values},)


_attend.defvjp(_attend_and_save, _differentiate, symbolic_zeros=True)
