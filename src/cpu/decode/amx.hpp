// SPDX-License-Identifier: Apache-2.0
// Decode's products by AMX, for up to sixteen rows: keys and values are read once, so whatever is done to
// them counts. Here are the scores; the values are in amx_values.hpp. Rows of keys are the first operand in
// place, and the scores come out (keys, rows). Keys that lie side by side, as a cache's do, become the second
// operand by zipping the lines of two dimensions; then the real rows of queries are the first operand. Every
// sum has the order of operands_amx.hpp, so the bits agree (O3).
#pragma once
#include <cstdint>

#include "cpu/call.hpp"
#include "cpu/decode/amx_values.hpp"
#include "cpu/decode/decode.hpp"
#include "cpu/isa/amx.hpp"
#include "cpu/tile/operands.hpp"
#include "cpu/tile/pack.hpp"
#include "cpu/tile/score.hpp"

namespace heed::cpu::HEED_THIS_TARGET {

// The memory of a task.
struct AmxKeyBuffers {
  static constexpr std::int64_t pitch = block_keys + 16;  // of a row of scores

  std::int64_t depth;
  Half *q, *k;        // queries: (depth / 2, width, 2), or (rows, depth); twice 32 keys: rows or zipped
  float* transposed;  // (rows, keys): scores

  AmxKeyBuffers(const Call& c, Cutter& memory)
      : depth(round_up(c.dim, 32)),
        q(memory.cut_halves(16 * depth)),
        k(memory.cut_halves(2 * amx_step * depth)),
        transposed(memory.cut(16 * pitch)) {}
};

class AmxKeys {
  using S = NarrowAmx;
  static constexpr std::int64_t step = amx_step, pitch = AmxKeyBuffers::pitch;

 public:
  AmxKeys(const DecodeRows<S>& task_rows, Cutter& memory)
      : rows(task_rows), c(rows.c), buffers(rows.c, memory), depth(buffers.depth) {}

  // Whether they are zipped, with no tile shaped for them alone.
  bool zips() const { return c.cached || (c.k.stride.length == 1 && c.k.stride.dim != 1); }

  // Rows where they are the first operand, pairs of dimensions where they are the second.
  void pack_queries() const {
    const Half* row[16] = {};
    for (std::int64_t r = 0; r < rows.count; ++r) {
      Half* const copy = (zips() ? buffers.q : buffers.k) + r * depth;
      copy_halves(row_of(c.q, rows.query(r)), c.dim, depth, copy);
      row[r] = copy;
    }
    // A line of sixteen pairs is stored where `width` of them stay: the next are stored over the others.
    if (!zips()) transpose_to_pairs(row, depth, rows.width, buffers.q);
  }

  // t begins with a whole tile; scores beyond its keys are never read.
  void score(const Scores& t) const {
    if (c.cached)
      score_zipped(t, ZipTiles(*this, t));
    else if (zips())
      score_zipped(t, ZipColumns(*this, t));
    else
      score_rows(t);
    if (c.scaling.query != 1) scale_all<S>(t.s, round_up(t.keys * t.width, 16), c.scaling.query);
  }

 private:
  // Sixteen rows, `stride` bytes apart, and where the rows of the next step lie, to prefetch them.
  struct KeyRows {
    const Half* at;
    std::int64_t stride;
    const Half* next;
  };

  // Up to sixteen keys: a tile with as many rows.
  void score_few(const Scores& t) const {
    const int count = static_cast<int>(t.keys), width = static_cast<int>(4 * t.width);
    const TileShape whole, sums{count, width};
    shape_tiles({sums, whole, {count}, whole, {16, width}, whole, whole, whole});
    const char* const at = rows.place(c.k, t.first_key);
    finish_stores();
    _tile_zero(0);
    for (std::int64_t d = 0; d < depth; d += 32) {
      _tile_loadd(2, at + d * 2, c.k.stride.length * 2);
      _tile_loadd(4, buffers.q + d * t.width, width);
      _tile_dpbf16ps(0, 2, 4);
    }
    _tile_stored(0, t.s, width);
    finish_loads();
  }

  void score_rows(const Scores& t) const {
    if (t.keys <= 16 && c.k.stride.dim == 1 && c.dim == depth) return score_few(t);
    const TileShape whole, narrow{16, static_cast<int>(4 * t.width)};
    shape_tiles({narrow, narrow, whole, whole, narrow, whole, whole, whole});
    for (std::int64_t j = 0; j < t.keys; j += step) {
      const KeyRows first = rows_at(t, j, buffers.k), second = rows_at(t, j + 16, buffers.k + 16 * depth);
      finish_stores();
      _tile_zero(0);
      _tile_zero(1);
      for (std::int64_t d = 0; d < depth; d += 32) {
        prefetch_rows(first, d), prefetch_rows(second, d);
        _tile_loadd(2, first.at + d, first.stride);
        _tile_loadd(3, second.at + d, second.stride);
        _tile_loadd(4, buffers.q + d * t.width, 4 * t.width);
        _tile_dpbf16ps(0, 2, 4);
        _tile_dpbf16ps(1, 3, 4);
      }
      _tile_stored(0, t.s + j * t.width, 4 * t.width);
      _tile_stored(1, t.s + (j + 16) * t.width, 4 * t.width);
      finish_loads();
    }
  }

