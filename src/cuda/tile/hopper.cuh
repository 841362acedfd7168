// SPDX-License-Identifier: Apache-2.0
// What Hopper (sm_90a) adds: barriers in shared memory that count arrivals and bytes, the copy engine that
// moves boxes of a tensor, warpgroups that take registers from each other, and their matrix instructions.
#pragma once
#include <cuda.h>  // types of a tensor map

#include <cstdint>

#include "cuda/call.hpp"
#include "cuda/tile/block.cuh"

namespace heed::cuda {

// Moves to the next multiple of 1024, where operands of the matrix units begin: a launch asks for 1024 bytes
// more than it needs. With the address of the pointer once it was moved, products of gradients of 64
// dimensions waited (C7511; CUDA 13.0, November 2026).
HEED_DEVICE SharedAddress align_1024(unsigned char*& memory) {
  const SharedAddress from = shared_address(memory), at = (from + 1023u) & ~1023u;
  memory += at - from;
  return at;
}

// A barrier completes a phase when `count` threads and all expected bytes have arrived. Waiting for parity 1
// of a fresh one returns at once.
HEED_DEVICE void barrier_init(SharedAddress barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
HEED_DEVICE void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
HEED_DEVICE void barrier_arrive(SharedAddress barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// As so many.
HEED_DEVICE void barrier_arrive(SharedAddress barrier, unsigned count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
HEED_DEVICE void barrier_arrive_expecting(SharedAddress barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Bytes beside those that the arrival expects, which comes later.
HEED_DEVICE void barrier_expect(SharedAddress barrier, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
HEED_DEVICE bool barrier_is_complete(SharedAddress barrier, unsigned parity) {
  std::uint32_t has;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(has)
      : "r"(barrier), "r"(parity)
      : "memory");
  return has != 0;
}
HEED_DEVICE void barrier_wait(SharedAddress barrier, unsigned parity) {
  while (!barrier_is_complete(barrier, parity)) {
  }
}

// This thread arrives when all copies that it has started have arrived.
HEED_DEVICE void barrier_arrive_after_copies(SharedAddress barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// True in one thread of a converged warp.
HEED_DEVICE bool elect_one() {
  std::uint32_t elected;
  asm volatile(
      "{\n.reg .pred p;\n.reg .b32 t;\n"
      "elect.sync t|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(elected));
  return elected != 0;
}

template <int count>
HEED_DEVICE void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
HEED_DEVICE void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

// Waits at a named barrier; true in every thread where it is true in one.
HEED_DEVICE bool named_any(int barrier, int threads, bool one) {
  std::uint32_t found;
  asm volatile(
      "{\n.reg .pred p, q;\n"
      "setp.ne.u32 p, %3, 0;\n"
      "barrier.cta.red.or.pred q, %1, %2, p;\n"
      "selp.u32 %0, 1, 0, q;\n}\n"
      : "=r"(found)
      : "r"(barrier), "r"(threads), "r"(static_cast<std::uint32_t>(one))
      : "memory");
  return found != 0;
}

// Known to be the same in all threads of a warp, so that addresses made of it are computed once for all of
// them.
HEED_DEVICE int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }
HEED_DEVICE int warpgroup_index() { return uniform(thread_index() / 128); }

// 128 bytes into the second-level cache, which every write goes through: they may still change.
HEED_DEVICE void prefetch_l2(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

// The 128 threads of a warpgroup, with a named barrier of their own.
struct Warpgroup {
  static constexpr int threads = 128;
  int barrier;
  HEED_DEVICE int thread() const { return thread_index() % threads; }
  HEED_DEVICE void sync() const { named_sync(barrier, threads); }
  HEED_DEVICE bool any(bool one) const { return named_any(barrier, threads, one); }
};

// Blocks of a cluster run at the same time and write to each other's shared memory. Waits until every thread
// of the cluster that still runs has arrived.
HEED_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
HEED_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }
// The same address in block `rank` of the cluster.
HEED_DEVICE SharedAddress map_to_rank(SharedAddress own, int rank) {
  SharedAddress mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(own), "r"(rank));
  return mapped;
}
// Stores into another block; the bytes count at a barrier of that block.
HEED_DEVICE void store_remote(SharedAddress to, const float (&x)[4], SharedAddress barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          to),
      "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier)
      : "memory");
}
HEED_DEVICE void store_remote(SharedAddress to, const float (&x)[2], SharedAddress barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to),
      "f"(x[0]), "f"(x[1]), "r"(barrier)
      : "memory");
}

// Policies of the second-level cache for what is read or written.
constexpr std::uint64_t evict_first = 0x12F0000000000000u, evict_last = 0x14F0000000000000u,
                        evict_normal = 0x1000000000000000u;

struct BoxAt {
  int dim, row, head, entry;
};

HEED_DEVICE void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Bytes that lie together, a multiple of 16.
HEED_DEVICE void load_bytes(SharedAddress to, const void* from, int bytes, SharedAddress barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Outside the tensor a box is filled with zeros, which count as bytes all the same.
HEED_DEVICE void load_box(SharedAddress to, const CUtensorMap* map, const BoxAt& at, SharedAddress barrier,
                          std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(at.dim), "r"(at.row), "r"(at.head), "r"(at.entry), "l"(policy)
      : "memory");
}
// Whole rows, from a map that has pieces of 64 dimensions as an axis.
HEED_DEVICE void load_rows(SharedAddress to, const CUtensorMap* map, const BoxAt& at, SharedAddress barrier,
                           std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(0), "r"(at.row), "r"(0), "r"(at.head), "r"(at.entry), "l"(policy)
      : "memory");
}
HEED_DEVICE void store_box(const CUtensorMap* map, const BoxAt& at, SharedAddress from) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
      "r"(from), "r"(at.dim), "r"(at.row), "r"(at.head), "r"(at.entry)
      : "memory");
}
HEED_DEVICE void store_box(const CUtensorMap* map, const BoxAt& at, SharedAddress from,
                           std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint "
      "[%0, {%2, %3, %4, %5}], [%1], %6;" ::"l"(map),
      "r"(from), "r"(at.dim), "r"(at.row), "r"(at.head), "r"(at.entry), "l"(policy)
      : "memory");
}
// Bytes that lie together, a multiple of 16.
HEED_DEVICE void store_bytes(void* to, SharedAddress from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
HEED_DEVICE void store_bytes(void* to, SharedAddress from, int bytes, std::uint64_t policy) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;" ::"l"(to),
               "r"(from), "r"(bytes), "l"(policy)
               : "memory");
}
// Adds floats to those in memory.
HEED_DEVICE void add_floats(float* to, SharedAddress from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(from), "r"(bytes)
               : "memory");
}
HEED_DEVICE void add_floats(float* to, SharedAddress from, int bytes, std::uint64_t policy) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 [%0], [%1], %2, %3;" ::"l"(
          to),
      "r"(from), "r"(bytes), "l"(policy)
      : "memory");
}
HEED_DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until this thread's stores have read their memory, or until they are done.
HEED_DEVICE void wait_for_stores_to_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
HEED_DEVICE void wait_for_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Makes what this thread wrote to shared memory visible to the copy engine and the matrix units.
HEED_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// And what the copy engine has stored before what this thread says of it, or the other way round.
HEED_DEVICE void fence_all_proxies() { asm volatile("fence.proxy.async;" ::: "memory"); }

