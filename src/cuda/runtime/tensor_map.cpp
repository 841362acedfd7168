// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/tensor_map.hpp"

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/runtime/launch.hpp"
#include "heed/error.hpp"

namespace heed::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                            CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Fetched through the runtime: no program need link with the driver.
Encode encode() {
  static const Encode found = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result),
        "cudaGetDriverEntryPointByVersion");
    if (result != cudaDriverEntryPointSuccess)
      throw Error(Error::device, "cuTensorMapEncodeTiled: this driver has none");
    return reinterpret_cast<Encode>(entry);
  }();
  return found;
}

}  // namespace

bool is_mappable(const Tensor& t) {
  const auto is_whole = [](std::int64_t stride) {
    return stride >= 0 && stride % 8 == 0 && stride < std::int64_t{1} << 39;
  };
  return (t.type == Type::f16 || t.type == Type::bf16) && t.stride.dim == 1 && is_whole(t.stride.length) &&
         is_whole(t.stride.heads) && is_whole(t.stride.batch) && t.stride.length > 0 &&
         reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
}

namespace {

struct Axis {
  std::int64_t extent, stride;  // in elements; all entries of an axis of stride 0 are one
  int box;
};

// The first axis has the elements themselves. `fetched`: at once into the second-level cache.
template <std::size_t axes>
CUtensorMap encoded(const Tensor& t, const Axis (&axis)[axes], CUtensorMapL2promotion fetched,
                    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  cuuint64_t extent[axes], stride[axes];
  cuuint32_t box[axes], step[axes];
  for (std::size_t n = 0; n < axes; ++n) {
    extent[n] = axis[n].stride == 0 ? 1u : static_cast<cuuint64_t>(axis[n].extent);
    stride[n] = axis[n].stride == 0 ? 16u : static_cast<cuuint64_t>(2 * axis[n].stride);
    box[n] = static_cast<cuuint32_t>(axis[n].box), step[n] = 1;
  }
  CUtensorMap map{};
  const CUresult result = encode()(
      &map, t.type == Type::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      static_cast<cuuint32_t>(axes), const_cast<void*>(t.data), extent, stride + 1, box, step,
      CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, fetched, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Error(Error::device, "cuTensorMapEncodeTiled: code " + std::to_string(static_cast<int>(result)));
  return map;
}

}  // namespace

CUtensorMap tensor_map(const Tensor& t, const MapExtents& of, int box_rows) {
  return encoded(t,
                 {{of.dim, 1, 64},
                  {of.rows, t.stride.length, box_rows},
                  {of.heads, t.stride.heads, 1},
                  {of.entries, t.stride.batch, 1}},
                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

CUtensorMap tensor_map_of_rows(const Tensor& t, const MapExtents& of, int box_rows) {
  // The pieces of a row come one after the other. With 256 bytes each would fetch the next as well: 64
  // sequences of 4096 keys under 32 rows took 35.4 us instead of 33.1 (H200, November 2026).
  return encoded(t,
                 {{64, 1, 64},
                  {of.rows, t.stride.length, box_rows},
                  {of.dim / 64, 64, static_cast<int>(of.dim / 64)},
                  {of.heads, t.stride.heads, 1},
                  {of.entries, t.stride.batch, 1}},
                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

CUtensorMap tensor_map_of_sixteens(const Tensor& t, const SixteensExtents& of) {
  return encoded(
      t, {{32, 1, 32}, {of.dim / 2, 32, of.box_dim / 2}, {of.sixteens, of.dim * 16, 4}, {of.lines, 32, 1}},
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_SWIZZLE_64B);
}

}  // namespace heed::cuda
