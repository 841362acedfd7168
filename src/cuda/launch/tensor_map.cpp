// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch/tensor_map.hpp"

#include <cuda_runtime_api.h>

#include <string>

#include "cuda/launch/launch.hpp"
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
  return (t.type == Type::f16 || t.type == Type::bf16) && t.dim == 1 && is_whole(t.length) &&
         is_whole(t.heads) && is_whole(t.batch) && t.length > 0 &&
         reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0;
}

CUtensorMap tensor_map(const Tensor& t, const MapExtents& extents, int box_rows) {
  const auto entries = [](std::int64_t n, std::int64_t stride) {
    return static_cast<cuuint64_t>(stride == 0 ? 1 : n);
  };
  const auto bytes = [](std::int64_t stride) {
    return static_cast<cuuint64_t>(stride == 0 ? 16 : 2 * stride);
  };
  const cuuint64_t extent[4] = {static_cast<cuuint64_t>(extents.dim), static_cast<cuuint64_t>(extents.rows),
                                entries(extents.heads, t.heads), entries(extents.entries, t.batch)};
  const cuuint64_t stride[3] = {bytes(t.length), bytes(t.heads), bytes(t.batch)};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(box_rows), 1, 1}, step[4] = {1, 1, 1, 1};
  CUtensorMap map{};
  const CUresult result = encode()(
      &map, t.type == Type::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
      const_cast<void*>(t.data), extent, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Error(Error::device, "cuTensorMapEncodeTiled: code " + std::to_string(static_cast<int>(result)));
  return map;
}

}  // namespace heed::cuda
