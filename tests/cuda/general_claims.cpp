// SPDX-License-Identifier: Apache-2.0
// The general kernel: within the bound of the reference whatever the options, for heads of every size, over
// caches of every type, and one answer however keys are cut. What it shares with prefill and decode is in
// matrix_claims.cpp.
#include <cmath>

#include "cases/adversarial.hpp"
#include "cases/extremes.hpp"
#include "cases/selection.hpp"
#include "heed/cache.hpp"
#include "matrix.hpp"

namespace heed::cuda::test {
namespace {

CLAIM(general_is_within_the_bound_on_ranges_of_keys) {
  for (const std::uint64_t seed : cases::seeds(1, 240)) {
    const Call call = range_call(seed, seed % 3 == 0 ? 400 : 1 + static_cast<std::int64_t>(seed % 40));
    expect_right(general, call, {.log_sum_exp = true},
                 "seed " + std::to_string(seed) + " (" + cases::describe(call) + ")");
  }
}

Wants wants_of(std::uint64_t seed) {
  Wants wants{.weights = seed % 4 == 0, .log_sum_exp = seed % 3 != 0};
  if (seed % 8 == 1)
    wants.scores = seed % 16 == 1 ? Stage::raw : seed % 32 == 9 ? Stage::softcapped : Stage::biased;
  return wants;
}

CLAIM(general_is_within_the_bound_whatever_the_options) {
  int taken = 0;
  for (const std::uint64_t seed : cases::seeds(1, 500)) {
    const Call call = cases::random_call(seed, {.dropout = true, .no_dims = true});
    if (call.q.dtype() == DType::f32) continue;
    ++taken;
    expect_right(general, call, wants_of(seed),
                 "seed " + std::to_string(seed) + " (" + cases::describe(call) + ")");
  }
  expect(cases::small_selection() || taken > 200, "only ", taken, " problems");
}

// Of every width, with any options: lengths beyond a unit of keys, rows of every kind of tile.
Call sized_call(std::uint64_t seed) {
  Dice dice(seed);
  const auto size = [&] {
    return dice.pick<std::int64_t>({24, 33, 40, 64, 72, 80, 96, 112, 128, 160, 192, 200, 256, 264, 320, 576});
  };
  const std::int64_t dim = size(), value_dim = dice.one_in(3) ? size() : dim, kv_heads = dice.between(1, 2),
                     heads = kv_heads * dice.pick<std::int64_t>({1, 2, 5}), batch = dice.between(1, 2),
                     queries = dice.pick<std::int64_t>({1, 2, 9, 20, 70, 140}),
                     keys = dice.pick<std::int64_t>({70, 130, 600, 1030, 1500});
  const DType dtype = dice.one_in(2) ? DType::bf16 : DType::f16;
  Call call{.q = Tensor::random({batch, heads, queries, dim}, 3 * seed, 3, dtype),
            .k = Tensor::random({batch, kv_heads, keys, dim}, 3 * seed + 1, 2, dtype),
            .v = Tensor::random({batch, kv_heads, keys, value_dim}, 3 * seed + 2, 2, dtype)};
  add_random_options(dice, call, seed);
  return call;
}

CLAIM(general_is_within_the_bound_for_heads_of_every_size) {
  for (const std::uint64_t seed : cases::seeds(1, 160)) {
    const Call call = sized_call(seed);
    expect_right(general, call, wants_of(seed),
                 "seed " + std::to_string(seed) + " (" + cases::describe(call) + ")");
  }
}

CLAIM(general_says_what_numbers_at_the_ends_of_the_range_come_to) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const cases::Extreme& extreme : cases::extremes(dtype, 140)) {
      const auto got = run(general, extreme.call, {.weights = true, .log_sum_exp = true});
      if (!got) continue;  // scales and softcaps that base 2 cannot hold
      const float found = got->out.at(0, 0, 0, 0), wanted = extreme.first;
      expect(found == wanted || std::fabs(found - wanted) <= std::fabs(wanted) * 0x1p-8f ||
                 (found != found && wanted != wanted),
             extreme.name, ": ", found, ", not ", wanted);
    }
    for (int which = 0; which < cases::adversarial_count; ++which) {
      const auto [name, call] = cases::adversarial(which, dtype);
      expect_right(general, call, {.weights = true, .log_sum_exp = true}, name);
    }
  }
}

