// SPDX-License-Identifier: Apache-2.0
// Prefill beyond ranges of keys over rows: options, few queries over many keys, documents, caches.
#include <array>
#include <cmath>

#include "cases/selection.hpp"
#include "heed/cache.hpp"
#include "matrix.hpp"

namespace heed::cuda::test {
namespace {

CLAIM(prefill_with_options_is_within_the_bound) {
  int taken = 0;
  for (const std::uint64_t seed : cases::seeds(1, 60)) {
    const Call call = optional_call(seed);
    auto got = run(prefill, call, {.log_sum_exp = true});
    if (!got) continue;  // several options, or rows of a bias that do not begin on 16 bytes
    ++taken;
    const Check result = check(call.inputs(), got->outputs(), call.options());
    expect(result.beyond_bound == 0, "seed ", seed, " (", cases::describe(call), "): ", result.beyond_bound,
           " of ", result.compared, " beyond the bound, first ", result.first_miss);
  }
  expect(taken > 6, "only ", taken, " problems");
}

// Heads whose size is no multiple of 8, and rows that do not lie on 16 bytes: copies of them have the bits of
// what the copy engine reads itself, heads filled up with zeros.
CLAIM(rows_that_prefill_copies_first_have_the_bits_of_those_it_reads) {
  struct Widths {
    std::int64_t dim, value_dim;
  };
  for (const Widths& w : {Widths{100, 100}, {128, 128}, {90, 128}, {128, 37}, {125, 64}, {122, 126}})
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const bool is_cut : {false, true}) {
        const std::int64_t queries = is_cut ? 128 : 300, keys = is_cut ? 2300 : 333;
        Call call{.q = Tensor::random({2, 4, queries, w.dim}, 221, 4, dtype),
                  .k = Tensor::random({2, 2, keys, w.dim}, 222, 2, dtype),
                  .v = Tensor::random({2, 2, keys, w.value_dim}, 223, 2, dtype)};
        call.causal = Causal{Align::ends}, call.scale = 0.125f;
        const std::string what = std::to_string(w.dim) + " and " + std::to_string(w.value_dim);
        Call wide = call;
        wide.q = widened(call.q, 128), wide.k = widened(call.k, 128), wide.v = widened(call.v, 128);
        const auto wanted = run(prefill, wide, {.log_sum_exp = true});
        expect(wanted.has_value(), "refused: ", what);
        if (!wanted) continue;
        const auto expect_wanted = [&](const Call& laid_out, const char* how) {
          const auto got = run(prefill, laid_out, {.log_sum_exp = true});
          expect(got.has_value(), "refused: ", how, ", ", what);
          if (!got) return;
          expect(same_bits(widened(got->out, 128), wanted->out), how, ", ", what, ", queries ", queries);
          expect(same_bits(*got->log_sum_exp, *wanted->log_sum_exp), "log-sum-exp, ", how, ", ", what);
        };
        expect_wanted(call, "rows one after the other");
        for (const std::int64_t gap : {0, 3, 6}) {
          Call gaps = call;
          for (Tensor Call::* x : {&Call::q, &Call::k, &Call::v}) {
            const Shape s = (call.*x).shape();
            const std::int64_t row = s.dim + gap;
            gaps.*x = (call.*x).laid_out({s.length * s.heads * row, row, s.heads * row, 1}, 2);
          }
          expect_wanted(gaps, "heads inside the length");
        }
        Call apart = call;
        const Shape s = call.k.shape();
        apart.k = call.k.laid_out({s.heads * s.length * s.dim * 3, s.length * s.dim * 3, s.dim * 3, 3});
        expect_wanted(apart, "every third");
        Call poisoned = call;
        poisoned.v.set(0, 0, 150, 5, nan);
        expect_right(prefill, poisoned, {.log_sum_exp = true}, "poisoned, " + what);
      }
}

// Rows that begin on 16 bytes, but not on 32, are copied where many queries read them, as those of other
// strides are not.
CLAIM(heads_of_odd_multiples_of_8_have_one_answer_at_every_length_and_stride) {
  for (const std::int64_t dim : {72, 104})
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Call call{.q = Tensor::random({1, 8, 1100, dim}, 231, 4, dtype),
                .k = Tensor::random({1, 1, 1100, dim}, 232, 2, dtype),
                .v = Tensor::random({1, 1, 1100, dim}, 233, 2, dtype)};
      call.causal = Causal{Align::ends}, call.scale = 0.125f;
      auto copied = run(prefill, call, {.log_sum_exp = true});
      Call apart = call;
      for (Tensor Call::* x : {&Call::k, &Call::v}) {
        const std::int64_t row = dim + 8;
        apart.*x = (call.*x).laid_out({1100 * row, 1100 * row, row, 1});
      }
      const auto read = run(prefill, apart, {.log_sum_exp = true});
      expect(copied && read, "refused: ", dim);
      if (!copied || !read) continue;
      expect(same_bits(copied->out, read->out), dim, ": as rows on 32 bytes");
      expect(same_bits(*copied->log_sum_exp, *read->log_sum_exp), dim, ": log-sum-exp");
      const Check result = check(call.inputs(), copied->outputs(), call.options());
      expect(result.beyond_bound == 0, dim, ": ", result.beyond_bound, " of ", result.compared,
             " beyond the bound");
    }
}