// Four 8 x 8 matrices of 16-bit numbers from a warp's registers to rows of 16 bytes, one row for each lane.
HEED_DEVICE void store_matrices(SharedAddress row, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}

// The same, each matrix transposed.
HEED_DEVICE void store_matrices_transposed(SharedAddress row, std::uint32_t a, std::uint32_t b,
                                           std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// Products of a warpgroup's matrix instructions: 64 rows times 32 to 256 columns, 16 deep, summed in
// f32. Thread t holds rows 16 (t / 32) + t % 32 / 4 and 8 further down; of every eight columns the two from 2
// (t % 4) on: sums [4 n], [4 n + 1] of the first row and [4 n + 2], [4 n + 3] of the second for columns 8 n.

// An operand in shared memory: rows of 128 bytes in the copy engine's 128-byte swizzle, or of 32 bytes in
// that of 32; eight rows are 1024 or 256 bytes. `next` is the distance to the next 64 or 16 columns, where
// the operand is transposed. This is the half of the descriptor that differs; additions stay within it.
using Operand = std::uint32_t;
HEED_DEVICE Operand operand(SharedAddress tile, int next = 16) {
  return (tile & 0x3FFFFu) >> 4 | static_cast<std::uint32_t>(next >> 4) << 16;
}
HEED_DEVICE Operand advanced(Operand x, int bytes) { return x + static_cast<std::uint32_t>(bytes >> 4); }
template <int row_bytes = 128>
HEED_DEVICE std::uint64_t descriptor(Operand x) {
  static_assert(row_bytes == 128 || row_bytes == 32);
  constexpr std::uint64_t eight_rows = 8 * row_bytes >> 4, swizzle = row_bytes == 128 ? 1u << 30 : 3u << 30;
  return (eight_rows | swizzle) << 32 | x;
}

HEED_DEVICE void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
HEED_DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all but the last n groups are done.
template <int n>
HEED_DEVICE void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory");
}
// What x is made of comes before the next wait for products. ptxas moves such a wait ahead of arithmetic that
// does not need it, so that what was to run beside the products runs after them, but not ahead of a store:
// this one never comes to pass, since x is not negative, nor is the one NaN that a GPU makes (0x7fffffff).
HEED_DEVICE void stay_before_waits(float x) {
  asm volatile("{ .reg .pred p; setp.lt.s32 p, %0, 0; @p st.shared.b32 [%1], %0; }" ::"r"(__float_as_int(x)),
               "r"(0)
               : "memory");
}
// Keeps the compiler from moving other uses of registers across a product in flight that owns them.
template <int n>
HEED_DEVICE void pin(float (&x)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int n>
HEED_DEVICE void pin(std::uint32_t (&x)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

// The first n of a thread's sums: those of fewer columns.
template <int n>
using Sums = float[n];
template <int n, int all>
HEED_DEVICE Sums<n>& first_sums(Sums<all>& x) {
  static_assert(n <= all);
  return reinterpret_cast<Sums<n>&>(x);
}

// PTX wants every register by its number.
#define HEED_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define HEED_NAMES_32 \
  HEED_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HEED_NAMES_48 \
  HEED_NAMES_32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define HEED_NAMES_56 \
  HEED_NAMES_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55"
#define HEED_NAMES_64 \
  HEED_NAMES_56       \
  ", %56, %57, %58, %59, %60, %61, %62, %63"
#define HEED_NAMES_96                                                                                 \
  HEED_NAMES_64                                                                                       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, " \
  "%83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define HEED_NAMES_128                                                                                   \
  HEED_NAMES_96                                                                                          \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
  "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define HEED_FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HEED_SUMS_8(d, i) HEED_FOUR(d, i), HEED_FOUR(d, i + 4)
#define HEED_SUMS_16(d, i) HEED_SUMS_8(d, i), HEED_SUMS_8(d, i + 8)
#define HEED_SUMS_32(d, i) HEED_SUMS_16(d, i), HEED_SUMS_16(d, i + 16)
#define HEED_SUMS_48(d, i) HEED_SUMS_32(d, i), HEED_SUMS_16(d, i + 32)
#define HEED_SUMS_56(d, i) HEED_SUMS_48(d, i), HEED_SUMS_8(d, i + 48)
#define HEED_SUMS_64(d, i) HEED_SUMS_32(d, i), HEED_SUMS_32(d, i + 32)
#define HEED_SUMS_96(d, i) HEED_SUMS_64(d, i), HEED_SUMS_32(d, i + 64)
#define HEED_SUMS_128(d, i) HEED_SUMS_64(d, i), HEED_SUMS_64(d, i + 64)

// Both operands in shared memory, or the first in registers; `adds` 0 begins a sum, `transposed` transposes
// the second, whose rows have so many bytes, `first_transposed` the first.
#define HEED_PRODUCTS(columns, sums, n0, n1, n2, n3, n4, n5, name)                                     \
  template <int transposed, int row_bytes, int first_transposed>                                       \
  HEED_DEVICE void multiply_##name(float(&d)[sums], Operand a, Operand b, int adds) {                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n2                                              \
                 ", 0;\n"                                                                              \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #name "." #name               \
                 " {" HEED_NAMES_##sums                                                                \
                 "}, "                                                                                 \
                 "%" #n0 ", %" #n1 ", p, 1, 1, %" #n4 ", %" #n3 ";\n}\n"                               \
                 : HEED_SUMS_##sums(d, 0)                                                              \
                 : "l"(descriptor(a)), "l"(descriptor<row_bytes>(b)), "r"(adds), "n"(transposed),      \
                   "n"(first_transposed));                                                             \
  }                                                                                                    \
  template <int transposed, int row_bytes>                                                             \
  HEED_DEVICE void multiply_##name(float(&d)[sums], const std::uint32_t* a, Operand b) {               \
    asm volatile(                                                                                      \
        "{\n.reg .pred p;\nmov.pred p, 1;\n"                                                           \
        "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #name "." #name " {" HEED_NAMES_##sums \
        "}, "                                                                                          \
        "{%" #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}, %" #n4 ", p, 1, 1, %" #n5 ";\n}\n"                  \
        : HEED_SUMS_##sums(d, 0)                                                                       \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(descriptor<row_bytes>(b)), "n"(transposed)); \
  }
HEED_PRODUCTS(32, 16, 16, 17, 18, 19, 20, 21, bf16)
HEED_PRODUCTS(32, 16, 16, 17, 18, 19, 20, 21, f16)
HEED_PRODUCTS(64, 32, 32, 33, 34, 35, 36, 37, bf16)
HEED_PRODUCTS(64, 32, 32, 33, 34, 35, 36, 37, f16)
HEED_PRODUCTS(96, 48, 48, 49, 50, 51, 52, 53, bf16)
HEED_PRODUCTS(96, 48, 48, 49, 50, 51, 52, 53, f16)
HEED_PRODUCTS(112, 56, 56, 57, 58, 59, 60, 61, bf16)
HEED_PRODUCTS(112, 56, 56, 57, 58, 59, 60, 61, f16)
HEED_PRODUCTS(128, 64, 64, 65, 66, 67, 68, 69, bf16)
HEED_PRODUCTS(128, 64, 64, 65, 66, 67, 68, 69, f16)
HEED_PRODUCTS(192, 96, 96, 97, 98, 99, 100, 101, bf16)
HEED_PRODUCTS(192, 96, 96, 97, 98, 99, 100, 101, f16)
HEED_PRODUCTS(256, 128, 128, 129, 130, 131, 132, 133, bf16)
HEED_PRODUCTS(256, 128, 128, 129, 130, 131, 132, 133, f16)
#undef HEED_PRODUCTS

// d = [d +] a * b, operands as they lie or transposed.
template <Type type, int transposed, int row_bytes = 128, int first_transposed = 0, int sums>
HEED_DEVICE void multiply(float (&d)[sums], Operand a, Operand b, int adds) {
  if constexpr (type == Type::bf16)
    multiply_bf16<transposed, row_bytes, first_transposed>(d, a, b, adds);
  else
    multiply_f16<transposed, row_bytes, first_transposed>(d, a, b, adds);
}
template <Type type, int transposed, int row_bytes = 128, int sums>
HEED_DEVICE void multiply(float (&d)[sums], const std::uint32_t* a, Operand b) {
  if constexpr (type == Type::bf16)
    multiply_bf16<transposed, row_bytes>(d, a, b);
  else
    multiply_f16<transposed, row_bytes>(d, a, b);
}

}  // namespace heed::cuda
