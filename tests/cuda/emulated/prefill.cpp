// SPDX-License-Identifier: Apache-2.0
// Prefill's kernels on a CPU that emulates a GPU's threads, and what prefill.cu and kernel.cuh do around
// them. Pages are read where they lie; caches whose pages come as rows are refused.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "../kernels.hpp"
#include "cuda/general/merge.cuh"
#include "cuda/lower.hpp"
#include "cuda/prefill/consumer.cuh"
#include "cuda/prefill/launch.hpp"
#include "cuda/prefill/producer.cuh"
#include "cuda/runtime/tensor_map.hpp"
#include "emulated/fibers.hpp"

namespace {

// As the driver's cuTensorMapEncodeTiled: `step` lacks the first axis, whose elements have two bytes.
CUresult encode(CUtensorMap* map, CUtensorMapDataType, cuuint32_t axes, void* data, const cuuint64_t* extent,
                const cuuint64_t* step, const cuuint32_t* box, const cuuint32_t*, CUtensorMapInterleave,
                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  map->data = static_cast<unsigned char*>(data), map->axes = static_cast<int>(axes);
  map->swizzle = swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? 128 : 64;
  for (cuuint32_t n = 0; n < axes; ++n) {
    map->extent[n] = static_cast<std::int64_t>(extent[n]), map->box[n] = static_cast<int>(box[n]);
    map->step[n] = n == 0 ? 2 : static_cast<std::int64_t>(step[n - 1]);
  }
  return CUDA_SUCCESS;
}

}  // namespace

int cudaGetDriverEntryPointByVersion(const char*, void** entry, unsigned, unsigned long long,
                                     cudaDriverEntryPointQueryResult* result) {
  *entry = reinterpret_cast<void*>(&encode), *result = cudaDriverEntryPointSuccess;
  return 0;
}

namespace heed::cuda {

void check(int code, const char* call) {
  if (code != 0) throw std::runtime_error(call);
}

namespace test {
namespace {

// What a launch of prefill reads beside the call.
class Launch {
 public:
  explicit Launch(const LoweredCall& lowered)
      : c(lowered.call), extents_{lowered.query_rows, lowered.key_rows} {
    if (c.cached) read_pages(lowered);
    // As PrefillStarts in backend.cpp.
    for (std::int64_t b = 0; b < c.batch; ++b) {
      const Sequence& s = c.sequence(b);
      const std::int64_t units = prefill_units(c, s), states = units > 1 ? s.queries * c.group() * units : 0;
      starts_.push_back(starts_.back() +
                        static_cast<int>((s.queries + prefill_rows(c) - 1) / prefill_rows(c) * units));
      partial_starts_.push_back(partial_starts_.back() + static_cast<std::int32_t>(states));
    }
    PrefillTiles tiles{.count = starts_.back()};
    if (c.sequences) tiles.starts = starts_.data();
    if (c.sequences && partial_starts_.back() > 0) tiles.partial_starts = partial_starts_.data();
    plan_ = prefill_plan(c, extents_, tiles);
    plan_.next_tile = counters_;
    states_.resize(
        static_cast<std::size_t>(partial_starts_.back() * c.kv_heads * partial_floats(c.value_dim)),
        std::numeric_limits<float>::quiet_NaN());
    plan_.partials.states = states_.data();
    pack_masks();
  }

  // Of a cache whose pages come as rows.
  bool is_gathered() const { return c.cached && !reads_pages(c); }

  // Whether there is a kernel of this shape for it, here.
  template <int dim, int value_dim, Type type, PrefillKind kind>
  bool run() {
    const PrefillDims of = prefill_dims_for(c);
    if (of.dim != dim || of.value_dim != value_dim || c.q.type != type || prefill_kind(c) != kind)
      return false;
    if constexpr (may_be_bounded(kind, type))
      if (is_bounded(c)) return attend<PrefillShape<dim, value_dim, type, kind, true>>(), true;
    return attend<PrefillShape<dim, value_dim, type, kind>>(), true;
  }

 private:
  // As RoleCall in backend.cpp: the copy engine numbers lines from the first page in memory.
  void read_pages(const LoweredCall& lowered) {
    sequences_.assign(lowered.problem.sequences.begin(), lowered.problem.sequences.end());
    for (Sequence& s : sequences_) s.first_key = 0;
    if (c.sequences) c.sequences = sequences_.data();
    c.each.first_key = 0;
    if (!may_read_pages(c)) return;
    const unsigned char *first = nullptr, *last = nullptr;
    for (const cache::PagedSequence& s : lowered.problem.cached)
      for (std::int64_t n = 0; n * c.layout.page_size < s.length; ++n) {
        if (!first || s.table[n] < first) first = s.table[n];
        if (s.table[n] > last) last = s.table[n];
      }
    if (!first) return;
    c.k.data = first;
    extents_.key_rows = (last - first + c.layout.page_bytes()) / 64;
  }