// Of the tile of keys that a window begins in, whose rows are in 16-byte pieces or not.
CLAIM(general_keeps_bits_beside_a_value_before_every_window) {
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    Call call{.q = Tensor::random({1, 1, 100, dim}, 95, 4, DType::bf16),
              .k = Tensor::random({1, 1, 2500, dim}, 96, 2, DType::bf16),
              .v = Tensor::random({1, 1, 2500, dim}, 97, 2, DType::bf16)};
    call.window = Window{90, 0, Align::ends};  // the first query sees keys from 2310 on
    const Results clean = *run(general, call, {});
    call.v.set(0, 0, 2305, 7, nan);
    expect(same_bits(run(general, call, {})->out, clean.out), "dim ", dim);
    for (Tensor* x : {&call.k, &call.v}) *x = x->laid_out({2500 * (dim + 3), 2500 * (dim + 3), dim + 3, 1});
    expect(same_bits(run(general, call, {})->out, clean.out), "dim ", dim, ", strides");
  }
}

// With a mask, even one that hides nothing, another loop walks the keys.
CLAIM(general_keeps_bits_under_a_mask_that_hides_nothing) {
  constexpr std::int64_t queries = 300, keys = 900;
  const auto score = [](int which, std::int64_t j) {
    const auto x = static_cast<float>(j);
    return which == 0   ? 2 * x
           : which == 1 ? x / 16
           : which == 2 ? -2 * x
           : which == 3 ? (j % 70 == 69 ? 900.0f : -900.0f)
                        : (j < 500 ? -50.0f : 0.0f);
  };
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const std::int64_t dim : {64, 128})
      for (int which = 0; which < 6; ++which) {
        Call call{.q = Tensor::random({1, 2, queries, dim}, 91, which == 5 ? 20 : 0, dtype),
                  .k = Tensor::random({1, 1, keys, dim}, 92, which == 5 ? 20 : 0, dtype),
                  .v = Tensor::random({1, 1, keys, dim}, 93, 2, dtype)};
        call.scale = 1.0f;
        for (std::int64_t i = 0; which < 5 && i < 2 * queries; ++i) call.q.set(0, i % 2, i / 2, 0, 1);
        for (std::int64_t j = 0; which < 5 && j < keys; ++j) call.k.set(0, 0, j, 0, score(which, j));
        const Results plain = *run(general, call, {});
        cases::BoolTensor keep({1, 1, queries, keys});
        cases::for_each(keep.shape, [&](auto b, auto h, auto i, auto j) { keep.at(b, h, i, j) = true; });
        call.matrices.push_back({keep, false});
        expect(same_bits(run(general, call, {})->out, plain.out), "scores ", which, ", dim ", dim);
      }
}

// A value that a row does not see changes none of its bits, under masks of booleans too. Rows whose keys are
// cut, and those of the kernels for few rows, are done in double precision beside such a value.
CLAIM(general_keeps_bits_beside_values_that_a_row_does_not_see) {
  for (const std::int64_t queries : {6, 40, 120, 400})
    for (const std::int64_t keys : {400, 2500}) {
      if (cases::small_selection() && (queries > 6 && queries < 400)) continue;
      Call call{.q = Tensor::random({1, 2, queries, 128}, 81, 4, DType::bf16),
                .k = Tensor::random({1, 1, keys, 128}, 82, 2, DType::bf16),
                .v = Tensor::random({1, 1, keys, 128}, 83, 2, DType::bf16)};
      cases::BoolTensor keep({1, 1, queries, keys});
      cases::for_each(keep.shape, [&](auto b, auto h, auto i, auto j) {
        keep.at(b, h, i, j) = (i * 7 + j * 5) % 11 != 3;
      });
      call.matrices.push_back({keep, false});
      const Results clean = *run(general, call, {});
      const bool keeps_bits = 2 * queries > 512 || (keys < 1024 && 2 * queries > 64);
      for (const std::int64_t j : {std::int64_t{3}, std::int64_t{131}, keys - 2}) {
        Call poisoned = call;
        poisoned.v.set(0, 0, j, 7, nan);
        expect_right(general, poisoned, {}, "poisoned");
        const Results got = *run(general, poisoned, {});
        std::int64_t differ = 0;
        cases::for_each(call.q.shape(), [&](auto b, auto h, auto i, auto d) {
          const bool is_reached = keep.at(0, 0, i, j) && d == 7;
          const float wanted = clean.out.at(b, h, i, d), found = got.out.at(b, h, i, d);
          differ += is_reached ? std::isfinite(found) : keeps_bits && found != wanted;
        });
        expect(differ == 0, differ, " numbers, ", queries, " queries, ", keys, " keys, value ", j);
      }
    }
}