// Tiles of keys that a mask hides whole are not visited, and those that it shows whole not looked at. Under a
// softcap scores of a row share an operation, hidden ones too.
CLAIM(keys_that_a_mask_hides_change_no_bit_of_prefill) {
  for (const std::int64_t dim : {64, 96, 128, 256})
    for (const bool is_causal : {false, true})
      for (const bool is_capped : {false, true}) {
        Call all{.q = Tensor::random({1, 4, 300, dim}, 201, 4, DType::bf16),
                 .k = Tensor::random({1, 2, 1000, dim}, 202, 2, DType::bf16),
                 .v = Tensor::random({1, 2, 1000, dim}, 203, 2, DType::bf16)};
        if (is_causal) all.causal = Causal{Align::starts};
        if (is_capped) all.softcap = 3.0f;
        Call some = all;
        constexpr std::int64_t seen = 420;
        some.k = all.k.rows(0, seen), some.v = all.v.rows(0, seen);
        for (Tensor* x : {&all.k, &all.v})
          cases::for_each(x->shape(), [&](auto b, auto h, auto j, auto d) {
            if (j >= seen) x->set(b, h, j, d, nan);
          });
        cases::BoolTensor hidden({1, 1, 1, 1000}), none({1, 1, 300, seen});
        cases::for_each(hidden.shape,
                        [&](auto b, auto h, auto i, auto j) { hidden.at(b, h, i, j) = j >= seen; });
        cases::for_each(none.shape, [&](auto b, auto h, auto i, auto j) { none.at(b, h, i, j) = false; });
        all.matrices.push_back({hidden, true}), some.matrices.push_back({none, true});
        const auto with = run(prefill, all, {.log_sum_exp = true}),
                   without = run(prefill, some, {.log_sum_exp = true});
        expect(with && without, "refused");
        if (!with || !without) continue;
        expect(same_bits(with->out, without->out), "out, dim ", dim, is_causal ? ", causal" : "",
               is_capped ? ", softcap" : "");
        expect(same_bits(*with->log_sum_exp, *without->log_sum_exp), "log-sum-exp, dim ", dim);
      }
}

