// SPDX-License-Identifier: Apache-2.0
// DLPack's binary layout, version 1: how array libraries describe memory to each other. Declared here because
// the layout is the standard; no header of another project is needed.
#pragma once
#include <cstdint>

namespace heed::python::dlpack {

constexpr std::int32_t cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13;                   // Place::type
constexpr std::uint8_t integer = 0, natural = 1, floating = 2, brain_float = 4, boolean = 6;  // Type::code

struct Version {
  std::uint32_t major, minor;
};
struct Place {
  std::int32_t type, id;
};
struct Type {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Place place;
  std::int32_t rank;
  Type type;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: packed, last axis innermost
  std::uint64_t byte_offset;
};

struct Managed {  // in a capsule named "dltensor"
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct ManagedVersioned {  // in a capsule named "dltensor_versioned"
  Version version;
  void* context;
  void (*deleter)(ManagedVersioned*);
  std::uint64_t flags;
  Tensor tensor;
};
constexpr std::uint64_t read_only_flag = 1;

// What a type's __dlpack_c_exchange_api__ points to: the same exchange without a call into Python. Functions
// return 0, or -1 with a Python error set.
struct ExchangeApi {
  Version version;
  ExchangeApi* older;
  int (*allocate)(Tensor* prototype, ManagedVersioned** out, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, ManagedVersioned** out);
  int (*object_from_managed)(ManagedVersioned* tensor, void** out);
  int (*tensor_from_object)(void* object, Tensor* out);  // may be null; borrows the object's memory
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};
constexpr const char* exchange_capsule = "dlpack_exchange_api";

}  // namespace heed::python::dlpack