  // As pack_mask in runtime/mask.cu.
  void pack_masks() {
    PackedMask& mask = plan_.mask = packed_mask(c, prefill_tile_keys(c));
    if (mask.row_words == 0) return;
    words_.resize(static_cast<std::size_t>(mask.word_bytes() / 4));
    classes_.resize(static_cast<std::size_t>(mask.bytes() - mask.word_bytes()));
    for (int b = 0; b < mask.batch; ++b)
      for (int h = 0; h < mask.heads; ++h)
        for (int block = 0; block < mask.blocks(); ++block)
          for (int tile = 0; tile < mask.tiles; ++tile)
            classes_[static_cast<std::size_t>((mask.matrix(b, h) * mask.blocks() + block) * mask.tiles +
                                              tile)] = pack_tile(b, h, block, tile);
    mask.words = words_.data(), mask.classes = classes_.data();
  }
  TileClass pack_tile(int b, int h, int block, int tile) {
    const PackedMask& mask = plan_.mask;
    bool sees_any = false, sees_all = true;
    for (int i = block * PackedMask::block_rows;
         i < std::min((block + 1) * PackedMask::block_rows, mask.rows); ++i)
      for (int j = tile * mask.tile_keys;
           j < std::min<int>((tile + 1) * mask.tile_keys, static_cast<int>(c.keys)); ++j) {
        const bool sees = masks_allow(c, {b, h, i, i}, j);
        sees_any |= sees, sees_all &= sees;
        if (sees)
          words_[static_cast<std::size_t>((mask.matrix(b, h) * mask.rows + i) * mask.row_words + j / 32)] |=
              1u << j % 32;
      }
    return sees_all ? TileClass::full : sees_any ? TileClass::mixed : TileClass::empty;
  }

  template <class Shape>
  void attend() {
    plan_.q = tensor_map(c.q, {c.dim, extents_.query_rows, c.heads, c.batch}, Shape::rows / plan_.tile_heads);
    plan_.out = tensor_map(c.out, {c.value_dim, extents_.query_rows, c.heads, c.batch}, 64);
    if constexpr (Shape::paged) {
      const std::int64_t sixteens = c.layout.page_size / 16;
      plan_.k = tensor_map_of_sixteens(c.k, {c.dim, sixteens, extents_.key_rows, Shape::dim});
      plan_.v =
          tensor_map_of_sixteens(c.k, {c.layout.value_width(), sixteens, extents_.key_rows, Shape::dim});
    } else {
      plan_.k = tensor_map(c.k, {c.dim, extents_.key_rows, c.kv_heads, c.batch}, Shape::keys);
      plan_.v = tensor_map(c.v, {c.value_dim, extents_.key_rows, c.kv_heads, c.batch}, Shape::keys);
    }
    if (Shape::biased)
      plan_.bias = tensor_map(c.bias, {c.keys, extents_.query_rows, c.heads, c.batch}, Shape::rows);
    const std::unique_ptr<unsigned char[]> memory(new unsigned char[Shape::shared_bytes]);
    std::memset(memory.get(), 0xff, Shape::shared_bytes);  // NaN, as long as nobody has written
    shared_memory = memory.get();
    emulated::launch(1, Shape::threads, [&] {
      const PrefillShared<Shape> shared(memory.get());
      if (thread_index() == 0) shared.init();
      sync();
      if (thread_index() == 0) PrefillProducer<Shape>(c, plan_, shared).run();
      if (thread_index() >= 128) PrefillConsumer<Shape>(c, plan_, shared).run();
    });
    if (Shape::cut) merge<Shape::type>();
  }

  // As launch_partial_merge.
  template <Type type>
  void merge() {
    using namespace general;
    const MergeGrid grid{plan_.group, plan_.kv_heads, (plan_.partials.rows + merge_warps - 1) / merge_warps};
    double scratch[merge_threads];
    bool is_finished[merge_warps];
    emulated::launch(c.batch * c.kv_heads * grid.head_blocks, merge_threads, [&] {
      const Merge<type> rows(c, plan_.partials, grid, nullptr);
      if (!rows.has_rows()) return;
      const bool is_own_finished = rows.run(warp_index());
      if (lane_index() == 0) is_finished[warp_index()] = is_own_finished;
      if (!any(!is_own_finished)) return;
      for (int w = 0; w < merge_warps; ++w)
        if (!is_finished[w]) complete(c, nullptr, rows.query(w), scratch);
    });
  }

  Call c;
  Extents extents_;
  std::vector<Sequence> sequences_{};
  PrefillPlan plan_{};
  unsigned counters_[2] = {};
  std::vector<int> starts_{0}, partial_starts_{0};
  std::vector<float> states_{};
  std::vector<std::uint32_t> words_{};
  std::vector<TileClass> classes_{};
};

}  // namespace

std::vector<std::string> kernel_names() { return {"cuda.prefill"}; }
bool is_emulated() { return true; }

bool run(const std::string&, const Problem& problem, Cut) {
  const LoweredCall lowered(problem);
  if (prefill_refuses(lowered.call)) return false;
  Launch launch(lowered);
  if (launch.is_gathered()) return false;
  using enum PrefillKind;
  constexpr Type bf16 = Type::bf16, f16 = Type::f16;
  return launch.run<64, 64, bf16, plain>() || launch.run<64, 64, bf16, capped>() ||
         launch.run<64, 64, bf16, masked>() || launch.run<64, 64, bf16, masked_capped>() ||
         launch.run<64, 64, bf16, sloped>() || launch.run<64, 64, bf16, biased>() ||
         launch.run<64, 64, bf16, dropping>() || launch.run<128, 128, f16, plain>() ||
         launch.run<128, 128, f16, capped>() || launch.run<256, 256, bf16, plain>() ||
         launch.run<64, 64, bf16, cut>() || launch.run<64, 64, bf16, paged>() ||
         launch.run<64, 64, bf16, cut_paged>();
}

}  // namespace test
}  // namespace heed::cuda