  KeyRows rows_at(const Scores& t, std::int64_t j, Half* copy) const {
    const std::int64_t count = min(16, t.keys - j);
    if (count == 16 && c.k.stride.dim == 1 && c.dim == depth) {
      const auto at = [&](std::int64_t key) {
        return reinterpret_cast<const Half*>(rows.place(c.k, t.first_key + key));
      };
      return {at(j), c.k.stride.length * 2, at(j + step + 16 <= rows.keys_to_chunk_end(t) ? j + step : j)};
    }
    for (std::int64_t n = 0; n < 16; ++n)
      copy_halves(row_of(c.k, rows.b, rows.kv_head,
                         c.sequences[rows.b].first_key + t.first_key + min(j + n, t.keys - 1)),
                  n < count ? c.dim : 0, depth, copy + n * depth);
    return {copy, depth * 2, copy};
  }

  // The cache line of dimension d of every row of the next step.
  static void prefetch_rows(const KeyRows& keys, std::int64_t d) {
    for (std::int64_t n = 0; n < 16; ++n) S::prefetch(keys.next + n * keys.stride / 2 + d);
  }

  // Keys are zipped one step before they are multiplied, and stay in the first-level cache.
  template <class Zip>
  void score_zipped(const Scores& t, Zip zip_next) const {
    const auto zipped_at = [&](std::int64_t j) { return buffers.k + j / step % 2 * step * depth; };
    float* const to = t.width == 1 ? t.s : buffers.transposed;
    zip_next(zipped_at(0));
    for (std::int64_t j = 0; j < t.keys; j += step) {
      if (j + step < t.keys) zip_next(zipped_at(j + step));
      const Half* const pairs = zipped_at(j);
      finish_stores();
      _tile_zero(0);
      _tile_zero(1);
      for (std::int64_t d = 0; d < depth; d += 32) {
        _tile_loadd(4, buffers.q + d, depth * 2);
        _tile_loadd(5, pairs + d * 16, 64);
        _tile_loadd(6, pairs + (depth + d) * 16, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 6);
      }
      _tile_stored(0, to + j, pitch * 4);
      _tile_stored(1, to + j + 16, pitch * 4);
      finish_loads();  // the next keys are zipped over these
    }
    finish_stores();
    if (t.width == 1) return;
    if (t.width == 4)
      spread_fours(t);
    else
      spread_sixteens(t);
  }

  // transposed(rows, keys) to s(keys, width).
  void spread_fours(const Scores& t) const {
    for (std::int64_t j = 0; j < t.keys; j += 16) {
      __m512i x[4];
      for (int r = 0; r < 4; ++r)
        x[r] =
            r < rows.count ? _mm512_loadu_si512(buffers.transposed + r * pitch + j) : _mm512_setzero_si512();
      rows_to_columns(x);
      for (int n = 0; n < 4; ++n) _mm512_storeu_si512(t.s + j * 4 + n * 16, x[n]);
    }
  }
  void spread_sixteens(const Scores& t) const {
    for (std::int64_t j = 0; j < t.keys; j += 16) {
      __m512i x[16];
      for (int r = 0; r < 16; ++r)
        x[r] =
            r < rows.count ? _mm512_loadu_si512(buffers.transposed + r * pitch + j) : _mm512_setzero_si512();
      transpose_dwords(x);
      for (int n = 0; n < 16; ++n) _mm512_storeu_si512(t.s + (j + n) * 16, x[n]);
    }
  }

  // What follows zips sixteens of keys, two at a time: (dim, 16 keys) to (depth / 2, 16 keys, 2).

  // A cache's tiles, which are whole even where the last has fewer keys.
  class ZipTiles {
   public:
    ZipTiles(const AmxKeys& keys, const Scores& t)
        : dim_(keys.c.dim),
          depth_(keys.depth),
          remaining_(t.keys),
          to_chunk_end_(keys.rows.keys_to_chunk_end(t)),
          at_(TileWalk::of_keys(keys.c, keys.rows.b, keys.rows.kv_head, t.first_key)),
          next_(at_) {
      for (std::int64_t n = 0; n < step && n < to_chunk_end_; n += 16) next_.step();
    }

    void operator()(Half* to) {
      zip_one(to);
      zip_one(to + 16 * depth_);
    }