// Heads of 256: a tile has twice as many rows as keys, so a warpgroup may see fewer tiles of keys than the
// other one.
CLAIM(prefill_with_options_is_right_where_a_warpgroup_sees_fewer_tiles) {
  enum class Option { bias, hole, end, dropout, slopes };
  for (const std::int64_t queries : {128, 152, 168, 200})
    for (const Option option : {Option::bias, Option::hole, Option::end, Option::dropout, Option::slopes}) {
      Call call{.q = Tensor::random({1, 2, queries, 256}, 211, 3, DType::bf16),
                .k = Tensor::random({1, 1, queries + 136, 256}, 212, 2, DType::bf16),
                .v = Tensor::random({1, 1, queries + 136, 256}, 213, 2, DType::bf16)};
      const std::int64_t keys = call.keys();
      call.causal = Causal{Align::ends};
      if (option == Option::bias) call.bias = Tensor::random({1, 1, queries, keys}, 214, 3, DType::bf16);
      if (option == Option::hole || option == Option::end) {
        cases::BoolTensor hidden({1, 1, queries, keys});
        cases::for_each(hidden.shape, [&](auto b, auto h, auto i, auto j) {
          hidden.at(b, h, i, j) = option == Option::hole ? j >= 64 && j < 128 : j >= keys - 100;
        });
        call.matrices.push_back({hidden, true});
      }
      if (option == Option::dropout) call.dropout = Dropout{0.3f, 7};
      if (option == Option::slopes)
        call.alibi = cases::Slopes{.of_heads = {0.5f, 0.1f}, .align = Align::ends};
      expect_right(
          prefill, call, {.log_sum_exp = true},
          "option " + std::to_string(static_cast<int>(option)) + ", " + std::to_string(queries) + " queries");
    }
}

// A bias of 16 bits comes by the copy engine; numbers as low as somebody masks with, and -inf, in some rows
// alone, and in whole ones.
CLAIM(prefill_with_a_bias_that_hides_keys_is_within_the_bound) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const std::int64_t dim : {64, 128, 256})
      for (const float lowest : {-HUGE_VALF, -3.38e38f, -1e4f}) {
        if (dtype == DType::f16 && lowest == -3.38e38f) continue;  // it has no such number
        Call call{.q = Tensor::random({1, 4, 200, dim}, 301, 4, dtype),
                  .k = Tensor::random({1, 2, 328, dim}, 302, 2, dtype),
                  .v = Tensor::random({1, 2, 328, dim}, 303, 2, dtype),
                  .bias = Tensor::random({1, 4, 200, 328}, 304, 3, dtype)};
        cases::for_each(call.bias->shape(), [&](auto b, auto h, auto i, auto j) {
          if (i % 5 == 3 || (i % 2 == 0 && j > i) || j / 128 == h) call.bias->set(b, h, i, j, lowest);
        });
        expect_right(prefill, call, {.log_sum_exp = true},
                     std::to_string(dim) + " dimensions, " + std::to_string(lowest));
      }
}

CLAIM(rows_whose_scores_are_all_at_a_softcap_are_within_the_bound) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const std::int64_t dim : {64, 128, 256})
      for (const float cap : {3.0f, 50.0f, 55.4f, 55.5f, 300.0f}) expect_right_at_a_softcap(dtype, dim, cap);
}

