// SPDX-License-Identifier: Apache-2.0
// As much of the driver's header as src/cuda/runtime/tensor_map.cpp needs, on a machine that has none: what
// the copy engine knows of a tensor is written down as it is said.
#pragma once
#include <cstdint>

using cuuint32_t = std::uint32_t;
using cuuint64_t = std::uint64_t;
enum CUresult { CUDA_SUCCESS = 0 };
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9 };
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_64B = 2, CU_TENSOR_MAP_SWIZZLE_128B = 3 };
enum CUtensorMapL2promotion {
  CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2,
  CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3
};
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };

// Of elements of two bytes; the first axis has them side by side. Steps are in bytes.
struct CUtensorMap {
  static constexpr int most_axes = 5;
  unsigned char* data;
  int axes;
  std::int64_t extent[most_axes], step[most_axes];
  int box[most_axes];
  int swizzle;  // bytes of a row
};
