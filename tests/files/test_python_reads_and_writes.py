# SPDX-License-Identifier: Apache-2.0
# Files of heed's and of NumPy's and the safetensors library are the same files. HEED_COPY_ARRAYS names the program
# that copies one file to another with heed's reader and writer.
import os
import subprocess

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

NUMPY_DTYPES = ["?", "u1", "i1", "<u2", "<i2", "<f2", "<u4", "<i4", "<f4", "<u8", "<i8", "<f8"]
SHAPES = [(), (1,), (5,), (0,), (3, 4), (4, 0), (2, 1, 3), (2, 3, 4, 5)]


def copy_arrays(source, target):
    program = os.environ["HEED_COPY_ARRAYS"]
    done = subprocess.run([program, str(source), str(target)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr.strip()


def copied(source, target):
    assert copy_arrays(source, target) == (0, "")
    return target


def random_array(dtype, shape, seed):
    """Random bits, NaNs among them; booleans are 0 or 1."""
    dtype = np.dtype(dtype)
    data = np.random.default_rng(seed).bytes(int(np.prod(shape)) * dtype.itemsize)
    array = np.frombuffer(data, dtype=np.uint8)
    if dtype == np.bool_:
        array = array & 1
    return array.view(dtype).reshape(shape)


def one_of_every_kind(dtypes):
    return {
        f"{np.dtype(dtype).name}.{len(shape)}.{i}": random_array(dtype, shape, i)
        for dtype in dtypes
        for i, shape in enumerate(SHAPES)
    }


def assert_same(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_passes_through_both_ways(tmp_path, dtype, shape, order):
    array = random_array(dtype, shape, seed=1)
    np.save(tmp_path / "from.npy", np.asarray(array, order=order))
    copied(tmp_path / "from.npy", tmp_path / "to.npy")
    assert_same(np.load(tmp_path / "to.npy"), array)


def test_a_c_ordered_npy_file_comes_out_byte_for_byte(tmp_path):
    np.save(tmp_path / "from.npy", random_array("<f4", (3, 4), seed=2))
    copied(tmp_path / "from.npy", tmp_path / "to.npy")
    assert (tmp_path / "to.npy").read_bytes() == (tmp_path / "from.npy").read_bytes()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_npy_version_is_read(tmp_path, version):
    array = random_array("<i4", (2, 3), seed=3)
    with open(tmp_path / "from.npy", "wb") as file:
        np.lib.format.write_array(file, array, version=version)
    assert_same(np.load(copied(tmp_path / "from.npy", tmp_path / "to.npy")), array)


def test_bfloat16_npy_is_what_numpy_saves(tmp_path):
    array = random_array(ml_dtypes.bfloat16, (3, 4), seed=4)
    np.save(tmp_path / "from.npy", array)
    copied(tmp_path / "from.npy", tmp_path / "to.npy")
    assert (tmp_path / "to.npy").read_bytes() == (tmp_path / "from.npy").read_bytes()
    assert_same(np.load(tmp_path / "to.npy").view(ml_dtypes.bfloat16), array)
    # And it is known as bfloat16, not as raw bytes, in the format that has a name for it.
    copied(tmp_path / "from.npy", tmp_path / "to.safetensors")
    header = (tmp_path / "to.safetensors").read_bytes()
    assert b'"dtype":"BF16"' in header


def test_safetensors_pass_through_both_ways(tmp_path):
    arrays = one_of_every_kind(NUMPY_DTYPES)
    metadata = {"format": "np", "é\n": '"\\', "": "", "\x00": "a/b\x7f😀"}
    safetensors.numpy.save_file(arrays, tmp_path / "from.safetensors", metadata=metadata)
    copied(tmp_path / "from.safetensors", tmp_path / "to.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "to.safetensors")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert_same(found[name], array)
    with safetensors.safe_open(tmp_path / "to.safetensors", "numpy") as file:
        assert file.metadata() == metadata


def test_bfloat16_safetensors_pass_through_both_ways(tmp_path):
    array = random_array(ml_dtypes.bfloat16, (4, 3), seed=5)
    safetensors.numpy.save_file({"w": array}, tmp_path / "from.safetensors")
    copied(tmp_path / "from.safetensors", tmp_path / "to.safetensors")
    assert (tmp_path / "to.safetensors").read_bytes() == (tmp_path / "from.safetensors").read_bytes()


def test_safetensors_of_one_dtype_come_out_byte_for_byte(tmp_path):
    names = ["model.layers.10.w", "model.layers.2.w", "a", "Z", "é", 'quote"back\\slash\n\x01', ""]
    arrays = {name: random_array("<f4", (i, 2), seed=i) for i, name in enumerate(names)}
    safetensors.numpy.save_file(arrays, tmp_path / "from.safetensors", metadata={"format": "np"})
    copied(tmp_path / "from.safetensors", tmp_path / "to.safetensors")
    assert (tmp_path / "to.safetensors").read_bytes() == (tmp_path / "from.safetensors").read_bytes()


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_the_two_formats_agree(tmp_path, dtype):
    array = random_array(dtype, (2, 3), seed=6)
    np.save(tmp_path / "a.npy", array)
    copied(tmp_path / "a.npy", tmp_path / "a.safetensors")
    assert_same(safetensors.numpy.load_file(tmp_path / "a.safetensors")["array"], array)
    copied(tmp_path / "a.safetensors", tmp_path / "b.npy")
    assert_same(np.load(tmp_path / "b.npy"), array)


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros(2, ">f4"), 'descr ">f4" is big-endian; heed reads little-endian'),
        (np.array([{}, None], dtype=object), 'descr "|O" holds Python objects; heed reads numbers'),
        (np.zeros(2, "<c8"), 'descr "<c8" is not an element type heed reads'),
        (np.zeros(2, [("x", "<f4"), ("y", "<f4")]), "descr is a list; heed reads no structured arrays"),
        (np.array(["text"]), 'descr "<U4" is not an element type heed reads'),
    ],
    ids=["big-endian", "object", "complex", "structured", "text"],
)
def test_arrays_heed_has_no_element_for_are_refused(tmp_path, array, sentence):
    np.save(tmp_path / "from.npy", array, allow_pickle=True)
    assert copy_arrays(tmp_path / "from.npy", tmp_path / "to.npy") == (2, f"{tmp_path}/from.npy: {sentence}")
    assert not (tmp_path / "to.npy").exists()
