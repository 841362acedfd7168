# SPDX-License-Identifier: Apache-2.0
"""Bad input is refused with a sentence that names the argument, and leaves out= untouched."""

import mmap

import numpy as np
import pytest
import torch

import heed

X = np.ones((2, 3, 4, 8), np.float32)
OUT = np.full((2, 3, 4, 8), 7.0, np.float32)


class Device:
    """Claims to live elsewhere, and would crash whoever read it."""

    def __init__(self, place):
        self.place = place

    def __dlpack_device__(self):
        return self.place

    def __dlpack__(self, **options):
        raise AssertionError("asked for memory of another device")


class Used:
    """Hands out a capsule that somebody else has consumed."""

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        capsule = X.__dlpack__()
        np.from_dlpack(type("Once", (), {"__dlpack__": lambda s, **o: capsule, "__dlpack_device__": lambda s: (1, 0)})())
        return capsule


class Broken:
    """Has the protocol's names and nothing behind them."""

    __array_struct__ = 3


def emptied():
    """A tensor whose memory was given back under it."""
    tensor = torch.ones(2, 3, 4, 8)
    tensor.untyped_storage().resize_(0)
    return tensor


def deleted():
    """A JAX array whose buffer was deleted, as donation does."""
    jax = pytest.importorskip("jax")
    array = jax.numpy.ones((2, 3, 4, 8)) + 1
    array.delete()
    return array


NOT_ARRAYS = {
    "a list": (lambda: [[1.0]], "q: list is not an array"),
    "None": (lambda: None, "q: NoneType is not an array"),
    "a number": (lambda: 3.0, "q: float is not an array"),
    "a str": (lambda: "q", "q: str is not an array"),
    "a type": (lambda: np.ndarray, "q: "),
    "a memoryview": (lambda: memoryview(b"1234"), "q: memoryview is not an array"),
    "an mmap": (lambda: mmap.mmap(-1, 4096), "q: mmap.mmap is not an array"),
    "int32": (lambda: X.astype(np.int32), r"q.dtype: int32 is none of float32, float16, bfloat16; pass .\.astype\(np.float32\), or .\.float\(\)"),
    "bool": (lambda: X.astype(bool), "q.dtype: bool is none of float32, float16, bfloat16"),
    "complex": (lambda: X.astype(np.complex64), "q.dtype: complex64 is not an element type heed knows"),
    "complex of torch": (lambda: torch.ones(2, 3, 4, 8).cfloat(), "q.dtype: torch.complex64 is not an element"),
    "strings": (lambda: X.astype("U3"), "q.dtype: <U3 is not an element type heed knows"),
    "objects": (lambda: X.astype(object), "q.dtype: object is not an element type heed knows"),
    "big-endian": (lambda: X.astype(">f4"), "q.dtype: >f4 is not an element type heed knows"),
    "records": (lambda: np.zeros((2, 3), "f4,f4"), "q.dtype: .* is not an element type heed knows"),
    "longdouble": (lambda: X.astype(np.longdouble), "q.dtype: float128 is not an element type heed knows"),
    "float8": (lambda: torch.ones(4, 8).to(torch.float8_e4m3fn), "q"),
    "a masked array": (lambda: np.ma.masked_array(X, X > 0), "q: .*MaskedArray carries a mask"),
    "another device": (lambda: Device((2, 0)), "q.device: DLPack's type 2"),
    "a device that is no pair": (lambda: Device("gpu"), "q: __dlpack_device__ is not a pair of integers"),
    "a device of 33 bits": (lambda: Device((2**32 + 1, 0)), "q: __dlpack_device__ is not a pair of integers"),
    "a meta tensor": (lambda: torch.ones(2, 3, 4, 8, device="meta"), "q"),
    "a sparse tensor": (lambda: torch.eye(8).to_sparse(), "q: cannot be read"),
    "a broken array struct": (Broken, "q: its __array_struct__ is not an array struct"),
}


