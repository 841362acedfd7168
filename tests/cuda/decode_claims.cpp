// SPDX-License-Identifier: Apache-2.0
// Decode beyond ranges of keys over rows: int8 caches, boolean masks and documents.
#include <limits>
#include <optional>

#include "cases/selection.hpp"
#include "heed/cache.hpp"
#include "matrix.hpp"

namespace heed::cuda::test {
namespace {

struct QuantizedDecode {
  std::int64_t page_size, tokens, queries, dim, value_dim;
};

KvCache cache_of(const Tensor& k, const Tensor& v, std::int64_t page_size, CacheType type) {
  KvCache cache({.batch = k.shape().batch,
                 .kv_heads = k.shape().heads,
                 .capacity = k.shape().length,
                 .dim = k.shape().dim,
                 .value_dim = v.shape().dim,
                 .type = type,
                 .page_size = page_size});
  cache.append(k.view(), v.view());
  return cache;
}
KvCache int8_cache(const Tensor& k, const Tensor& v, std::int64_t page_size) {
  return cache_of(k, v, page_size, CacheType::int8);
}

// Queries of bf16 over an int8 cache are 64 times as large in the kernel, and so are its values' scales. Keys
// are 0 where queries would overflow by that; the last value is beyond what the first query sees.
CLAIM(decode_over_an_int8_cache_takes_numbers_at_the_ends_of_the_range) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  struct Extreme {
    const char* what;
    DType dtype;
    std::int64_t token;  // of v; -1: q
    std::int64_t d;
    float x;
  };
  for (const Extreme& e : {Extreme{"2^121 in q", DType::bf16, -1, 0, 0x1p121f},
                           {"2^125 in q", DType::bf16, -1, 0, 0x1p125f},
                           {"2^15 in q", DType::f16, -1, 0, 0x1p15f},
                           {"infinity in q", DType::bf16, -1, 3, infinity},
                           {"NaN in q", DType::bf16, -1, 3, nan},
                           {"the largest bf16 in v", DType::bf16, 7, 5, 0x1.fep127f},
                           {"the largest f16 in v", DType::f16, 7, 5, 65504},
                           {"the largest bf16 in the last v", DType::bf16, 299, 5, 0x1.fep127f},
                           {"the largest f16 in the last v", DType::f16, 299, 5, 65504}})
    for (const std::int64_t dim : {64, 80, 128, 256}) {
      Tensor k = Tensor::random({1, 1, 300, dim}, 51, 2, e.dtype),
             v = Tensor::random({1, 1, 300, dim}, 52, 2, e.dtype),
             q = Tensor::random({1, 4, 2, dim}, 53, 3, e.dtype);
      for (std::int64_t j = 0; j < 300; ++j) k.set(0, 0, j, 0, 0);
      if (e.token < 0)
        q.set(0, 1, 0, e.d, e.x);
      else
        v.set(0, 0, e.token, e.d, e.x);
      const KvCache cache = int8_cache(k, v, 32);
      const Inputs inputs{.q = q.view(), .cache = &cache};
      const Options options{.masks = {Causal{Align::ends}}};
      Tensor out(q.shape(), e.dtype);
      const Outputs outputs{.out = out.mutable_view()};
      expect(run(decode, make_problem(inputs, outputs, options), Cut::by_the_plan), "refused: ", e.what);
      const Check result = check(inputs, outputs, options);
      expect(result.beyond_bound == 0, e.what, ", dim ", dim, ": ", result.beyond_bound, " of ",
             result.compared, " beyond the bound, first ", result.first_miss);
    }
}

CLAIM(decode_over_an_int8_cache_is_right_and_has_one_answer) {
  for (const QuantizedDecode& t : {QuantizedDecode{16, 70, 1, 64, 64},
                                   {64, 1300, 1, 128, 128},
                                   {64, 4097, 2, 128, 128},
                                   {64, 2500, 4, 128, 128},
                                   {32, 517, 2, 64, 64},
                                   {32, 900, 1, 32, 32},
                                   {64, 700, 2, 80, 80},
                                   {16, 1300, 1, 96, 56},
                                   {128, 2100, 3, 192, 256},
                                   {64, 1500, 1, 256, 256}})
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const bool has_options : {false, true}) {
        const Tensor k = Tensor::random({2, 2, t.tokens, t.dim}, 51, 2, dtype),
                     v = Tensor::random({2, 2, t.tokens, t.value_dim}, 52, 2, dtype),
                     q = Tensor::random({2, 8, t.queries, t.dim}, 53, 3, dtype);
        const KvCache cache = int8_cache(k, v, t.page_size);
        Options options{.masks = {Causal{Align::ends}}};
        if (has_options) options.softcap = 20, options.masks.push_back(Window{.left = 600});
        const std::string what = "pages of " + std::to_string(t.page_size) + ", " + std::to_string(t.tokens) +
                                 " tokens of " + std::to_string(t.dim);
        const auto attend = [&](const Inputs& inputs, Cut cut) {
          Tensor out({inputs.q.shape.batch, 8, t.queries, t.value_dim}, dtype);
          out.fill_bytes(0xff);
          const Outputs outputs{.out = out.mutable_view()};
          expect(run(decode, make_problem(inputs, outputs, options), cut), "refused: ", what);
          return out;
        };
        const Inputs inputs{.q = q.view(), .cache = &cache};
        Tensor out = attend(inputs, Cut::by_the_plan);
        const Check result = check(inputs, {.out = out.mutable_view()}, options);
        expect(result.beyond_bound == 0, what, ": ", result.beyond_bound, " of ", result.compared,
               " beyond the bound, first ", result.first_miss);
        for (const Cut cut : {Cut::apart, Cut::together})
          expect(same_bits(attend(inputs, cut), out), what, ", cut ", static_cast<int>(cut));
        const KvCache alone = int8_cache(entry(k, 1, t.tokens), entry(v, 1, t.tokens), 2 * t.page_size);
        const Tensor own = entry(q, 1, t.queries);
        expect(same_bits(attend({.q = own.view(), .cache = &alone}, Cut::apart), entry(out, 1, t.queries)),
               what, ", alone");
      }
}