// Blocks that do one unit of keys each, or all of a row's.
CLAIM(general_has_one_answer_however_keys_are_cut) {
  for (const std::int64_t dim : {64, 128, 200})
    for (const std::int64_t queries : {1, 4, 12, 40}) {
      const Call call{.q = Tensor::random({2, 4, queries, dim}, 55, 3, DType::bf16),
                      .k = Tensor::random({2, 1, 3100, dim}, 56, 2, DType::bf16),
                      .v = Tensor::random({2, 1, 3100, dim}, 57, 2, DType::bf16)};
      expect_right(general, call, {.log_sum_exp = true}, "cut keys");
      const Results whole = *run(general, call, {}, Cut::together);
      for (const Cut cut : {Cut::apart, Cut::by_the_plan})
        expect(same_bits(run(general, call, {}, cut)->out, whole.out), "cut ", static_cast<int>(cut),
               ", dim ", dim, ", queries ", queries);
    }
}

struct CachedGeneral {
  CacheType type;
  std::int64_t page_size, tokens, queries, dim, value_dim;
};

// Caches of every type are right, and 16-bit pages change no bit.
CLAIM(general_over_pages_is_right_and_has_the_bits_of_general_over_rows) {
  for (const CachedGeneral& t : {CachedGeneral{CacheType::bf16, 16, 70, 1, 64, 64},
                                 {CacheType::bf16, 64, 1100, 1, 128, 128},
                                 {CacheType::f16, 128, 1700, 2, 128, 96},
                                 {CacheType::bf16, 16, 517, 60, 80, 80},
                                 {CacheType::bf16, 64, 1517, 200, 128, 128},
                                 {CacheType::f16, 32, 333, 100, 256, 256},
                                 {CacheType::bf16, 32, 1333, 3, 256, 256},
                                 {CacheType::bf16, 16, 333, 30, 320, 40},
                                 {CacheType::int8, 16, 280, 2, 32, 32},
                                 {CacheType::int8, 64, 1300, 1, 128, 128},
                                 {CacheType::int8, 64, 1300, 90, 80, 48},
                                 {CacheType::int8, 32, 700, 3, 200, 256},
                                 {CacheType::int8, 32, 400, 70, 256, 256},
                                 {CacheType::int8, 16, 200, 7, 300, 300}})
    for (const DType dtype : {DType::bf16, DType::f16}) {
      if (t.type != CacheType::int8 && (t.type == CacheType::bf16) != (dtype == DType::bf16)) continue;
      KvCache cache({.batch = 2,
                     .kv_heads = 2,
                     .capacity = t.tokens,
                     .dim = t.dim,
                     .value_dim = t.value_dim,
                     .type = t.type,
                     .page_size = t.page_size});
      const Tensor k = Tensor::random({2, 2, t.tokens, t.dim}, 51, 2, dtype),
                   v = Tensor::random({2, 2, t.tokens, t.value_dim}, 52, 2, dtype);
      cache.append(k.view(), v.view());
      const Tensor q = Tensor::random({2, 8, t.queries, t.dim}, 53, 3, dtype);
      for (const bool has_options : {false, true}) {
        Options options{.masks = {Causal{Align::ends}}};
        if (has_options) options.softcap = 20, options.masks.push_back(Window{.left = 100, .front = 9});
        const auto attend = [&](const Inputs& inputs, bool is_checked) {
          Tensor out({2, 8, t.queries, t.value_dim}, dtype);
          out.fill_bytes(0xff);
          const Outputs outputs{.out = out.mutable_view()};
          expect(run(general, make_problem(inputs, outputs, options)), "refused");
          if (is_checked) {
            const Check result = check(inputs, outputs, options);
            expect(result.beyond_bound == 0, "pages of ", t.page_size, ", dim ", t.dim, ", queries ",
                   t.queries, ", type ", static_cast<int>(t.type), ": ", result.beyond_bound,
                   " beyond the bound, first ", result.first_miss);
          }
          return out;
        };
        const Tensor pages = attend({.q = q.view(), .cache = &cache}, true);
        // Other heads, and options, have tiles of another length over pages.
        if (t.type == CacheType::int8 || has_options || (t.dim != 64 && t.dim != 128)) continue;
        const Tensor rows = attend({.q = q.view(), .k = k.view(), .v = v.view()}, false);
        expect(same_bits(pages, rows), "pages of ", t.page_size, ", dim ", t.dim, ", queries ", t.queries,
               ", options ", has_options);
      }
    }
}

}  // namespace
}  // namespace heed::cuda::test
