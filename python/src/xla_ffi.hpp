// SPDX-License-Identifier: Apache-2.0
// How XLA calls a function of another library: the part of its C interface (c_api.h of its FFI, version 0.3)
// that heed reads and writes. Declared here so that building heed needs no JAX;
// tests/python/test_jax_interface.py compares every place with the header of the jaxlib that is installed.
#pragma once
#include <cstddef>
#include <cstdint>

namespace heed::python::xla {

constexpr int major_version = 0, minor_version = 3;

struct Extension {
  std::size_t struct_size;
  int type;
  Extension* next;
};
constexpr int metadata_type = 1;  // of an extension

struct Version {
  std::size_t struct_size;
  Extension* extensions;
  int major, minor;
};

struct Failure;  // XLA's own

struct NewFailure {
  std::size_t struct_size;
  Extension* extensions;
  const char* message;
  int code;
};
enum Code : int { invalid_argument = 3, internal = 13 };

struct StreamOf {  // the call with this context
  std::size_t struct_size;
  Extension* extensions;
  void* context;
  void* stream;  // XLA's answer: on CUDA a cudaStream_t
};

struct Api {
  std::size_t struct_size;
  Extension* extensions;
  Version version;
  const void* own;
  Failure* (*create_failure)(NewFailure*);
  void (*not_used[3])();
  Failure* (*find_stream)(StreamOf*);
};

enum Type : int { boolean = 1, i32 = 4, i64 = 5, u32 = 8, f16 = 10, f32 = 11, f64 = 12, bf16 = 16 };

struct Buffer {  // row-major
  std::size_t struct_size;
  Extension* extensions;
  int type;
  void* data;
  std::int64_t rank;
  std::int64_t* extents;
};

struct Buffers {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  int* kinds;
  void** entries;  // to Buffer
};

struct Text {
  const char* data;
  std::size_t size;
};
struct Scalar {
  int type;
  void* value;
};
enum AttributeKind : int { scalar = 3, text = 4 };

struct Attributes {
  std::size_t struct_size;
  Extension* extensions;
  std::int64_t size;
  int* kinds;
  Text** names;
  void** values;  // to Scalar or Text
};

struct Call {
  std::size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* context;
  int stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

// XLA asks for it with a call of its own before any other.
struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
};
// A trait: the same work is launched whatever the arrays hold, so a command buffer (a CUDA graph) may replay
// it.
constexpr std::uint32_t may_be_captured = 1;
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

using Handler = Failure*(Call*);

}  // namespace heed::python::xla