// 256 queries and fewer over many more keys: units of these run apart, of 4096 keys, or of 2048 where there
// are up to 128 queries. Two or four heads of few queries share a tile of rows, but not where sequences
// differ.
CLAIM(prefill_of_few_queries_over_many_keys_is_right_and_has_one_answer) {
  for (const auto& [queries, dim, value_dim] : {std::array<std::int64_t, 3>{16, 128, 128},
                                                {64, 64, 64},
                                                {100, 192, 128},
                                                {128, 80, 96},
                                                {40, 72, 40},
                                                {70, 256, 256},
                                                {200, 128, 128},
                                                {256, 64, 64}})
    for (const int ranges : {0, 1, 2}) {
      const std::int64_t heads = queries == 16 ? 8 : 4;
      Call batch{.q = Tensor::random({3, heads, queries, dim}, 311, 4, DType::bf16),
                 .k = Tensor::random({3, 2, 4200, dim}, 312, 2, DType::bf16),
                 .v = Tensor::random({3, 2, 4200, value_dim}, 313, 2, DType::bf16)};
      batch.key_lengths = {{2500, 4200, 300}};
      if (ranges == 1) batch.sink = Tensor::random({1, heads, 1, 1}, 314, 4);
      if (ranges == 2) batch.window = Window{1000, 5, Align::starts}, batch.head_map = HeadMap::tiled;
      const auto all = run(prefill, batch, {.log_sum_exp = true});
      expect(all.has_value(), "refused");
      if (!all) continue;
      for (std::int64_t b = 0; b < 3; ++b) {
        const std::int64_t keys = (*batch.key_lengths)[static_cast<std::size_t>(b)];
        Call alone{
            .q = entry(batch.q, b, queries), .k = entry(batch.k, b, keys), .v = entry(batch.v, b, keys)};
        alone.sink = batch.sink, alone.window = batch.window, alone.head_map = batch.head_map;
        const std::string what = std::to_string(queries) + " queries of " + std::to_string(dim) + " over " +
                                 std::to_string(keys) + ", ranges " + std::to_string(ranges);
        const auto got = run(prefill, alone, {.log_sum_exp = true});
        expect(same_bits(got->out, entry(all->out, b, queries)), what);
        expect(same_bits(*got->log_sum_exp, entry(*all->log_sum_exp, b, queries)), what, ": log-sum-exp");
        if (b != 1 || ranges == 1) expect_right(prefill, alone, {.log_sum_exp = true}, what);
      }
      batch.v.set(1, 0, 3000, 2, nan);
      if (ranges == 0) expect_right(prefill, batch, {}, "poison");
      batch.key_lengths.reset();
      if (ranges == 0) expect_right(prefill, batch, {}, "poison in sequences that are alike");
    }
}

// Documents that follow each other are sequences of their own; in two batch entries whose rows do not follow
// each other they are a mask.
CLAIM(prefill_of_documents_has_the_bits_of_prefill_of_each) {
  constexpr std::int64_t lengths[] = {100, 1, 300, 27};
  for (const std::int64_t batch : {1, 2}) {
    Call all{.q = Tensor::random({batch, 4, 428, 128}, 321, 4, DType::bf16),
             .k = Tensor::random({batch, 2, 428, 128}, 322, 2, DType::bf16),
             .v = Tensor::random({batch, 2, 428, 128}, 323, 2, DType::bf16)};
    all.causal = Causal{Align::starts}, all.window = Window{200, 0, Align::starts};
    for (Tensor Call::* x : {&Call::q, &Call::k, &Call::v}) {
      const Shape s = (all.*x).shape();
      all.*x = (all.*x).laid_out({s.length * s.heads * s.dim, s.dim, s.heads * s.dim, 1});
    }
    all.documents.emplace();
    for (std::int32_t n = 0; n < 4; ++n) all.documents->ids.insert(all.documents->ids.end(), lengths[n], n);
    const auto together = run(prefill, all, {.log_sum_exp = batch == 1});
    expect(together.has_value(), "refused");
    if (!together) continue;
    expect_right(prefill, all, {.log_sum_exp = batch == 1}, "documents");
    std::int64_t first = 0;
    for (const std::int64_t length : lengths) {
      if (batch > 1) break;
      Call alone{
          .q = all.q.rows(first, length), .k = all.k.rows(first, length), .v = all.v.rows(first, length)};
      alone.causal = all.causal, alone.window = all.window;
      expect(same_bits(run(prefill, alone, {})->out, together->out.rows(first, length)), "a document of ",
             length, ", batch ", batch);
      first += length;
    }
  }
}

struct CachedPrefill {
  CacheType type;
  std::int64_t page_size, tokens, queries, dim, value_dim;  // page_size 0: contiguous
  std::int64_t fewer = 37;                                  // tokens of the second sequence

  KvCache cache(std::int64_t batch = 2) const {
    KvCacheConfig config{.batch = batch,
                         .kv_heads = 2,
                         .capacity = tokens + 40,
                         .dim = dim,
                         .value_dim = value_dim,
                         .type = type};
    if (page_size > 0) config.page_size = page_size;
    return KvCache(config);
  }
};

