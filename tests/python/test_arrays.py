# SPDX-License-Identifier: Apache-2.0
"""Arrays of every library come in without a copy, and go out as the caller's own kind."""

import resource
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
import textbook
import torch

import heed

DTYPES = {
    "float32": (np.float32, torch.float32),
    "float16": (np.float16, torch.float16),
    "bfloat16": (ml_dtypes.bfloat16, torch.bfloat16),
}


def to_torch(array):
    """A torch tensor on the same numbers; torch knows no ml_dtypes."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor):
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


class OnlyDlpack:
    """An array of a library that nobody has heard of."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_in_numpy_out_of_the_same_element_type(dtype):
    q, k, v = textbook.random_arrays(1, (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6), dtype=DTYPES[dtype][0])
    out = heed.attention(q, k, v)
    assert type(out) is np.ndarray and out.dtype == q.dtype
    assert textbook.misses(out, textbook.attention(q, k, v)[0]) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_in_torch_out_with_the_bits_of_numpy(dtype):
    arrays = textbook.random_arrays(2, (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6), dtype=DTYPES[dtype][0])
    out = heed.attention(*map(to_torch, arrays))
    assert type(out) is torch.Tensor and out.dtype == DTYPES[dtype][1]
    assert textbook.bits(from_torch(out)) == textbook.bits(heed.attention(*arrays))


@pytest.mark.parametrize("dtype", DTYPES)
def test_jax_in_jax_out_with_the_bits_of_numpy(dtype):
    jax = pytest.importorskip("jax")
    arrays = textbook.random_arrays(3, (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6), dtype=DTYPES[dtype][0])
    out, lse = heed.attention(*map(jax.numpy.asarray, arrays), return_lse=True)
    assert isinstance(out, jax.Array) and out.dtype == arrays[0].dtype and lse.dtype == np.float32
    assert textbook.bits(out) == textbook.bits(heed.attention(*arrays))


def test_an_object_with_nothing_but_dlpack_gets_numpy_back():
    arrays = textbook.random_arrays(4, (3, 8), (5, 8), (5, 8))
    out = heed.attention(*map(OnlyDlpack, arrays))
    assert type(out) is np.ndarray
    assert textbook.bits(out) == textbook.bits(heed.attention(*arrays))


def test_libraries_can_be_mixed_and_the_query_decides():
    q, k, v = textbook.random_arrays(5, (3, 8), (5, 8), (5, 8))
    assert type(heed.attention(torch.from_numpy(q), k, OnlyDlpack(v))) is torch.Tensor
    assert type(heed.attention(q, torch.from_numpy(k), OnlyDlpack(v))) is np.ndarray


def test_a_result_outlives_its_inputs_and_the_call():
    results = [heed.attention(*(torch.full((2, 3, 4), float(n)),) * 3) for n in range(50)]
    assert [result.unique().tolist() for result in results] == [[float(n)] for n in range(50)]


STRIDED = {
    "transposed": lambda x: x.swapaxes(1, 2).copy().swapaxes(1, 2),
    "sliced": lambda x: np.repeat(x, 3, axis=2)[:, :, ::3],
    "inner": lambda x: np.repeat(x, 2, axis=3)[..., ::2],
    "reversed": lambda x: x[:, :, ::-1].copy()[:, :, ::-1],
    "unaligned": lambda x: (lambda raw: raw[1:].view(x.dtype).reshape(x.shape))(
        np.frombuffer(b"\0" + x.tobytes(), np.uint8)
    ),
    "one field of records": lambda x: np.rec.fromarrays([np.zeros(x.shape, np.uint8), x], names="a,b")["b"],
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "Fortran order": np.asfortranarray,
}


@pytest.mark.parametrize("layout", STRIDED)
def test_strides_change_no_bit(layout):
    q, k, v = textbook.random_arrays(6, (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))
    strided = [STRIDED[layout](array) for array in (q, k, v)]
    assert [textbook.bits(a) for a in strided] == [textbook.bits(a) for a in (q, k, v)]
    assert textbook.bits(heed.attention(*strided)) == textbook.bits(heed.attention(q, k, v))


def test_a_broadcast_array_is_read_in_place():
    q, k, v = textbook.random_arrays(7, (1, 1, 5, 8), (1, 1, 7, 8), (1, 1, 7, 8))
    wide = [np.broadcast_to(array, (2, 3, *array.shape[2:])) for array in (q, k, v)]
    assert wide[0].strides[:2] == (0, 0)
    assert textbook.bits(heed.attention(*wide)) == textbook.bits(
        np.broadcast_to(heed.attention(q, k, v), (2, 3, 5, 8))
    )


def test_numpy_arrays_are_not_copied():
    q = np.ones((1, 4, 1, 64), np.float32)
    k = v = np.ones((1, 4, 16384, 64), np.float32)  # 16 MiB
    heed.attention(q, k, v)
    tracemalloc.start()
    heed.attention(q, k, v)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < k.nbytes // 16


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_arrays_of_other_libraries_are_not_copied(library):
    make = torch.ones if library == "torch" else pytest.importorskip("jax").numpy.ones
    q, k = make((1, 4, 1, 64)), make((1, 4, 1 << 17, 64))  # 128 MiB
    heed.attention(q, k[:, :, :64], k[:, :, :64])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    heed.attention(q, k, k)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < (64 << 10)


@pytest.mark.parametrize("library", ["numpy", "torch", "dlpack"])
def test_out_is_written_in_place_and_returned(library):
    q, k, v = textbook.random_arrays(8, (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6))
    memory = np.full((2, 5, 3, 6), np.nan, np.float32)
    out = memory.swapaxes(1, 2)  # strided: (batch, length, heads, dim) underneath
    given = {"numpy": lambda a: a, "torch": torch.from_numpy, "dlpack": OnlyDlpack}[library](out)
    assert heed.attention(q, k, v, out=given) is given
    assert textbook.bits(out) == textbook.bits(heed.attention(q, k, v))


def test_out_may_be_wider_than_the_inputs():
    q, k, v = textbook.random_arrays(9, (3, 8), (5, 8), (5, 8), dtype=np.float16)
    out = np.empty((3, 8), np.float32)
    heed.attention(q, k, v, out=out)
    assert np.array_equal(out.astype(np.float16), heed.attention(q, k, v))


@pytest.mark.parametrize(
    "shapes",
    [
        ((0, 2, 3, 4), (0, 2, 5, 4)),
        ((1, 0, 3, 4), (1, 0, 5, 4)),
        ((1, 2, 0, 4), (1, 2, 5, 4)),
        ((1, 2, 3, 4), (1, 2, 0, 4)),
    ],
)
@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
def test_empty_arrays_give_empty_results_or_zeros(shapes, make):
    q, k = (make(shape, dtype=np.float32 if make is np.zeros else torch.float32) for shape in shapes)
    out, lse = heed.attention(q, k, k, return_lse=True)
    assert tuple(out.shape) == shapes[0] and tuple(lse.shape) == shapes[0][:3]
    assert not np.asarray(out).any() and np.all(np.asarray(lse) == -np.inf)
