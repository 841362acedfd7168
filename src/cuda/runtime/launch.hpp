// SPDX-License-Identifier: Apache-2.0
// Kernels on a stream. Nothing here waits for the device or allocates on it, so that all of it can be
// captured in a CUDA graph; what a kernel needs besides the call's own tensors it finds in the workspace.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/runtime/mask.hpp"

struct CUstream_st;

namespace heed::cuda {

using Stream = CUstream_st*;

// Memory on the device for one call at a time. The first counter_bytes of it are 0 before and after every
// call.
struct Workspace {
  static constexpr std::int64_t counter_bytes = 16384;
  std::byte* memory = nullptr;
  std::int64_t bytes = 0;
  std::byte* free = nullptr;  // behind what a call has put in it; null: behind the counters

  unsigned* counters() const { return reinterpret_cast<unsigned*>(memory); }
  std::byte* rest() const { return free ? free : memory + counter_bytes; }
};

// The device that is current.
struct DeviceFacts {
  int ordinal, multiprocessors, major, minor;
  int shared_bytes;  // of a multiprocessor; the driver keeps 1 KB of every block's

  bool fits_block(std::size_t bytes) const { return bytes + 1024 <= static_cast<std::size_t>(shared_bytes); }
  bool fits_blocks(int blocks, std::size_t each) const {
    return static_cast<std::size_t>(blocks) * (each + 1024) <= static_cast<std::size_t>(shared_bytes);
  }
};
// HEED_CUDA_ARCH=80, 86 or 89 in the environment: as if the device were of that architecture, so that a newer
// one runs what older ones run. With CUDA_FORCE_PTX_JIT=1 it runs their PTX, too.
DeviceFacts device_facts();

// Throws Error::device with the call and CUDA's code, unless it is 0.
void check(int code, const char* call);

// What a call brings to the device: bytes, and pointers to pages of a cache, which travel as distances from
// the first page, in lines.
struct Upload {
  static constexpr std::int64_t line = 64;  // bytes; every page begins on one

  const std::byte* bytes = nullptr;
  std::int64_t byte_count = 0;
  const std::uint32_t* pages = nullptr;
  std::int64_t page_count = 0;
  const unsigned char* first_page = nullptr;
};
// In the arguments of launches: the host's may change at once. Pointers come first; what follows them lies on
// 16 bytes.
void upload(std::byte* to, const Upload&, Stream);
constexpr std::int64_t pointer_bytes(std::int64_t pages) { return (pages + 1) / 2 * 16; }

// How keys are shared out among blocks, which no bit depends on.
enum class Cut : std::int8_t { by_the_plan, together, apart };
// Blocks to plan for, where the device runs `at_once`.
constexpr std::int64_t planned_blocks(Cut cut, std::int64_t at_once) {
  return cut == Cut::by_the_plan ? at_once : cut == Cut::together ? 0 : std::int64_t{1} << 40;
}

// Each kernel: why it does not take a call (null: it does), how many bytes it needs beyond the counters, and
// its launch.

// Everything in f32, with the CPU's bits; weights and scores too.
const char* exact_refuses(const Call&);
std::int64_t exact_bytes(const Call&);
void launch_exact(const Call&, const Workspace&, Stream, Cut);

// Everything in bf16 and f16, on the matrix units of every architecture since 8.0.
const char* general_refuses(const Call&);
const char* split_refuses(const Call&);
std::int64_t general_bytes(const Call&);
void launch_general(const Call&, const Workspace&, Stream, Cut);

// What every kernel of Hopper's matrix units refuses.
inline const char* matrix_units_refuse(const Call& c) {
  if (c.q.type != Type::bf16 && c.q.type != Type::f16) return "it takes bf16 and f16";
  const bool is_int8 = c.cached && c.layout.is_quantized;
  if (!is_int8 && (c.k.type != c.q.type || c.v.type != c.q.type))
    return "it takes k and v of q's type, or a cache of int8";
  if (c.front > 0 || c.gap_count > 0) return "it takes no front of a window";
  if (c.weights.data) return "weights were asked for";
  if (c.scores.data) return "scores were asked for";
  if (!std::isfinite(c.scale_log2e)) return "options.scale times log2(e) is beyond the range of f32";
  if (!std::isfinite(c.softcap_log2e)) return "options.softcap times log2(e) is beyond the range of f32";
  // What a query sees ends at up to twice the queries, and the keys, in 31 bits.
  if (c.keys >= std::int64_t{1} << 30 || c.queries >= std::int64_t{1} << 29)
    return "there are 2^29 queries, 2^30 keys, or more";
  if (c.cached && c.layout.page_size >= std::int64_t{1} << 30) return "pages have 2^30 tokens or more";
  return nullptr;
}

// What the tensors of a call hold beyond one sequence: the copy engine must know where they end. And what its
// masks hold, as bits, which are not packed yet.
struct Extents {
  std::int64_t query_rows, key_rows;
  PackedMask mask{};
};

// Many rows of bf16 or f16.
const char* prefill_refuses(const Call&);
// Tiles of one head, of all sequences; starts as in PrefillPlan and in Partials, on the device.
struct PrefillTiles {
  const int *starts, *partial_starts;
  std::int64_t count;
};
std::int64_t prefill_rows(const Call&);                    // of a tile
std::int64_t prefill_units(const Call&, const Sequence&);  // that its keys are cut into; 1: they are not
int prefill_tile_keys(const Call&);
std::int64_t prefill_bytes(const Call&, const Extents&);
// Of a cached call k and v say how their rows are to lie in the workspace.
void launch_prefill(const Call&, const Extents&, const PrefillTiles&, const Workspace&, Stream);

// A few rows of bf16 or f16 that share a KV head.
const char* decode_refuses(const Call&);
std::int64_t decode_bytes(const Call&, const Extents&);
constexpr int decode_mask_keys = 64;  // of a tile, for its masks
void launch_decode(const Call&, const Extents&, const Workspace&, Stream, Cut);

}  // namespace heed::cuda
