// SPDX-License-Identifier: Apache-2.0
// The kernels that are compiled: heads of some sizes, which others are padded to, and stages of scores by
// what they can do. CMake writes a file for each type and group, so that they compile side by side, and so
// that a driver that compiles PTX for a new GPU does no more of it than a call needs.
//
// Shapes are for 228 KB of shared memory in a multiprocessor (Hopper); small_ ones are for 164 KB (A100: two
// blocks) and 100 KB (8.6, 8.9: one block, two at 64 dimensions). Of what fits, a call takes the first that
// is narrow enough and can do no more than it needs (general.cu).
#pragma once
#include <array>

#include "cuda/general/kernel.cuh"
#include "cuda/general/slabs.cuh"

namespace heed::cuda::general {

template <template <class> class SourceOf>
constexpr Source source_kind = Source::arrays;
template <>
inline constexpr Source source_kind<Pages> = Source::pages;
template <>
inline constexpr Source source_kind<Int8Pages> = Source::int8_pages;

template <class Stage>
constexpr unsigned features_of_stage = none;
template <class Shape, unsigned features>
inline constexpr unsigned features_of_stage<Options<Shape, features>> = features;

template <class Shape, template <class> class SourceOf, template <class> class Stage>
Kernel entry() {
  constexpr int shared_bytes = sizeof(Memory<Shape, SourceOf<Shape>>);
  static_assert(shared_bytes <= 232448);
  return {Shape::type,
          Shape::dim,
          Shape::value_dim,
          Shape::rows,
          source_kind<SourceOf>,
          features_of_stage<Stage<Shape>>,
          Shape::threads,
          shared_bytes,
          Shape::blocks,
          Shape::tile_keys,
          Shape::key_warps,
          Shape::sharing,
          attend<Shape, SourceOf, Stage>};
}

// dim, value_dim, rows of a warp, warps over rows, warps over keys, keys of a tile, stages, steps of queries
// in registers, blocks of a multiprocessor, warps that share rows.
template <Type type>
struct Shapes {
  using Of64 = Shape<type, 64, 64, 32, 4, 1, 64, 2, 4, 2>;
  using Of64WithOptions = Shape<type, 64, 64, 32, 4, 1, 64, 2, 0, 2>;
  using Small64 = Shape<type, 64, 64, 32, 4, 1, 32, 2, 0, 2>;
  using Of96 = Shape<type, 96, 96, 32, 4, 1, 64, 2, 0, 2>;
  using Of128 = Shape<type, 128, 128, 32, 4, 1, 64, 2, 0, 2>;
  using Of128WithOptions = Shape<type, 128, 128, 32, 4, 1, 32, 3, 0, 2>;
  using Small128 = Shape<type, 128, 128, 32, 4, 1, 32, 2, 0, 2>;
  using Of192And128 = Shape<type, 192, 128, 32, 4, 1, 32, 2, 0, 2>;
  using Of256 = Shape<type, 256, 256, 16, 8, 1, 64, 2, 0, 1>;
  // Two warps for 32 rows read 96 matrices for 256 products, one for 16 rows 144 (plan.hpp).
  using Shared256 = Shape<type, 256, 256, 32, 4, 1, 64, 2, 0, 1, 2>;
  // 128 rows and 64 keys in 163 KB; 64 rows and 32 keys in 99 (tiles.cuh).
  using Middle256 = Shape<type, 256, 256, 32, 4, 1, 64, 1, 0, 1, 2>;
  using Short256 = Shape<type, 256, 256, 16, 4, 1, 32, 1, 0, 2>;
  using Small256 = Shape<type, 256, 256, 16, 4, 1, 16, 2, 0, 2>;
  using Few128 = Shape<type, 128, 128, 16, 1, 4, 64, 3, 8, 2>;
  using SmallFew128 = Shape<type, 128, 128, 16, 1, 4, 64, 2, 8, 2>;
  using Few256 = Shape<type, 256, 256, 16, 1, 4, 64, 2, 0, 1>;
  using Some128 = Shape<type, 128, 128, 32, 2, 2, 64, 2, 0, 2>;  // 64 rows
  using Slab = Shape<type, 128, slab_dims, 16, 4, 1, 64, 2, 0, 2>;
  using ShortSlab = Shape<type, 128, slab_dims, 16, 4, 1, 32, 2, 0, 2>;
};

template <Type type>
auto heads_of_64() {
  using S = Shapes<type>;
  return std::array{entry<typename S::Of64, Arrays, RangesOnly>(),
                    entry<typename S::Of96, Arrays, RangesOnly>(),
                    entry<typename S::Of64WithOptions, Arrays, Masked>(),
                    entry<typename S::Of64WithOptions, Arrays, EveryOption>(),
                    entry<typename S::Small64, Arrays, RangesOnly>(),
                    entry<typename S::Small64, Arrays, EveryOption>()};
}
template <Type type>
auto heads_of_128() {
  using S = Shapes<type>;
  return std::array{entry<typename S::Of128, Arrays, RangesOnly>(),
                    entry<typename S::Of128, Arrays, Masked>(),
                    entry<typename S::Of128, Arrays, Changed>(),
                    entry<typename S::Of128WithOptions, Arrays, Biased>(),
                    entry<typename S::Of128WithOptions, Arrays, EveryOption>(),
                    entry<typename S::Small128, Arrays, RangesOnly>(),
                    entry<typename S::Small128, Arrays, EveryOption>()};
}
template <Type type>
auto heads_of_256() {
  using S = Shapes<type>;
  return std::array{entry<typename S::Of192And128, Arrays, RangesOnly>(),
                    entry<typename S::Shared256, Arrays, RangesOnly>(),
                    entry<typename S::Of256, Arrays, Masked>(),
                    entry<typename S::Of256, Arrays, EveryOption>(),
                    entry<typename S::Middle256, Arrays, RangesOnly>(),
                    entry<typename S::Short256, Arrays, RangesOnly>(),
                    entry<typename S::Small256, Arrays, EveryOption>()};
}
template <Type type>
auto caches() {
  using S = Shapes<type>;
  return std::array{entry<typename S::Of128, Pages, RangesOnly>(),
                    entry<typename S::Of128WithOptions, Pages, EveryOption>(),
                    entry<typename S::Of256, Pages, EveryOption>(),
                    entry<typename S::Small128, Pages, EveryOption>(),
                    entry<typename S::Of128WithOptions, Int8Pages, EveryOption>(),
                    entry<typename S::Of256, Int8Pages, EveryOption>()};
}
template <Type type>
auto few_rows() {
  using S = Shapes<type>;
  return std::array{entry<typename S::Few128, Arrays, RangesOnly>(),
                    entry<typename S::Few128, Arrays, EveryOption>(),
                    entry<typename S::Some128, Arrays, RangesOnly>(),
                    entry<typename S::Few256, Arrays, RangesOnly>(),
                    entry<typename S::SmallFew128, Arrays, RangesOnly>(),
                    entry<typename S::Few128, Pages, RangesOnly>(),
                    entry<typename S::Few128, Pages, EveryOption>(),
                    entry<typename S::Few256, Pages, RangesOnly>(),
                    entry<typename S::SmallFew128, Pages, RangesOnly>(),
                    entry<typename S::Few128, Int8Pages, RangesOnly>(),
                    entry<typename S::Few128, Int8Pages, EveryOption>(),
                    entry<typename S::Few256, Int8Pages, RangesOnly>()};
}

template <Type type, int group>
std::span<const Kernel> kernels_of() {
  static const auto list = [] {
    if constexpr (group == 0)
      return heads_of_64<type>();
    else if constexpr (group == 1)
      return heads_of_128<type>();
    else if constexpr (group == 2)
      return heads_of_256<type>();
    else if constexpr (group == 3)
      return caches<type>();
    else
      return few_rows<type>();
  }();
  return list;
}

template <class Slab>
Kernel slab_entry(Function function) {
  return {Slab::type,     any_dim,         any_dim,         Slab::rows,
          Source::arrays, all_features,    Slab::threads,   sizeof(SlabMemory<Slab>),
          Slab::blocks,   Slab::tile_keys, Slab::key_warps, Slab::sharing,
          function};
}

template <Type type>
SlabKernels slab_kernels() {
  using Slab = typename Shapes<type>::Slab;
  using Short = typename Shapes<type>::ShortSlab;
  return {slab_entry<Slab>(attend_slab<Slab>), slab_entry<Slab>(inspect<Slab>),
          slab_entry<Slab>(finish<Slab>), slab_entry<Short>(finish<Short>),
          slab_entry<Slab>(finish<HalvedSums<Slab>>)};
}

}  // namespace heed::cuda::general
