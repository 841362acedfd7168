// SPDX-License-Identifier: Apache-2.0
// Prefill's kernels on a CPU that emulates a GPU's threads: what prefill.cu and kernel.cuh do around them,
// for one launch at a time and without boolean masks, caches and keys that are cut.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "../kernels.hpp"
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
  Launch(const Call& call, const Problem& problem)
      : c(call), query_rows_(problem.inputs.q.shape.length), key_rows_(problem.inputs.k.shape.length) {
    plan_.next_tile = counters_;
    plan_.tile_heads = 1, plan_.key_rows = static_cast<int>(key_rows_);
    plan_.group = static_cast<int>(c.group()), plan_.kv_heads = static_cast<int>(c.kv_heads);
    const auto rows = static_cast<int>(prefill_rows(c));
    if (c.sequences) {
      for (std::int64_t b = 0; b < c.batch; ++b)
        starts_.push_back(starts_.back() + static_cast<int>((c.sequence(b).queries + rows - 1) / rows));
      plan_.tile_starts = starts_.data();
      plan_.tiles = starts_.back() * static_cast<int>(c.heads);
    } else {
      plan_.order = prefill_order(c, rows);
      plan_.tiles = plan_.order.heads * plan_.order.tiles;
    }
    pack_masks();
  }

  // Whether there is a kernel of this shape for it, here.
  template <int dim, int value_dim, Type type, PrefillKind kind>
  bool run() {
    const PrefillDims of = prefill_dims_for(c);
    if (of.dim != dim || of.value_dim != value_dim || c.q.type != type || prefill_kind(c) != kind)
      return false;
    if constexpr (may_be_bounded(kind, type))
      if (c.softcap_log2e <= max_bound && !c.sink.data)
        return attend<PrefillShape<dim, value_dim, type, kind, true>>(), true;
    return attend<PrefillShape<dim, value_dim, type, kind>>(), true;
  }

 private:
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
    plan_.q = tensor_map(c.q, {c.dim, query_rows_, c.heads, c.batch}, Shape::rows);
    plan_.out = tensor_map(c.out, {c.value_dim, query_rows_, c.heads, c.batch}, 64);
    plan_.k = tensor_map(c.k, {c.dim, key_rows_, c.kv_heads, c.batch}, Shape::keys);
    plan_.v = tensor_map(c.v, {c.value_dim, key_rows_, c.kv_heads, c.batch}, Shape::keys);
    if (Shape::biased) plan_.bias = tensor_map(c.bias, {c.keys, query_rows_, c.heads, c.batch}, Shape::rows);
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
  }

  const Call& c;
  const std::int64_t query_rows_, key_rows_;
  PrefillPlan plan_{};
  unsigned counters_[2] = {};
  std::vector<int> starts_{0};
  std::vector<std::uint32_t> words_{};
  std::vector<TileClass> classes_{};
};

}  // namespace

std::vector<std::string> kernel_names() { return {"cuda.prefill"}; }
bool is_emulated() { return true; }

bool run(const std::string&, const Problem& problem, Cut) {
  const LoweredCall lowered(problem);
  if (prefill_refuses(lowered.call)) return false;
  Launch launch(lowered.call, problem);
  using enum PrefillKind;
  constexpr Type bf16 = Type::bf16, f16 = Type::f16;
  return launch.run<64, 64, bf16, plain>() || launch.run<64, 64, bf16, capped>() ||
         launch.run<64, 64, bf16, masked>() || launch.run<64, 64, bf16, sloped>() ||
         launch.run<64, 64, bf16, biased>() || launch.run<64, 64, bf16, dropping>() ||
         launch.run<128, 128, f16, plain>() || launch.run<128, 128, f16, capped>() ||
         launch.run<256, 256, bf16, plain>();
}

}  // namespace test
}  // namespace heed::cuda