@pytest.mark.parametrize("name", NOT_ARRAYS)
@pytest.mark.parametrize("place", ["q", "k", "v"])
def test_what_is_no_array_of_ours_is_a_type_error(name, place):
    make, sentence = NOT_ARRAYS[name]
    with pytest.raises(TypeError, match=sentence.replace("q", place, 1)) as raised:
        heed.attention(**({"q": X, "k": X, "v": X} | {place: make()}))
    assert isinstance(raised.value, heed.KindError) and isinstance(raised.value, ValueError)


class Interrupted:
    """Somebody presses Ctrl-C, or ends the program, while the array is asked for its memory."""

    def __init__(self, by, when):
        self.by, self.when = by, when

    def __dlpack_device__(self):
        if self.when == "device":
            raise self.by
        return (1, 0)

    def __dlpack__(self, **options):
        raise self.by


@pytest.mark.parametrize("by", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("when", ["device", "memory"])
def test_who_interrupts_a_call_is_not_told_of_an_array(by, when):
    with pytest.raises(by):
        heed.attention(Interrupted(by, when), X, X)


VALUES = {
    "0 axes": (lambda: {"q": np.float32(1)}, "q: an array of 0 axes"),
    "0 axes of torch": (lambda: {"k": torch.tensor(1.0)}, "k: an array of 0 axes"),
    "1 axis": (lambda: {"q": X[0, 0, 0]}, r"q.shape: \(8,\) has 1 axes, outside \[2, 4\]"),
    "5 axes": (lambda: {"q": X[None]}, r"q.shape: \(1, 2, 3, 4, 8\) has 5 axes, outside \[2, 4\]"),
    "17 axes": (lambda: {"q": np.ones((1,) * 17, np.float32)}, "q: 17 axes are more than 16"),
    "other ranks": (lambda: {"k": X[0]}, r"k.shape: \(3, 4, 8\) has not as many axes as q.shape"),
    "heads that do not divide": (lambda: {"k": X[:, :2], "v": X[:, :2]}, "k.heads: 2 does not divide q.heads: 3"),
    "another dim": (lambda: {"k": X[..., :4]}, "k.dim: 4 is not q.dim: 8"),
    "another length": (lambda: {"v": X[:, :, :2]}, "v.length: 2 is not k.length: 4"),
    "keys of no dim": (lambda: {"k": X[..., :0]}, "k.dim: 0 is not q.dim: 8"),
    "memory that was freed": (lambda: {"q": emptied()}, "q: its memory is gone"),
    "a deleted array": (lambda: {"q": deleted()}, "q: cannot be read"),
    "a capsule that was used": (lambda: {"q": Used()}, "q: __dlpack__ gave no unused DLPack capsule"),
    "a gradient that would be lost": (
        lambda: {"v": torch.ones(2, 3, 4, 8, requires_grad=True)},
        r"v: requires grad, which only heed.torch records; pass v.detach\(\), or call it under torch.no_grad\(\)",
    ),
    "a scale that no float holds": (lambda: {"scale": -1e300}, r"scale: -1e\+300 is beyond the range of f32"),
    "a softcap that no float holds": (lambda: {"softcap": 4e38}, r"softcap: 4e\+38 is beyond the range of f32"),
    "a seed below 0": (lambda: {"dropout": 0.5, "seed": -1}, r"seed: -1 is outside \[0, 18446744073709551615\]"),
    "a seed of 65 bits": (lambda: {"seed": 2**64}, r"seed: 18446744073709551616 is outside \[0, 18446744073709551615\]"),
    "a seed that cannot be printed": (lambda: {"seed": 10**5000}, r"seed: \(it cannot be printed\) is outside \[0, "),
    "an integer that no float holds": (lambda: {"scale": 10**400}, "scale: the number is not in float32's range"),
    "a scale that is not finite": (lambda: {"scale": float("nan")}, "scale: nan is not a finite number"),
    "a softcap of 0": (lambda: {"softcap": 0}, "softcap: 0 is not a finite number above 0; None is no softcap"),
    "dropout of 1": (lambda: {"dropout": 1.0}, r"^dropout: 1 is outside \[0, 1\)"),
    "a causal word": (lambda: {"causal": "middle"}, 'causal: "middle" is none of "starts", "ends"'),
    "a head map": (lambda: {"head_map": "random"}, 'head_map: "random" is none of "interleaved", "tiled"'),
    "a stage": (lambda: {"return_scores": "all"}, 'return_scores: "all" is none of'),
    "a kernel": (lambda: {"kernel": "fast"}, 'kernel: "fast" is not a kernel of this build'),
    "a kernel without a name": (lambda: {"kernel": ""}, f'kernel: "" is not a kernel of this build; there are {", ".join(heed.kernel_names())}'),
    "a kernel with a NUL": (lambda: {"kernel": "refer\0ence"}, "^kernel: the str holds a NUL, which no word has$"),
    "no threads": (lambda: {"threads": 0}, r"threads: 0 is outside \[1, 4096\]"),
    "a negative window": (lambda: {"window": (-1, 0)}, "window mask: left -1 is negative; None is no limit"),
    "an anchorless window": (lambda: {"k": X[:, :, :2], "v": X[:, :, :2], "window": (1, 1)}, "window: 4 queries, 2 keys"),
    "too few lengths": (lambda: {"key_lengths": [1]}, "key lengths: 1 counts for q.batch: 2"),
    "a length beyond the keys": (lambda: {"key_lengths": [1, 5]}, "key lengths: 5 for batch entry 1 is outside"),
    "a length beyond all bounds": (
        lambda: {"key_lengths": [1, 2**40]},
        r"key_lengths: 1099511627776 for batch entry 1 is outside \[0, 2147483647\]",
    ),
    "a length below all bounds": (lambda: {"key_lengths": [-(2**40), 1]}, "key_lengths: -1099511627776 for batch entry 0"),
    "a negative length": (lambda: {"key_lengths": [1, -7]}, "key lengths: -7 for batch entry 1 is outside"),
    "a length beyond 63 bits": (
        lambda: {"key_lengths": np.array([1, 2**64 - 1], np.uint64)},
        "key_lengths: 18446744073709551615 does not fit 64 bits and a sign",
    ),
    "ragged lengths": (lambda: {"key_lengths": [[1], [1, 2]]}, "key_lengths: cannot be read"),
    "a mask of another shape": (lambda: {"keep": np.ones((5, 5), bool)}, "keep mask.shape: .* does not broadcast"),
    "a mask of rank 5": (lambda: {"hide": np.ones((1,) * 5, bool)}, "hide.shape: .* has 5 axes"),
    "a bias of another shape": (lambda: {"bias": np.ones((5, 5), np.float32)}, "bias.shape: .* does not broadcast"),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_outside_its_rules_is_a_value_error(name):
    make, sentence = VALUES[name]
    with pytest.raises(heed.Error, match=sentence):
        heed.attention(**({"q": X, "k": X, "v": X} | make()))


KINDS = {
    "keep of integers": ({"keep": np.ones((4, 4), np.int64)}, "keep.dtype: int64 is not bool"),
    "hide of floats": ({"hide": np.ones((4, 4), np.float32)}, "hide.dtype: float32 is not bool"),
    "a boolean bias": ({"bias": np.ones((4, 4), bool)}, "bias.dtype: bool is none of float32, float16, bfloat16; booleans are keep="),
    "a bias of another type": ({"bias": np.ones((4, 4), np.float16)}, "bias.dtype: float16 is neither q.dtype: float32"),
    "a key of another type": ({"k": X.astype(np.float16)}, "k.dtype: float16 is not q.dtype: float32"),
    "lengths of floats": ({"key_lengths": np.ones(2, np.float32)}, "key_lengths.dtype: float32 is no integer type"),
    "causal of an integer": ({"causal": 1}, 'causal: int is not True, False, "starts" or "ends"'),
    "a window of one number": ({"window": 5}, r"window: int is not \(left, right\)"),
    "a window of words": ({"window": ("a", "b")}, "window left: str is not an integer"),
    "a scale of words": ({"scale": "big"}, "scale: str is not a number"),
    "threads of floats": ({"threads": 1.5}, "threads: float is not an integer"),
    "a seed of floats": ({"seed": 1.5}, "seed: float is not an integer"),
    "a flag of numbers": ({"return_lse": 1}, "return_lse: int is not True or False"),
    "a kernel of bytes": ({"kernel": b"reference"}, "kernel: bytes is not a str"),
    "an unknown keyword": ({"masks": None}, "masks: there is no such keyword argument"),
}


@pytest.mark.parametrize("name", KINDS)
def test_an_option_of_the_wrong_kind_is_a_type_error(name):
    options, sentence = KINDS[name]
    with pytest.raises(TypeError, match=sentence):
        heed.attention(**({"q": X, "k": X, "v": X} | options))


def read_only():
    array = OUT.copy()
    array.flags.writeable = False
    return array


def jax_out():
    return pytest.importorskip("jax").numpy.ones((2, 3, 4, 8))


WRONG_OUTS = {
    "read-only": (read_only, "out: the array is read-only"),
    "broadcast": (lambda: np.broadcast_to(np.float32(0), (2, 3, 4, 8)), "out: the array is read-only"),
    "a JAX array": (jax_out, "out: "),
    "the query": (lambda: X, "out: shares memory with q"),
    "overlapping the query": (lambda: X.reshape(-1)[:192].reshape(2, 3, 4, 8), "out: shares memory with q"),
    "itself": (lambda: np.lib.stride_tricks.as_strided(OUT.copy(), strides=(0, 128, 32, 4)), "out.stride.batch: 0"),
    "another shape": (lambda: OUT[:1], "out.shape"),
    "another rank": (lambda: OUT[0], "out.shape: .* has not as many axes as q.shape"),
    "float64": (lambda: OUT.astype(np.float64), "out.dtype: float64 is neither"),
    "float16": (lambda: OUT.astype(np.float16), "out.dtype: float16 is neither"),
    "reversed": (lambda: OUT.copy()[::-1], "out: negative, odd or unaligned strides cannot be written"),
    "a list": (lambda: [1.0], "out: list is not an array"),
    "0 axes": (lambda: np.array(1.0, np.float32), "out.shape"),
    "a tensor that requires grad": (lambda: torch.ones(2, 3, 4, 8, requires_grad=True), "out: requires grad"),
}


@pytest.mark.parametrize("name", WRONG_OUTS)
def test_an_out_that_cannot_be_written_is_refused(name):
    make, sentence = WRONG_OUTS[name]
    with pytest.raises(heed.Error, match=sentence):
        heed.attention(X, X, X, out=make())


def test_a_refused_call_writes_nothing():
    out = OUT.copy()
    with pytest.raises(heed.Error):
        heed.attention(X, X[:, :2], X[:, :2], out=out)
    with pytest.raises(heed.Error):
        heed.attention(X, X, X, key_lengths=[1, 9], out=out)
    assert np.array_equal(out, OUT)


def test_gradients_may_be_absent_without_grad_mode():
    q = torch.ones(2, 3, 4, 8, requires_grad=True)
    with torch.no_grad():
        assert not heed.attention(q, q, q).requires_grad


SDPA = {
    "a list": ({"query": [1.0]}, TypeError, "query: list is not an array"),
    "one axis": ({"key": X[0, 0, 0]}, ValueError, r"key.shape: \(8,\) has 1 axes"),
    "a batch that does not broadcast": ({"key": X[[0, 0, 0]]}, ValueError, "key: extent 3 does not broadcast with 2 of query"),
    "a mask that does not broadcast": ({"attn_mask": np.ones((3, 1, 4, 4), bool)}, ValueError, "attn_mask: extent 3 does not"),
    "a mask of integers": ({"attn_mask": np.ones((4, 4), np.int32)}, TypeError, "attn_mask.dtype: int32"),
    "a mask of more axes": ({"attn_mask": np.ones((1, 1, 1, 4, 4), bool)}, ValueError, "attn_mask.shape: .* has 5 axes"),
    "a flag of numbers": ({"is_causal": 1}, TypeError, "is_causal: int is not True or False"),
    "dropout of words": ({"dropout_p": "much"}, TypeError, "dropout_p: str is not a number"),
    "dropout of 2": ({"dropout_p": 2}, ValueError, r"^dropout_p: 2 is outside \[0, 1\)$"),
    "grouped heads": ({"key": X[:, :2], "value": X[:, :2]}, ValueError, "key: extent 2 does not broadcast with 3 of query"),
    "heads that do not divide": (
        {"key": X[:, :2], "value": X[:, :1], "enable_gqa": True},
        ValueError,
        "key.heads: 2 does not divide query.heads: 3",
    ),
}


@pytest.mark.parametrize("name", SDPA)
def test_the_drop_in_refuses_with_a_sentence_too(name):
    given, kind, sentence = SDPA[name]
    with pytest.raises(kind, match=sentence):
        heed.scaled_dot_product_attention(**({"query": X, "key": X, "value": X} | given))


# Two arguments are wrong at once: the first is named, on every machine. C++ itself leaves the order of arguments open.
TWICE_WRONG = {
    "q before k": (lambda: heed.attention([1.0], "k", None), "q: list"),
    "query before key": (lambda: heed.scaled_dot_product_attention([1.0], "k", None), "query: list"),
    "a before b": (lambda: heed.combine([1.0], "b"), "a: list"),
    "the dtype of a before that of b": (lambda: heed.combine(X, X.astype(np.float16)), "a.dtype: float32"),
    "the rank of a before the dtype of b": (lambda: heed.combine(np.ones((1,) * 5, bool), X), "a.shape: .* has 5 axes"),
    "out before lse": (lambda: heed.merge(([1.0], "lse")), "out: list"),
    "left before right": (lambda: heed.attention(X, X, X, window=("a", b"b")), "window left: str"),
    "sequence before length": (lambda: heed.KvCache(1, 1, 4, 8).truncate("a", b"b"), "sequence: str"),
    "a fork's sequence before its length": (lambda: heed.KvCache(1, 1, 4, 8).fork("a", b"b"), "sequence: str"),
    "k before v": (lambda: heed.KvCache(1, 1, 4, 8).append([1.0], "v"), "k: list"),
    "tokens before pad_id": (lambda: heed.padding_mask("tokens", "pad"), "tokens: str"),
    "context before value": (lambda: heed.AttentionLayer(8, 2)(X[0], [1.0], "v"), "context: list"),
}


@pytest.mark.parametrize("name", TWICE_WRONG)
def test_of_two_wrong_arguments_the_first_is_named(name):
    call, sentence = TWICE_WRONG[name]
    with pytest.raises(heed.Error, match="^" + sentence):
        call()


PART = (X, X[..., 0])
MERGES = {
    "nothing": ((), ValueError, "parts: none are given"),
    "no pair": ((X,), TypeError, r"parts: numpy.ndarray is not a pair \(out, lse\)"),
    "no arrays": (((1, 2),), TypeError, "out: int is not an array"),
    "lse of another rank": (((X, X),), ValueError, "lse.shape"),
    "lse of another type": (((X, X[..., 0].astype(np.float16)),), TypeError, "lse.dtype: float16 is neither float32 nor float64"),
    "lse of another shape": (((X, X[:1, ..., 0]), PART), ValueError, "into.log_sum_exp"),
    "out of another shape": ((PART, (X[:1], X[:1, ..., 0])), ValueError, "other.out"),
}


@pytest.mark.parametrize("name", MERGES)
def test_merge_refuses_what_is_no_result(name):
    parts, kind, sentence = MERGES[name]
    with pytest.raises(kind, match=sentence):
        heed.merge(*parts)


@pytest.mark.parametrize("name", ["config.x", "options.x"])
def test_a_files_name_is_quoted_as_it_was_given(name):
    with pytest.raises(heed.Error, match=f"^{name}: cannot be opened"):
        heed.KvCache.load(name)
    with pytest.raises(heed.Error, match=f"^{name}: is not a folder; a model's has config.json"):
        heed.AttentionLayer.from_pretrained(name, 0)
