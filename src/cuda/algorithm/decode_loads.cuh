// SPDX-License-Identifier: Apache-2.0
// How tiles of keys and values come: from the caller's rows or a cache's pages, for few rows or for many.
#pragma once
#include <type_traits>

#include "cuda/algorithm/decode_few_loads.cuh"
#include "cuda/algorithm/decode_pages.cuh"
#include "cuda/algorithm/decode_ring.cuh"
#include "cuda/algorithm/decode_rows.cuh"

namespace heed::cuda {

template <class Shape>
using DecodeCopies = std::conditional_t<Shape::many, ManyPages<Shape>,
                                        std::conditional_t<Shape::paged, FewPages<Shape>, FewRows<Shape>>>;

template <class Shape>
using DecodeLoads = std::conditional_t<Shape::many && !Shape::paged, DecodeRows<Shape>,
                                       DecodeRing<Shape, DecodeCopies<Shape>>>;

}  // namespace heed::cuda
