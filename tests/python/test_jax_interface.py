# SPDX-License-Identifier: Apache-2.0
"""heed's declarations of XLA's C interface, against the header that comes with the installed jaxlib; and heed's handlers, called as
XLA calls them, where there is no device that XLA would call them for."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import heed
from heed import _heed

jax = pytest.importorskip("jax")

OWN = Path(__file__).parents[2] / "python" / "src" / "xla_ffi.hpp"

# XLA's struct, heed's, and (XLA's field, heed's) for each field that heed reads or writes.
STRUCTS = [
    ("XLA_FFI_Extension_Base", "Extension", "struct_size type next"),
    ("XLA_FFI_Api_Version", "Version", "struct_size extension_start:extensions major_version:major minor_version:minor"),
    ("XLA_FFI_Error_Create_Args", "NewFailure", "struct_size extension_start:extensions message errc:code"),
    ("XLA_FFI_Api", "Api", "struct_size api_version:version internal_api:own XLA_FFI_Error_Create:create_failure XLA_FFI_Stream_Get:find_stream"),
    ("XLA_FFI_Stream_Get_Args", "StreamOf", "struct_size extension_start:extensions ctx:context stream"),
    ("XLA_FFI_Buffer", "Buffer", "struct_size dtype:type data rank dims:extents"),
    ("XLA_FFI_Args", "Buffers", "struct_size size types:kinds args:entries"),
    ("XLA_FFI_Rets", "Buffers", "struct_size size types:kinds rets:entries"),
    ("XLA_FFI_ByteSpan", "Text", "ptr:data len:size"),
    ("XLA_FFI_Scalar", "Scalar", "dtype:type value"),
    ("XLA_FFI_Attrs", "Attributes", "struct_size size types:kinds names attrs:values"),
    ("XLA_FFI_CallFrame", "Call", "struct_size extension_start:extensions api ctx:context stage args:arguments rets:results attrs:attributes"),
    ("XLA_FFI_Metadata", "Metadata", "struct_size api_version:version traits"),
    ("XLA_FFI_Metadata_Extension", "MetadataExtension", "extension_base:base metadata"),
]
NUMBERS = {
    "XLA_FFI_DataType_PRED": "boolean", "XLA_FFI_DataType_S32": "i32", "XLA_FFI_DataType_S64": "i64", "XLA_FFI_DataType_U32": "u32",
    "XLA_FFI_DataType_F16": "f16", "XLA_FFI_DataType_F32": "f32", "XLA_FFI_DataType_F64": "f64", "XLA_FFI_DataType_BF16": "bf16",
    "XLA_FFI_AttrType_SCALAR": "scalar", "XLA_FFI_AttrType_STRING": "text", "XLA_FFI_Extension_Metadata": "metadata_type",
    "XLA_FFI_Error_Code_INVALID_ARGUMENT": "invalid_argument", "XLA_FFI_Error_Code_INTERNAL": "internal",
    "XLA_FFI_API_MAJOR": "major_version", "XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE": "may_be_captured",
}  # fmt: skip


def test_every_place_is_where_xla_has_it(tmp_path):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler on the PATH")
    lines = ['#include "xla/ffi/api/c_api.h"', f'#include "{OWN}"', "namespace x = heed::python::xla;"]
    lines += ["#if XLA_FFI_API_MINOR > 3", "using XLA_FFI_Extension_Base = XLA_FFI_InternalExtension;", "#endif"]  # 0.4 renamed it
    for theirs, ours, fields in STRUCTS:
        for field in fields.split():
            a, _, b = field.partition(":")
            lines.append(f'static_assert(offsetof({theirs}, {a}) == offsetof(x::{ours}, {b or a}), "{theirs}.{a}");')
            lines.append(f'static_assert(sizeof({theirs}::{a}) == sizeof(x::{ours}::{b or a}), "{theirs}.{a}");')
    lines += [f'static_assert(int({theirs}) == int(x::{ours}), "{theirs}");' for theirs, ours in NUMBERS.items()]
    lines.append('static_assert(x::minor_version <= XLA_FFI_API_MINOR, "an older XLA");')
    source = tmp_path / "interface.cpp"
    source.write_text("\n".join(lines) + "\n")
    command = [compiler, "-std=c++20", "-fsyntax-only", "-w", "-I", jax.ffi.include_dir(), str(source)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, f"{' '.join(command)}\n{ran.stderr}"


# What of these structs a handler reads, by ctypes. Structs of one shape have one class.


class List(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("extensions", ctypes.c_void_p), ("size", ctypes.c_int64), ("kinds", ctypes.POINTER(ctypes.c_int)),
        ("entries", ctypes.POINTER(ctypes.c_void_p)),
    ]  # fmt: skip


class Attributes(ctypes.Structure):
    _fields_ = [*List._fields_[:4], ("names", ctypes.POINTER(ctypes.c_void_p)), ("values", ctypes.POINTER(ctypes.c_void_p))]


class Buffer(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("extensions", ctypes.c_void_p), ("type", ctypes.c_int), ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64), ("extents", ctypes.POINTER(ctypes.c_int64)),
    ]  # fmt: skip


class Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class NewFailure(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("extensions", ctypes.c_void_p), ("message", ctypes.c_char_p), ("code", ctypes.c_int)]


class StreamOf(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("extensions", ctypes.c_void_p), ("context", ctypes.c_void_p), ("stream", ctypes.c_void_p)]


class Version(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("extensions", ctypes.c_void_p), ("major", ctypes.c_int), ("minor", ctypes.c_int)]


CREATE_FAILURE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(NewFailure))
FIND_STREAM = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(StreamOf))


class Api(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("extensions", ctypes.c_void_p), ("version", Version), ("own", ctypes.c_void_p),
        ("create_failure", CREATE_FAILURE), ("not_used", ctypes.c_void_p * 3), ("find_stream", FIND_STREAM),
    ]  # fmt: skip


class Metadata(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("version", Version), ("traits", ctypes.c_uint32)]


class MetadataExtension(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("type", ctypes.c_int), ("next", ctypes.c_void_p), ("metadata", ctypes.POINTER(Metadata))]


class Call(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("extensions", ctypes.c_void_p), ("api", ctypes.POINTER(Api)), ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int), ("arguments", List), ("results", List), ("attributes", Attributes),
    ]  # fmt: skip


def handler(platform, name):
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Call))
    return function(address(_heed.xla_handlers()[platform][name], b"xla._CUSTOM_CALL_TARGET"))


def pointers(structs):
    return (ctypes.c_void_p * len(structs))(*(ctypes.addressof(each) for each in structs))


def sentence_of(platform, name, arrays):
    """What a handler tells XLA of a call over float32 arrays of one element with these names."""
    told = []
    read, written, one = ctypes.c_float(1), ctypes.c_float(0), (ctypes.c_int64 * 4)(1, 1, 1, 1)

    def buffer(kind, number):
        return Buffer(0, None, kind, ctypes.addressof(number), 4, one)

    inputs = [buffer(11 if name in "qkv" else 4, read) for name in arrays.split()]
    outputs = [buffer(11, written)]
    names, values = [Text(b"arrays", 6)], [Text(arrays.encode(), len(arrays))]
    create = CREATE_FAILURE(lambda asked: told.append(asked.contents.message.decode()) or 1)
    api = Api(create_failure=create, find_stream=FIND_STREAM(lambda asked: None))
    call = Call(
        api=ctypes.pointer(api), stage=3, arguments=List(0, None, len(inputs), None, pointers(inputs)),
        results=List(0, None, 1, None, pointers(outputs)),
        attributes=Attributes(0, None, 1, (ctypes.c_int * 1)(4), pointers(names), pointers(values)),
    )  # fmt: skip
    assert bool(handler(platform, name)(ctypes.byref(call))) == bool(told)
    assert written.value == (0 if told else 1)
    return told[0] if told else None


@pytest.mark.parametrize("backward", ["", "_backward"])
@pytest.mark.parametrize(("platform", "lists", "traits"), [("cpu", "", 0), ("cpu", "_with_lists", 0), ("CUDA", "", 1), ("CUDA", "_with_lists", 0)])
def test_command_buffers_capture_what_reads_no_list(platform, lists, backward, traits):
    metadata = Metadata(traits=7)
    extension = MetadataExtension(type=1, metadata=ctypes.pointer(metadata))
    call = Call(extensions=ctypes.addressof(extension))
    assert not handler(platform, f"heed_attention{backward}{lists}")(ctypes.byref(call))
    assert metadata.traits == traits and (metadata.version.major, metadata.version.minor) == (0, 3)


def test_a_call_of_xlas_is_computed():
    assert sentence_of("cpu", "heed_attention", "q k v") is None
    assert sentence_of("cpu", "heed_attention", "q k") == "v: is not given"


@pytest.mark.parametrize(("name", "arrays"), [("heed_attention", "q k v"), ("heed_attention_with_lists", "q k v key_lengths")])
def test_where_nothing_computes_on_cuda_a_call_says_so(name, arrays):
    if any(kernel.startswith("cuda.") for kernel in heed.kernel_names()):
        pytest.skip("there is a CUDA device, and the arrays of this test are the CPU's")
    no_backend, no_device = "q.device: cuda, but this build has no CUDA backend", "q.device: cuda, where no kernel takes this call"
    assert re.match(f"{no_backend}$|{no_device}|cudaMemcpyAsync: .*CUDA", sentence_of("CUDA", name, arrays))