// Prompts over a cache: pages shorter than a tile of keys and longer, the last ones not full, and values that
// are no numbers behind a sequence and in it.
CLAIM(prefill_over_pages_has_the_bits_of_prefill_over_rows) {
  for (const CachedPrefill& t : {CachedPrefill{CacheType::bf16, 16, 300, 150, 64, 64},
                                 {CacheType::bf16, 64, 1100, 300, 128, 128},
                                 {CacheType::f16, 256, 1000, 500, 128, 128},
                                 {CacheType::bf16, 0, 700, 200, 32, 32},
                                 {CacheType::f16, 32, 517, 130, 96, 96},
                                 {CacheType::bf16, 64, 900, 140, 80, 80},
                                 {CacheType::bf16, 64, 900, 140, 72, 40},
                                 {CacheType::bf16, 128, 1300, 333, 192, 128},
                                 {CacheType::bf16, 16, 700, 129, 192, 192},
                                 {CacheType::f16, 64, 700, 200, 256, 256},
                                 {CacheType::bf16, 256, 900, 260, 64, 64},
                                 {CacheType::bf16, 64, 2390, 270, 128, 128, 0},
                                 {CacheType::f16, 128, 640, 200, 96, 88, 0},
                                 {CacheType::bf16, 64, 2390, 270, 128, 128},
                                 {CacheType::f16, 128, 4400, 300, 64, 64, 2200},
                                 {CacheType::bf16, 0, 2390, 300, 128, 128},
                                 {CacheType::f16, 0, 1496, 200, 96, 88, 0},
                                 {CacheType::bf16, 64, 4300, 100, 128, 128},
                                 {CacheType::bf16, 64, 8192, 128, 128, 128, 0},
                                 {CacheType::f16, 128, 4200, 256, 64, 64, 0},
                                 {CacheType::bf16, 64, 3000, 30, 96, 88, 0},
                                 {CacheType::f16, 64, 4200, 60, 256, 256, 0}})
    for (const bool is_poisoned : {false, true}) {
      if (cases::small_selection() && (t.tokens > 3000 || (is_poisoned && t.page_size != 64))) continue;
      const DType dtype = t.type == CacheType::bf16 ? DType::bf16 : DType::f16;
      KvCache cache = t.cache();
      const Tensor k = Tensor::random({2, 2, t.tokens, t.dim}, 151, 2, dtype);
      Tensor v = Tensor::random({2, 2, t.tokens, t.value_dim}, 152, 2, dtype);
      if (is_poisoned) v.set(0, 1, t.tokens - 20, 3, nan);
      const std::vector<std::int64_t> counts{t.tokens, t.tokens - t.fewer};
      cache.append(k.view(), v.view(), counts);
      const Tensor q = Tensor::random({2, 4, t.queries, t.dim}, 153, 3, dtype);
      Tensor paged({2, 4, t.queries, t.value_dim}, dtype);
      paged.fill_bytes(0xff);
      expect(run(prefill, make_problem({.q = q.view(), .cache = &cache}, {.out = paged.mutable_view()},
                                       {.masks = {Causal{Align::ends}}})),
             "refused");
      for (std::int64_t b = 0; b < 2; ++b) {
        Call alone{.q = entry(q, b, t.queries), .k = entry(k, b, counts[b]), .v = entry(v, b, counts[b])};
        alone.causal = Causal{Align::ends};
        expect(same_bits(run(prefill, alone, {})->out, entry(paged, b, t.queries)), "pages of ", t.page_size,
               ", dims ", t.dim, " and ", t.value_dim, ", sequence ", b, is_poisoned ? ", poisoned" : "");
      }
    }
}

constexpr std::int64_t in_page = 64;

// Three sequences over pages that held what is no number before: two have the first 500 tokens and their
// pages in common, 500 being within a page.
struct SharedPrefix {
  static constexpr std::int64_t tokens = 2400, shared = 500;