   private:
    void zip_one(Half* to) {
      if (remaining_ <= 0) return;  // their scores are never read
      const auto* from = reinterpret_cast<const Half*>(at_.place());
      const bool has_next = to_chunk_end_ > step;
      const auto* next = has_next ? reinterpret_cast<const Half*>(next_.place()) : from;
      const std::int64_t lines = dim_ / 2 * 2;
      for (std::int64_t d = 0; d < lines; d += 2) {
        S::prefetch(next + d * 16);
        _mm512_storeu_si512(to + d * 16, zip(_mm512_loadu_si512(from + d * 16)));
      }
      for (std::int64_t d = lines; d < depth_; d += 2)
        _mm512_storeu_si512(to + d * 16,
                            d < dim_ ? zip(first_halves(from + d * 16, 16)) : _mm512_setzero_si512());
      at_.step();
      if (has_next) next_.step();
      remaining_ -= 16, to_chunk_end_ -= 16;
    }

    const std::int64_t dim_, depth_;
    std::int64_t remaining_, to_chunk_end_;
    TileWalk at_, next_;
  };

  // The caller's, where a dimension's keys lie side by side.
  class ZipColumns {
   public:
    ZipColumns(const AmxKeys& keys, const Scores& t)
        : dim_(keys.c.dim),
          depth_(keys.depth),
          stride_(keys.c.k.stride.dim),
          remaining_(t.keys),
          from_(reinterpret_cast<const Half*>(keys.rows.place(keys.c.k, t.first_key))) {}

    void operator()(Half* to) {
      zip_one(to);
      zip_one(to + 16 * depth_);
    }

   private:
    void zip_one(Half* to) {
      if (remaining_ <= 0) return;
      const auto line = [&](std::int64_t d) {
        const std::int64_t count = min(16, remaining_);
        return d < dim_ ? first_halves(from_ + d * stride_, count) : _mm512_setzero_si512();
      };
      for (std::int64_t d = 0; d < depth_; d += 2)
        _mm512_storeu_si512(to + d * 16, zip(_mm512_shuffle_i32x4(line(d), line(d + 1), 0x44)));
      remaining_ -= 16, from_ += 16;
    }

    const std::int64_t dim_, depth_, stride_;
    std::int64_t remaining_;
    const Half* from_;
  };

  const DecodeRows<S>& rows;
  const Call& c;
  const AmxKeyBuffers buffers;
  const std::int64_t depth;
};

// Both products of decode.
class DecodeAmx {
 public:
  using S = NarrowAmx;
  static constexpr int min_width = 1;

  static void measure(const Call& c, Cutter& memory) { AmxKeyBuffers(c, memory), AmxValueBuffers(c, memory); }

  DecodeAmx(const DecodeRows<S>& task_rows, Cutter& memory)
      : rows(task_rows), c(rows.c), keys(rows, memory), values(rows, memory) {}

  // Tiles of 32 keys are anchored at key 0, whatever is seen of them.
  static std::int64_t key_step(const Call&) { return 32; }

  void begin() const {
    keys.pack_queries();
    if (keys.zips()) shape_for_rows(16);
  }

  void score(const Scores& t) const { keys.score(t); }

  void add_values(const Scores& t, Coverage coverage, float* out) {
    // As many pairs of values as a step has, unless tiles stay shaped for keys.
    const std::int64_t pairs = keys.zips() ? 16 : min(16, (t.keys + 1) / 2);
    if (!keys.zips()) shape_for_rows(static_cast<int>(pairs));
    if (values.add(t, pairs, out)) add_poison(t, coverage, out);
  }

 private:
  // The first operand and the sums have as many rows as are real, where those are not of keys; the second has
  // `pairs` rows.
  void shape_for_rows(int pairs) const {
    const TileShape few{static_cast<int>(rows.count)}, whole, weights{few.rows, 4 * pairs}, zipped{pairs};
    shape_tiles({few, few, few, few, weights, zipped, zipped, whole});
  }

  // The values that were omitted because they are not finite, added to the rows that see them and to no
  // other (S4).
  [[gnu::noinline]] void add_poison(const Scores& t, Coverage coverage, float* out) const {
    for (std::int64_t j = 0; j < t.keys; ++j) {
      const float* x =
          widen<S>(value_row(c, rows.b, rows.kv_head, t.first_key + j), c.value_dim, rows.buffers.v_rows);
      if (all_finite<S>(x, c.value_dim)) continue;
      for (std::int64_t d = 0; d < c.value_dim; ++d)
        for (std::int64_t r = 0; !is_finite(x[d]) && r < rows.count; ++r)
          // fault: poison-found-late-in-hidden-keys
          if (coverage == Coverage::full || rows.buffers.unseen[j * t.width + r] == 0) {
            float& sum = out[r * rows.at.dims + d];
            sum = __builtin_fmaf(t.s[j * t.width + r], x[d], sum);
          }
    }
  }

  const DecodeRows<S>& rows;
  const Call& c;
  const AmxKeys keys;
  AmxValues values;
  AmxTiles tiles;
};

}  // namespace heed::cpu::HEED_THIS_TARGET