// Heads that read the same keys see different ones: one of them none at first, another none at last.
CLAIM(decode_over_pages_under_masks_that_differ_by_head_is_right_and_has_one_answer) {
  for (const QuantizedDecode& t : {QuantizedDecode{16, 70, 1, 64, 64},
                                   {64, 1300, 1, 128, 128},
                                   {32, 2100, 2, 128, 128},
                                   {64, 1100, 2, 64, 64},
                                   {32, 900, 1, 80, 80},
                                   {64, 1500, 2, 256, 256}})
    for (const CacheType type : {CacheType::int8, CacheType::bf16})
      for (const std::int64_t batch : {1, 2}) {  // of the mask
        const Tensor k = Tensor::random({2, 2, t.tokens, t.dim}, 71, 2, DType::bf16),
                     v = Tensor::random({2, 2, t.tokens, t.value_dim}, 72, 2, DType::bf16),
                     q = Tensor::random({2, 8, t.queries, t.dim}, 73, 3, DType::bf16);
        const KvCache cache = cache_of(k, v, t.page_size, type);
        Dice dice(static_cast<std::uint64_t>(t.tokens));
        cases::BoolTensor keep = cases::random_bools(dice, {batch, 8, t.queries, t.tokens}, 3);
        cases::for_each(keep.shape, [&](auto b, auto h, auto i, auto j) {
          if ((h == 1 && j < t.tokens / 2) || (h == 2 && j >= t.tokens / 3)) keep.at(b, h, i, j) = false;
        });
        const Inputs inputs{.q = q.view(), .cache = &cache};
        const Options options{.masks = {Causal{Align::ends}, Keep{keep.view()}}};
        const std::string what = std::to_string(t.tokens) + " tokens of " + std::to_string(t.dim) +
                                 (type == CacheType::int8 ? ", int8" : ", bf16");
        std::optional<Tensor> first;
        for (const Cut cut : {Cut::by_the_plan, Cut::apart, Cut::together}) {
          Tensor out({2, 8, t.queries, t.value_dim}, DType::bf16);
          out.fill_bytes(0xff);
          const Outputs outputs{.out = out.mutable_view()};
          expect(run(decode, make_problem(inputs, outputs, options), cut), "refused: ", what);
          if (!first) {
            const Check result = check(inputs, outputs, options);
            expect(result.beyond_bound == 0, what, ": ", result.beyond_bound, " of ", result.compared,
                   " beyond the bound, first ", result.first_miss);
            first = out;
          }
          expect(same_bits(out, *first), what, ", cut ", static_cast<int>(cut));
        }
      }
}

// Tiles of rows, whose queries see different keys: four over pages.
CLAIM(decode_of_many_tiles_of_rows_over_pages_is_right_and_has_one_answer) {
  for (const std::int64_t dim : {64, 96, 128})
    for (const std::int64_t queries : {20, 32}) {
      constexpr std::int64_t tokens = 2300;
      const Tensor k = Tensor::random({2, 1, tokens, dim}, 61, 2, DType::bf16),
                   v = Tensor::random({2, 1, tokens, dim}, 62, 2, DType::bf16),
                   q = Tensor::random({2, 4, queries, dim}, 63, 3, DType::bf16);
      KvCache cache({.batch = 2,
                     .kv_heads = 1,
                     .capacity = tokens,
                     .dim = dim,
                     .type = CacheType::bf16,
                     .page_size = 32});
      cache.append(k.view(), v.view());
      const Inputs inputs{.q = q.view(), .cache = &cache};
      const Options options{.masks = {Causal{Align::ends}}};
      std::optional<Tensor> first;
      for (const Cut cut : {Cut::by_the_plan, Cut::apart, Cut::together}) {
        Tensor out(q.shape(), DType::bf16);
        out.fill_bytes(0xff);
        const Outputs outputs{.out = out.mutable_view()};
        expect(run(decode, make_problem(inputs, outputs, options), cut), "refused");
        if (!first) {
          const Check result = check(inputs, outputs, options);
          expect(result.beyond_bound == 0, queries, " queries of ", dim, ": ", result.beyond_bound, " of ",
                 result.compared, " beyond the bound, first ", result.first_miss);
          first = out;
        }
        expect(same_bits(out, *first), queries, " queries of ", dim, ", cut ", static_cast<int>(cut));
      }
    }
}