  SharedPrefix() {
    Tensor poison({2, 2, tokens, 128}, DType::bf16);
    poison.fill(nan);
    cache.append(poison.view(), poison.view());
    cache.reset();
    cache.append(k.view(), v.view(), std::vector<std::int64_t>{tokens, tokens - 90});
    cache.fork(0, shared);
    cache.append_to(2, own_k.view(), own_v.view());
  }

  // Tokens of a sequence as rows.
  Tensor rows(std::int64_t sequence, const Tensor& of_all, const Tensor& own) const {
    Tensor made = entry(of_all, sequence % 2, cache.length(sequence));
    if (sequence == 2)
      cases::for_each(own.shape(), [&](auto, auto h, auto i, auto d) {
        made.set(0, h, shared + i, d, own.at(0, h, i, d));
      });
    return made;
  }

  KvCache cache{{.batch = 2,
                 .kv_heads = 2,
                 .capacity = tokens,
                 .dim = 128,
                 .type = CacheType::bf16,
                 .page_size = in_page,
                 .pages = 3 * tokens / in_page}};
  const Tensor k = Tensor::random({2, 2, tokens, 128}, 171, 2, DType::bf16),
               v = Tensor::random({2, 2, tokens, 128}, 172, 2, DType::bf16),
               own_k = Tensor::random({1, 2, 701, 128}, 173, 2, DType::bf16),
               own_v = Tensor::random({1, 2, 701, 128}, 174, 2, DType::bf16);
};

// Packed queries: where one sequence has few over many keys, its keys are cut, and the pages of all are
// copied first; where it has none, nothing is written.
CLAIM(prefill_over_pages_that_sequences_share_has_the_bits_of_prefill_over_rows_of_each) {
  const SharedPrefix of;
  const std::vector<std::int64_t> sequences{2, 0, 1};
  for (const auto& counts : {std::array<std::int64_t, 3>{300, 270, 400}, {300, 40, 400}, {0, 270, 0}}) {
    const std::vector<std::int64_t> starts{0, counts[0], counts[0] + counts[1],
                                           counts[0] + counts[1] + counts[2]};
    const Tensor q = Tensor::random({1, 4, starts[3], 128}, 175, 3, DType::bf16);
    Tensor out(q.shape(), DType::bf16);
    out.fill_bytes(0xff);
    expect(
        run(prefill,
            make_problem({.q = q.view(), .cache = &of.cache, .sequences = sequences, .query_starts = starts},
                         {.out = out.mutable_view()}, {.masks = {Causal{Align::ends}}})),
        "refused");
    for (std::size_t n = 0; n < 3; ++n) {
      if (counts[n] == 0) continue;
      Call alone{.q = q.rows(starts[n], counts[n]),
                 .k = of.rows(sequences[n], of.k, of.own_k),
                 .v = of.rows(sequences[n], of.v, of.own_v)};
      alone.causal = Causal{Align::ends};
      expect(same_bits(run(prefill, alone, {})->out, out.rows(starts[n], counts[n])), counts[n],
             " queries of sequence ", sequences[n], " beside ", counts[1]);
    }
  }
}

