// SPDX-License-Identifier: Apache-2.0
// What Hopper (sm_90a) adds: barriers in shared memory that count arrivals and bytes, the copy engine that
// moves boxes of a tensor, and warpgroups that take registers from each other.
#pragma once
#include <cuda.h>  // types of a tensor map

#include <cstdint>

#include "cuda/tile/block.cuh"

namespace heed::cuda {

// A barrier completes a phase when `count` threads and all expected bytes have arrived. Waiting for parity 1
// of a fresh one returns at once.
HEED_DEVICE void barrier_init(SharedAddress barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
HEED_DEVICE void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
HEED_DEVICE void barrier_arrive(SharedAddress barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
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

// A launch may begin before those ahead of it on the stream have ended. Until they have, with all they wrote:
HEED_DEVICE void wait_for_prior_launches() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// 128 bytes into the second-level cache, which every write goes through: they may still change.
HEED_DEVICE void prefetch_l2(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }
// The next launch may begin when every block has called this: it waits by itself for what it reads.
HEED_DEVICE void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

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

// Policies of the second-level cache for what is read.
constexpr std::uint64_t evict_first = 0x12F0000000000000u, evict_last = 0x14F0000000000000u;

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
// Bytes that lie together, a multiple of 16.
HEED_DEVICE void store_bytes(void* to, SharedAddress from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
// Adds floats to those in memory.
HEED_DEVICE void add_floats(float* to, SharedAddress from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(from), "r"(bytes)
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

}  // namespace heed::cuda