// One to 64 rows of a KV head; matrices that broadcast along any axis, and documents.
CLAIM(decode_under_masks_is_within_the_bound_and_has_one_answer) {
  int taken = 0;
  for (const std::uint64_t seed : cases::seeds(1, 200)) {
    Call call = range_call(seed, seed % 4 == 0 ? 32 : 1 + static_cast<std::int64_t>(seed % 5));
    const std::int64_t rows = call.queries() * (call.heads() / call.k.shape().heads);
    if (rows > (std::max(call.q.shape().dim, call.v.shape().dim) > 128 ? 16 : 64)) continue;
    Dice dice(seed ^ 0xDEC0DEu);
    const Shape full = call.score_shape();
    if (seed % 3 != 0)
      call.matrices.push_back(
          {cases::random_bools(dice, cases::broadcast_some(dice, full), 3), dice.one_in(2)});
    if (seed % 3 != 1) call.documents = cases::random_documents(dice, full);
    ++taken;
    const std::string what = "seed " + std::to_string(seed) + " (" + cases::describe(call) + ")";
    expect_right(decode, call, {.log_sum_exp = true}, what);
    const auto apart = run(decode, call, {}, Cut::apart), together = run(decode, call, {}, Cut::together);
    expect(apart && together && same_bits(apart->out, together->out), what, ": cut");
  }
  expect(cases::small_selection() || taken > 40, "only ", taken, " problems");
}

// Padding on the left, as a mask and as keys that are not there: whole tiles and units are hidden, and what
// lies there is no number.
CLAIM(keys_that_a_mask_hides_change_no_bit_of_decode) {
  for (const std::int64_t dim : {64, 80, 128, 256})
    for (const std::int64_t heads : {4, 16}) {
      constexpr std::int64_t keys = 3000, seen = 2048;
      Call all{.q = Tensor::random({2, heads, 1, dim}, 401, 4, DType::bf16),
               .k = Tensor::random({2, 1, keys, dim}, 402, 2, DType::bf16),
               .v = Tensor::random({2, 1, keys, dim}, 403, 2, DType::bf16)};
      Call some = all;
      some.k = all.k.rows(0, seen), some.v = all.v.rows(0, seen);
      for (Tensor* x : {&all.k, &all.v})
        cases::for_each(x->shape(), [&](auto b, auto h, auto j, auto d) {
          if (j >= seen && heads == 4) x->set(b, h, j, d, nan);
        });
      cases::BoolTensor keep({1, 1, 1, keys});
      cases::for_each(keep.shape, [&](auto b, auto h, auto i, auto j) { keep.at(b, h, i, j) = j < seen; });
      all.matrices.push_back({keep, false});
      const auto with = run(decode, all, {.log_sum_exp = true}),
                 without = run(decode, some, {.log_sum_exp = true});
      expect(with && without, "refused");
      if (!with || !without) continue;
      expect(same_bits(with->out, without->out), "out, dim ", dim, ", heads ", heads);
      expect(same_bits(*with->log_sum_exp, *without->log_sum_exp), "log-sum-exp, dim ", dim);
      Call left = all;
      left.k = some.k, left.v = some.v;
      cases::BoolTensor shorter({1, 1, 1, seen});
      cases::for_each(shorter.shape,
                      [&](auto b, auto h, auto i, auto j) { shorter.at(b, h, i, j) = j >= 1111; });
      left.matrices = {{shorter, false}};
      expect_right(decode, left, {.log_sum_exp = true}, "padding on the left");
      // One entry is shown nothing, the other one tile in the middle.
      cases::BoolTensor little({2, 1, 1, keys});
      cases::for_each(little.shape, [&](auto b, auto h, auto i, auto j) {
        little.at(b, h, i, j) = b == 0 ? j >= seen : j / 64 == 20;
      });
      Call hidden = all;
      hidden.key_lengths = {{seen, keys}}, hidden.matrices = {{little, false}};
      expect_right(decode, hidden, {.log_sum_exp = true}, "little is shown");
      const auto apart = run(decode, hidden, {}, Cut::apart),
                 together = run(decode, hidden, {}, Cut::together);
      expect(apart && together && same_bits(apart->out, together->out), "little is shown: cut");
    }
}

}  // namespace
}  // namespace heed::cuda::test