// A window's pages that were released are one page of zeros, which a tile of keys holds beside others.
CLAIM(prefill_over_pages_that_a_window_has_passed_has_the_bits_of_prefill_over_rows) {
  constexpr std::int64_t before = 1000, queries = 300, tokens = before + queries, window = 250;
  static_assert((before - window + 1) / in_page % 2 == 1, "the first tile of keys begins with a page before");
  KvCache cache({.batch = 1,
                 .kv_heads = 2,
                 .capacity = tokens,
                 .dim = 128,
                 .type = CacheType::bf16,
                 .page_size = in_page,
                 .window = CacheWindow{.length = window}});
  Tensor k = Tensor::random({1, 2, tokens, 128}, 181, 2, DType::bf16),
         v = Tensor::random({1, 2, tokens, 128}, 182, 2, DType::bf16);
  const Tensor q = Tensor::random({1, 4, queries, 128}, 183, 3, DType::bf16);
  Call alone{.q = q, .k = k, .v = v};
  alone.causal = Causal{Align::ends}, alone.window = Window{window - 1, 0, Align::ends};
  // What is released is no number.
  for (Tensor* x : {&k, &v})
    cases::for_each({1, 2, in_page, 128}, [&](auto b, auto h, auto i, auto d) {
      x->set(b, h, (before - window + 1) / in_page * in_page - in_page + i, d, nan);
    });
  const Tensor first_k = k.rows(0, before), first_v = v.rows(0, before), last_k = k.rows(before, queries),
               last_v = v.rows(before, queries);
  cache.append(first_k.view(), first_v.view());
  const std::int64_t pages = cache.pages_in_use();
  cache.append(last_k.view(), last_v.view());
  expect(cache.pages_in_use() < pages + queries / in_page, "no page was released");
  Tensor out(q.shape(), DType::bf16);
  out.fill_bytes(0xff);
  expect(run(prefill, make_problem({.q = q.view(), .cache = &cache}, {.out = out.mutable_view()},
                                   {.masks = {Causal{Align::ends}}})),
         "refused");
  expect(same_bits(run(prefill, alone, {})->out, out), "a window of ", window);
}

// Integers are the operands; scales are factors of scores and weights. The last four have few queries over
// many keys, which are cut; in a batch they are not alike.
CLAIM(prefill_over_int8_pages_is_within_the_bound_and_has_one_answer) {
  for (const CachedPrefill& t : {CachedPrefill{CacheType::int8, 16, 300, 150, 64, 64},
                                 {CacheType::int8, 64, 1100, 300, 128, 128},
                                 {CacheType::int8, 32, 517, 130, 96, 40},
                                 {CacheType::int8, 0, 700, 200, 256, 256},
                                 {CacheType::int8, 64, 4300, 100, 128, 128},
                                 {CacheType::int8, 0, 8200, 250, 64, 64},
                                 {CacheType::int8, 16, 2600, 40, 256, 256},
                                 {CacheType::int8, 32, 4200, 128, 96, 40, 0}})
    for (const DType dtype : {DType::bf16, DType::f16}) {
      KvCache cache = t.cache();
      const Tensor k = Tensor::random({2, 2, t.tokens, t.dim}, 161, 2, dtype),
                   v = Tensor::random({2, 2, t.tokens, t.value_dim}, 162, 2, dtype);
      const std::vector<std::int64_t> counts{t.tokens, t.tokens - t.fewer};
      cache.append(k.view(), v.view(), counts);
      const Tensor q = Tensor::random({2, 4, t.queries, t.dim}, 163, 3, dtype);
      Tensor out({2, 4, t.queries, t.value_dim}, dtype);
      out.fill_bytes(0xff);
      const Inputs inputs{.q = q.view(), .cache = &cache};
      const Outputs outputs{.out = out.mutable_view()};
      const Options options{.masks = {Causal{Align::ends}}};
      expect(run(prefill, make_problem(inputs, outputs, options)), "refused");
      const Check result = check(inputs, outputs, options);
      expect(result.beyond_bound == 0, "pages of ", t.page_size, ", dims ", t.dim, " and ", t.value_dim, ": ",
             result.beyond_bound, " beyond the bound, first ", result.first_miss);
      for (std::int64_t b = 0; b < 2; ++b) {
        CachedPrefill one = t;
        one.tokens = counts[static_cast<std::size_t>(b)];
        KvCache own = one.cache(1);
        own.append(entry(k, b, one.tokens).view(), entry(v, b, one.tokens).view());
        const Tensor own_q = entry(q, b, t.queries);
        Tensor own_out({1, 4, t.queries, t.value_dim}, dtype);
        expect(run(prefill, make_problem({.q = own_q.view(), .cache = &own}, {.out = own_out.mutable_view()},
                                         options)),
               "refused");
        expect(same_bits(own_out, entry(out, b, t.queries)), "pages of ", t.page_size, ", dims ", t.dim,
               " and ", t.value_dim, ", sequence ", b, " alone");
      }
    }
}

}  // namespace
}  // namespace heed::cuda::test
