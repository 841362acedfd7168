# SPDX-License-Identifier: Apache-2.0
"""heed's declarations of XLA's C interface, against the header that comes with the installed jaxlib."""

import shutil
import subprocess
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")

OWN = Path(__file__).parents[2] / "python" / "src" / "xla_ffi.hpp"

# XLA's struct, heed's, and (XLA's field, heed's) for each field that heed reads or writes.
STRUCTS = [
    ("XLA_FFI_Extension_Base", "Extension", "struct_size type next"),
    ("XLA_FFI_Api_Version", "Version", "struct_size extension_start:extensions major_version:major minor_version:minor"),
    ("XLA_FFI_Error_Create_Args", "NewFailure", "struct_size extension_start:extensions message errc:code"),
    ("XLA_FFI_Api", "Api", "struct_size api_version:version internal_api:own XLA_FFI_Error_Create:create_failure"),
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
    "XLA_FFI_API_MAJOR": "major_version",
}  # fmt: skip


def test_every_place_is_where_xla_has_it(tmp_path):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler on the PATH")
    lines = ['#include "xla/ffi/api/c_api.h"', f'#include "{OWN}"', "namespace x = heed::python::xla;"]
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
