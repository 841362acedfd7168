// SPDX-License-Identifier: Apache-2.0
// How tiles of keys and values come: for few rows, or for many from the caller's rows or a cache's pages.
#pragma once
#include <type_traits>

#include "cuda/algorithm/decode_few_loads.cuh"
#include "cuda/algorithm/decode_pages.cuh"
#include "cuda/algorithm/decode_rows.cuh"

namespace heed::cuda {

template <class Shape>
using DecodeLoads =
    std::conditional_t<!Shape::many, FewLoads<Shape>,
                       std::conditional_t<Shape::paged, DecodePages<Shape>, DecodeRows<Shape>>>;

}  // namespace heed::cuda
