// SPDX-License-Identifier: Apache-2.0
// The verbs of src/cuda/tile/hopper.cuh for threads that a CPU emulates. A copy arrives, and a product is
// found, at once: one whose operands are written over too early, or whose sums are read too early, is not
// noticed.
#pragma once
#include <cuda.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/call.hpp"
#include "cuda/tile/block.cuh"

namespace heed::cuda {

inline SharedAddress align_1024(unsigned char*& memory) {
  const SharedAddress from = shared_address(memory), at = (from + 1023u) & ~1023u;
  memory += at - from;
  return at;
}

// A phase that completes is seen from the next round on, so that the threads of a warp go on together.
struct CountingBarrier {
  int count = 0, missing = 0;
  std::int64_t bytes = 0;  // that are expected and have not arrived
  unsigned phase = 0;
  std::int64_t completed = -1;  // in this round

  void arrive(int threads) { missing -= threads, end_phase(); }
  void take(std::int64_t more) { bytes -= more, end_phase(); }
  bool is_complete(unsigned parity) const {
    const unsigned seen = phase - (completed == emulated::rounds ? 1 : 0);
    return (seen & 1) != (parity & 1);
  }

 private:
  void end_phase() {
    if (missing == 0 && bytes == 0) ++phase, missing = count, completed = emulated::rounds;
  }
};
inline std::vector<CountingBarrier> counting_barriers;  // by address
inline CountingBarrier& barrier_at(SharedAddress at) {
  if (counting_barriers.size() <= at / 8) counting_barriers.resize(at / 8 + 1);
  return counting_barriers[at / 8];
}
inline void barrier_init(SharedAddress barrier, int count) { barrier_at(barrier) = {count, count}; }
inline void publish_barriers() {}
inline void barrier_arrive(SharedAddress barrier) { barrier_at(barrier).arrive(1); }
inline void barrier_arrive(SharedAddress barrier, unsigned count) {
  barrier_at(barrier).arrive(static_cast<int>(count));
}
inline void barrier_expect(SharedAddress barrier, int bytes) { barrier_at(barrier).bytes += bytes; }
inline void barrier_arrive_expecting(SharedAddress barrier, int bytes) {
  barrier_expect(barrier, bytes);
  barrier_arrive(barrier);
}
inline bool barrier_is_complete(SharedAddress barrier, unsigned parity) {
  return barrier_at(barrier).is_complete(parity);
}
inline void barrier_wait(SharedAddress barrier, unsigned parity) {
  while (!barrier_is_complete(barrier, parity)) emulated::step_aside();
}

inline bool elect_one() { return lane_index() == 0; }
template <int>
void raise_registers() {}
template <int>
void lower_registers() {}
inline bool named_any(int barrier, int threads, bool one) {
  return emulated::named_any(barrier, threads, one);
}
inline int uniform(int x) { return x; }
inline int warpgroup_index() { return thread_index() / 128; }

struct Warpgroup {
  static constexpr int threads = 128;
  int barrier;
  int thread() const { return thread_index() % threads; }
  void sync() const { named_sync(barrier, threads); }
  bool any(bool one) const { return named_any(barrier, threads, one); }
};

constexpr std::uint64_t evict_first = 1, evict_last = 2, evict_normal = 0;

struct BoxAt {
  int dim, row, head, entry;
};
inline void prefetch_map(const CUtensorMap*) {}

// Rows of so many bytes lie in pieces of 16, whose order changes from row to row.
inline SharedAddress swizzled(SharedAddress at, int row_bytes) {
  return at ^ (at >> 7 & static_cast<unsigned>(row_bytes / 16 - 1)) << 4;
}

// Each element of a box, from the first axis on: where it is in memory (null: outside the tensor), and in
// shared memory.
template <class Each>
void each_of_box(const CUtensorMap& map, const int (&first)[CUtensorMap::most_axes], SharedAddress shared,
                 const Each& each) {
  int at[CUtensorMap::most_axes] = {};
  for (SharedAddress n = 0;; ++n) {
    std::int64_t distance = 0;
    bool is_inside = true;
    for (int axis = 0; axis < map.axes; ++axis) {
      const std::int64_t i = std::int64_t{first[axis]} + at[axis];
      is_inside = is_inside && i >= 0 && i < map.extent[axis];
      distance += i * map.step[axis];
    }
    each(is_inside ? map.data + distance : nullptr, shared_memory + swizzled(shared + 2 * n, map.swizzle));
    int axis = 0;
    while (axis < map.axes && ++at[axis] == map.box[axis]) at[axis++] = 0;
    if (axis == map.axes) return;
  }
}
inline void load_box(SharedAddress to, const CUtensorMap* map, const BoxAt& at, SharedAddress barrier,
                     std::uint64_t) {
  std::int64_t bytes = 0;
  each_of_box(*map, {at.dim, at.row, at.head, at.entry}, to,
              [&](const unsigned char* from, unsigned char* into) {
                if (from)
                  std::memcpy(into, from, 2);
                else
                  std::memset(into, 0, 2);
                bytes += 2;
              });
  barrier_at(barrier).take(bytes);
}
inline void store_box(const CUtensorMap* map, const BoxAt& at, SharedAddress from) {
  each_of_box(*map, {at.dim, at.row, at.head, at.entry}, from,
              [](unsigned char* to, const unsigned char* of) {
                if (to) std::memcpy(to, of, 2);
              });
}
inline void load_bytes(SharedAddress to, const void* from, int bytes, SharedAddress barrier) {
  std::memcpy(shared_memory + to, from, static_cast<std::size_t>(bytes));
  barrier_at(barrier).take(bytes);
}
inline void commit_stores() {}
inline void wait_for_stores_to_read() {}
inline void wait_for_stores() {}
inline void fence_async_proxy() {}
inline void fence_all_proxies() {}

inline void store_matrices(SharedAddress row, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                           std::uint32_t d) {
  const emulated::FromWarp<SharedAddress> rows(row);
  const std::uint32_t of[4] = {a, b, c, d};
  for (int n = 0; n < 4; ++n)
    store_shared4(rows.of(8 * n + lane_index() / 4) + static_cast<SharedAddress>(lane_index() % 4 * 4),
                  of[n]);
}

// Products of a warpgroup.

using Operand =
    std::uint32_t;  // as on the device: the address by 16, and the distance by 16 in its upper half
inline Operand operand(SharedAddress tile, int next = 16) {
  return (tile & 0x3FFFFu) >> 4 | static_cast<std::uint32_t>(next >> 4) << 16;
}
inline Operand advanced(Operand x, int bytes) { return x + static_cast<std::uint32_t>(bytes >> 4); }

inline void fence_products() {}
inline void commit_products() {}
template <int>
void wait_for_products() {}
inline void stay_before_waits(float) {}
template <class Registers>
void pin(Registers&) {}

template <int n>
using Sums = float[n];
template <int n, int all>
Sums<n>& first_sums(Sums<all>& x) {
  static_assert(n <= all);
  return reinterpret_cast<Sums<n>&>(x);
}

constexpr int product_depth = 16;
using Depth =
    std::array<float, product_depth>;  // of a row of the first operand, or of a column of the second

template <Type type>
float number_at(SharedAddress at) {
  std::uint16_t bits;
  std::memcpy(&bits, shared_memory + at, 2);
  return type == Type::bf16 ? from_bf16(bits) : from_f16(bits);
}

// Row, or column, i of an operand: its sixteen numbers lie side by side; transposed, in sixteen rows.
template <Type type, bool is_transposed, int row_bytes>
Depth depth_of(Operand x, int i) {
  const SharedAddress at = (x & 0xFFFFu) << 4, next = (x >> 16) << 4, line = row_bytes,
                      column = static_cast<SharedAddress>(i);
  Depth found;
  for (SharedAddress k = 0; k < product_depth; ++k) {
    constexpr SharedAddress columns = row_bytes / 2;
    const SharedAddress in_rows =
        is_transposed ? column / columns * next + k * line + column % columns * 2 : column * line + 2 * k;
    found[k] = number_at<type>(swizzled(at + in_rows, row_bytes));
  }
  return found;
}

// The columns of a second operand, found once for all threads that multiply with it in a round.
template <Type type, bool is_transposed, int row_bytes, int columns>
const std::array<Depth, columns>& columns_of(Operand x) {
  struct Held {
    Operand operand = 0;
    std::int64_t round = -1;
    std::array<Depth, columns> found;
  };
  static std::array<Held, 32> held;
  static std::size_t last = 0;
  for (const Held& each : held)
    if (each.operand == x && each.round == emulated::rounds) return each.found;
  Held& made = held[last = (last + 1) % held.size()];
  made.operand = x, made.round = emulated::rounds;
  for (int n = 0; n < columns; ++n)
    made.found[static_cast<std::size_t>(n)] = depth_of<type, is_transposed, row_bytes>(x, n);
  return made.found;
}

inline double product_of(const Depth& a, const Depth& b) {
  double sum[2] = {};
  for (std::size_t k = 0; k < product_depth; k += 2) {
    sum[0] += static_cast<double>(a[k]) * static_cast<double>(b[k]);
    sum[1] += static_cast<double>(a[k + 1]) * static_cast<double>(b[k + 1]);
  }
  return sum[0] + sum[1];
}

// Sums of this thread's two rows, rounded once for each product.
template <int sums>
void add_products(float (&d)[sums], const Depth (&rows)[2], const std::array<Depth, 2 * sums>& columns,
                  bool adds) {
  for (int n = 0; n < sums / 4; ++n)
    for (int r = 0; r < 2; ++r)
      for (int e = 0; e < 2; ++e) {
        float& x = d[4 * n + 2 * r + e];
        const auto column = static_cast<std::size_t>(8 * n + lane_index() % 4 * 2 + e);
        x = static_cast<float>((adds ? static_cast<double>(x) : 0.0) + product_of(rows[r], columns[column]));
      }
}

template <Type type, int transposed, int row_bytes = 128, int first_transposed = 0, int sums>
void multiply(float (&d)[sums], Operand a, Operand b, int adds) {
  const int row = thread_index() % 128 / 32 * 16 + lane_index() / 4;
  const Depth rows[2] = {depth_of < type, first_transposed != 0, 128 > (a, row),
                         depth_of < type, first_transposed != 0, 128 > (a, row + 8)};
  add_products(d, rows, columns_of < type, transposed != 0, row_bytes, 2 * sums > (b), adds != 0);
}

// The first operand in registers, which the four threads of a row give each other.
template <Type type, int transposed, int row_bytes = 128, int sums>
void multiply(float (&d)[sums], const std::uint32_t* a, Operand b) {
  using Four = std::array<std::uint32_t, 4>;
  const emulated::FromWarp<Four> given(Four{a[0], a[1], a[2], a[3]});
  Depth rows[2];
  for (int n = 0; n < 4; ++n) {  // numbers 2 n, 2 n + 1 and eight further on
    const Four& four = given.of(lane_index() / 4 * 4 + n);
    for (int half = 0; half < 2; ++half)
      for (int r = 0; r < 2; ++r)
        for (int e = 0; e < 2; ++e) {
          const auto bits =
              static_cast<std::uint16_t>(four[static_cast<std::size_t>(2 * half + r)] >> 16 * e);
          rows[r][static_cast<std::size_t>(8 * half + 2 * n + e)] =
              type == Type::bf16 ? from_bf16(bits) : from_f16(bits);
        }
  }
  add_products(d, rows, columns_of < type, transposed != 0, row_bytes, 2 * sums > (b), true);
}

}  // namespace heed::cuda
