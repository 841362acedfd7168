// SPDX-License-Identifier: Apache-2.0
// A kernel's entry in the list of kernels.
#pragma once
#include "general/inspect.cuh"
#include "general/kernel.cuh"
#include "general/launch.hpp"
#include "general/merge.cuh"

namespace heed::cuda::general {

template <template <class> class Source>
constexpr SourceKind source_kind = SourceKind::arrays;
template <>
inline constexpr SourceKind source_kind<Pages> = SourceKind::pages;
template <>
inline constexpr SourceKind source_kind<Int8Pages> = SourceKind::int8_pages;

template <class Stage>
constexpr int features_of_stage = -1;
template <class Shape, unsigned features>
inline constexpr int features_of_stage<Options<Shape, features>> = static_cast<int>(features);

template <class Shape, template <class> class Source, template <class> class Stage>
Kernel entry(const char* name, bool is_few) {
  return {name,
          Shape::type,
          Shape::dim,
          Shape::value_dim,
          Shape::rows,
          source_kind<Source>,
          features_of_stage<Stage<Shape>>,
          is_few,
          Shape::threads,
          static_cast<int>(sizeof(Memory<Shape, Source<Shape>>)),
          Shape::blocks,
          Shape::tile_keys,
          Shape::key_warps,
          reinterpret_cast<const void*>(&attend<Shape, Source, Stage>),
          reinterpret_cast<const void*>(&merge<Shape::type>)};
}

// With a second pass for weights and scores.
template <class Shape, template <class> class Source>
Kernel entry_with_inspection(const char* name, bool is_few) {
  Kernel k = entry<Shape, Source, EveryOption>(name, is_few);
  k.inspect = reinterpret_cast<const void*>(&inspect<Shape, Source>);
  return k;
}

struct Enter {
  template <class... Entries>
  explicit Enter(const Entries&... entries) {
    (kernels().push_back(entries), ...);
  }
};

}  // namespace heed::cuda::general
