# SPDX-License-Identifier: Apache-2.0
"""Whatever is passed in, a call answers or refuses: no crash, no other exception.

The examples are drawn from a fixed seed, so that a failure shows again; hypothesis prints the smallest call that fails.
"""

import mmap

import ml_dtypes
import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import heed

QUICK = settings(
    max_examples=120, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
EXTENTS = st.sampled_from([0, 1, 1, 2, 3, 4, 8])
SHAPES = st.one_of(
    st.lists(EXTENTS, max_size=6).map(tuple),
    st.tuples(*[st.sampled_from([1, 2])] * 2, st.sampled_from([1, 3]), st.just(4)),
)
DTYPES = st.sampled_from(
    ["float32"] * 6 + ["float16", "bfloat16", "float64", "bool", "int32", "int64", "uint8", "complex64", ">f4", "U2", "O"]
)


@st.composite
def numpy_arrays(draw):
    """Arrays of any shape and element type, often not packed, sometimes read-only."""
    shape, dtype = draw(SHAPES), draw(DTYPES)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    array = np.random.default_rng(draw(st.integers(0, 9))).standard_normal(shape).astype(np.float32).astype(kind)
    for axis in range(array.ndim):
        step = draw(st.sampled_from([1, 1, 1, 2, -1]))
        array = array[(slice(None),) * axis + (slice(None, None, step),)]
    if array.ndim and draw(st.booleans()):
        array = array.swapaxes(0, draw(st.integers(0, array.ndim - 1)))
    if draw(st.integers(0, 4)) == 0:
        array = np.broadcast_to(array, (2, *array.shape))
    return array


@st.composite
def torch_tensors(draw):
    dtype = draw(st.sampled_from([torch.float32] * 4 + [torch.float16, torch.bfloat16, torch.bool, torch.int64, torch.float64]))
    tensor = torch.ones(draw(SHAPES)).to(dtype)
    change = draw(st.sampled_from(["none", "none", "expand", "transpose", "meta", "sparse", "grad", "freed", "conj"]))
    if change == "expand":
        return tensor.expand(2, *tensor.shape)
    if change == "transpose" and tensor.ndim > 1:
        return tensor.transpose(0, -1)
    if change == "meta":
        return tensor.to("meta")
    if change == "sparse" and tensor.ndim:
        return tensor.to_sparse()
    if change == "grad" and tensor.is_floating_point():
        return tensor.requires_grad_()
    if change == "freed":
        tensor.untyped_storage().resize_(0)
    if change == "conj":
        return torch.ones(2, 3, dtype=torch.complex64).conj()
    return tensor


class Liar:
    """Has DLPack's names; what is behind them is up to the example."""

    def __init__(self, device, capsule):
        self.device, self.capsule = device, capsule

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule


STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-2, 9),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.sampled_from(["starts", "ends", "raw", "biased", "tiled", "reference", "average", "qkv", "llama"]),
    st.lists(st.integers(-1, 4), max_size=3),
    st.tuples(st.integers(-1, 3), st.one_of(st.none(), st.integers(-1, 3))),
    st.sampled_from([object(), int, np.ndarray, memoryview(b"12"), mmap.mmap(-1, 64), {}, np.float32(1), ...]),
    st.builds(
        Liar,
        st.sampled_from([(1, 0), (2, 0), (1, 0, 0), None, "cpu", (1.5, 0)]),
        st.sampled_from([None, 3, np.ones(3, np.float32).__dlpack__(), RuntimeError("no"), TypeError("no"), BufferError()]),
    ),
)
ARRAYS = st.one_of(numpy_arrays(), torch_tensors())
ANYTHING = st.one_of(ARRAYS, ARRAYS, STRANGE)
OPTIONS = st.dictionaries(
    st.sampled_from(
        "causal window key_lengths document query_document keep hide bias alibi scale softcap sink dropout seed head_map "
        "return_weights return_lse return_scores out kernel positions nonsense".split()
    ),
    ANYTHING,
    max_size=3,
)


def answers_or_refuses(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except (TypeError, ValueError) as refusal:  # heed.Error is the latter; nanobind's own complaint the former
        assert str(refusal)


@QUICK
@given(ANYTHING, ANYTHING, ANYTHING, OPTIONS)
def test_attention_answers_or_refuses(q, k, v, options):
    answers_or_refuses(heed.attention, q, k, v, **options)
    answers_or_refuses(heed.explain, q, k, v, **options)


@QUICK
@given(ARRAYS, OPTIONS)
def test_attention_of_one_array_with_itself_answers_or_refuses(x, options):
    answers_or_refuses(heed.attention, x, x, x, **options)


@QUICK
@given(ANYTHING, ANYTHING, ANYTHING, ANYTHING, st.one_of(STRANGE, st.just(0.0)), *[st.one_of(STRANGE, st.booleans())] * 3)
def test_the_drop_in_answers_or_refuses(query, key, value, mask, dropout, causal, scale, gqa):
    answers_or_refuses(heed.scaled_dot_product_attention, query, key, value, mask, dropout, causal, scale, gqa)


@QUICK
@given(st.data())
def test_everything_else_answers_or_refuses(data):
    a, b, c = (data.draw(ANYTHING) for _ in range(3))
    for function in (heed.padding_mask, heed.key_lengths, heed.look_ahead_mask, heed.rotate, heed.merge):
        if function is not heed.look_ahead_mask or not isinstance(a, int) or a < 100:
            answers_or_refuses(function, a)
    for function in (heed.padding_mask, heed.combine, heed.rotate, heed.merge):
        answers_or_refuses(function, a, b)
    answers_or_refuses(heed.merge, (a, b), (b, c))
    answers_or_refuses(heed.rotate, a, out=b)


LAYER = heed.AttentionLayer(4, 2)


@QUICK
@given(ANYTHING, ANYTHING, OPTIONS)
def test_the_layer_answers_or_refuses(x, context, options):
    answers_or_refuses(LAYER, x, context, **options)
    answers_or_refuses(LAYER.load, {"W_q.weight": x, "W_k.weight": context})
    answers_or_refuses(LAYER.load, x)


@QUICK
@given(
    st.tuples(st.integers(1, 3), st.sampled_from([1, 2, 4]), st.integers(1, 9), st.integers(1, 20), st.integers(1, 9)),
    st.lists(st.sampled_from(["transpose", "step", "reverse", "broadcast"]), max_size=3),
    st.integers(0, 2**32),
)
def test_the_layout_of_an_array_changes_no_bit(extents, changes, seed):
    batch, heads, queries, keys, dim = extents
    random = np.random.default_rng(seed)
    arrays = [random.standard_normal((batch, heads, n, dim)).astype(np.float32) for n in (queries, keys, keys)]
    changed = []
    for array in arrays:
        for change in changes:
            if change == "transpose":
                array = array.swapaxes(1, 2).copy().swapaxes(1, 2)
            elif change == "step":
                array = np.repeat(array, 2, axis=3)[..., ::2]
            elif change == "reverse":
                array = array[:, :, ::-1]
            else:
                array = np.broadcast_to(array[:1], array.shape)
        changed.append(array)
    packed = [np.ascontiguousarray(array) for array in changed]
    assert np.array_equal(heed.attention(*changed), heed.attention(*packed))
