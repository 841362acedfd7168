// SPDX-License-Identifier: Apache-2.0
// What is decided before a launch, and needs no GPU.
#include <cstdint>
#include <vector>

#include "call/make_problem.hpp"
#include "cases/tensor.hpp"
#include "claims.hpp"
#include "cuda/backward/order.hpp"
#include "cuda/exact/plan.hpp"
#include "cuda/lower.hpp"
#include "cuda/prefill/plan.hpp"
#include "heed/cache.hpp"

namespace heed::cuda::test {
namespace {

using claims::expect;

Call call_of(std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t queries,
             std::int64_t keys, bool is_causal) {
  Call c{};
  c.batch = batch, c.heads = heads, c.kv_heads = kv_heads, c.queries = queries, c.keys = keys;
  c.dim = c.value_dim = 128;
  c.each.queries = queries, c.each.keys = c.each.key_count = keys;
  c.each.first_offset = -keys - queries;
  c.each.end_offset = is_causal ? keys - queries + 1 : keys + queries;
  return c;
}

CLAIM(prefill_takes_every_tile_of_rows_once) {
  bool has_short_section = false;
  for (const bool is_causal : {false, true})
    for (const int heads : {1, 2, 6, 64})
      for (const int queries : {1, 128, 129, 1000, 4096})
        for (const int keys : {1, 300, 30000}) {
          const PrefillOrder order = prefill_order(call_of(5, heads, 1, queries, keys, is_causal), 128);
          expect(order.tiles == (queries + 127) / 128, queries, " queries have ", order.tiles, " tiles");
          has_short_section |= order.section > 1 && order.heads % order.section != 0;
          std::vector<int> taken(static_cast<std::size_t>(5 * heads * order.tiles));
          for (int n = 0; n < 5 * heads * order.tiles; ++n) {
            const auto [head, tile] = order[n];
            const bool is_there = head >= 0 && head < 5 * heads && tile >= 0 && tile < order.tiles;
            expect(is_there, "number ", n, " is tile ", tile, " of head ", head);
            if (is_there) ++taken[static_cast<std::size_t>(head * order.tiles + tile)];
          }
          for (const int times : taken)
            expect(times == 1, heads, " heads, ", queries, " queries, ", keys, " keys: taken ", times,
                   " times");
        }
  expect(has_short_section, "no last section had fewer heads than the others");
}

CLAIM(every_row_is_in_one_tile_and_only_the_first_tile_is_short) {
  for (const int rows : {128, 192})
    for (const int queries : {1, 63, 128, 129, 191, 192, 193, 1000, 1024}) {
      const int tiles = (queries + rows - 1) / rows;
      int end = 0;
      for (int tile = 0; tile < tiles; ++tile) {
        const TileRows here = rows_of_tile(queries, rows, tile);
        expect(here.begin == end, "tile ", tile, " of ", queries, " begins at ", here.begin, ", not ", end);
        expect(here.end - here.begin == rows || (tile == 0 && here.end > 0 && here.end < rows), "tile ", tile,
               " of ", queries, " has ", here.end - here.begin, " rows");
        end = here.end;
      }
      expect(end == queries, queries, " queries end at ", end);
    }
}

CLAIM(every_width_of_heads_has_a_prefill_kernel_that_holds_it) {
  using enum PrefillKind;
  const float number = 0;
  const cache::PagedSequence cached{};
  for (const PrefillKind kind :
       {plain, cut, capped, masked, masked_capped, sloped, biased, dropping, scaled, cut_scaled})
    for (int dim = 8; dim <= 256; dim += 8)
      for (int value_dim = 8; value_dim <= 256; value_dim += 8) {
        if (is_cut(kind) && value_dim > 128 && value_dim <= 192)
          continue;  // 2048 keys are no whole tiles there
        Call c = call_of(1, 1, 1, is_cut(kind) ? 64 : 4096, 4096, false);
        c.dim = dim, c.value_dim = value_dim;
        if (kind == capped || kind == masked_capped) c.cap = 30;
        if (kind == masked || kind == masked_capped) c.mask_count = 1;
        if (kind == sloped) c.alibi.of_heads = &number;
        if (kind == biased) c.bias.data = &number;
        if (kind == dropping) c.drop_below = 1;
        if (is_scaled(kind)) c.cached = &cached, c.layout.is_quantized = true;
        const PrefillDims found = prefill_dims_for(c);
        const int name = static_cast<int>(kind);
        expect(prefill_kind(c) == kind, "kind ", name);
        expect(has_kernel(found, kind), dim, " and ", value_dim, ": no kernel of kind ", name);
        expect(found.dim >= dim && found.value_dim >= value_dim, dim, " and ", value_dim, " in ", found.dim,
               " and ", found.value_dim);
        const bool is_own =
            dim == 64 || dim == 128 || dim == 256 ||
            (dim == 192 ? kind == plain || kind == capped : (dim == 32 || dim == 96) && kind <= capped);
        if (dim == value_dim && is_own) expect(found.dim == dim, dim, " in ", found.dim);
      }
}

// Sequences of different lengths: a kernel for keys that are cut is for batches that have some.
CLAIM(prefill_cuts_a_batch_where_a_sequence_has_few_queries_over_many_keys_and_reads_its_pages) {
  constexpr std::int64_t longest = 5000, shorter = 4500;
  KvCache cache(
      {.batch = 2, .kv_heads = 1, .capacity = longest, .dim = 64, .type = CacheType::bf16, .page_size = 64});
  const cases::Tensor tokens({2, 1, longest, 64}, DType::bf16);
  cache.append(tokens.view(), tokens.view(), std::vector<std::int64_t>{longest, shorter});
  const auto expect_cut = [&](const Inputs& inputs, std::int64_t queries, bool is_cut) {
    cases::Tensor out({inputs.q.shape.batch, 1, inputs.q.shape.length, 64}, DType::bf16);
    const Problem problem =
        make_problem(inputs, {.out = out.mutable_view()}, {.masks = {Causal{Align::ends}}});
    const LoweredCall lowered(problem);
    const Call& c = lowered.call;
    expect(c.sequences != nullptr, queries, " queries: sequences are alike");
    expect(prefill_kind(c) == (is_cut ? PrefillKind::cut : PrefillKind::plain), queries, " queries");
    if (!c.cached) return;
    expect(may_read_pages(c), queries, " queries over pages");
    Call reading = c;
    reading.k.data = &cache, reading.v.data = nullptr;
    expect(prefill_kind(reading) == (is_cut ? PrefillKind::cut_paged : PrefillKind::paged), queries,
           " queries over pages that are read where they lie");
  };
  for (const std::int64_t queries : {max_cut_queries, max_cut_queries + 1}) {
    const bool is_cut = queries == max_cut_queries;
    const cases::Tensor q({2, 1, queries, 64}, DType::bf16), packed({1, 1, 600 + queries, 64}, DType::bf16),
        keys({1, 1, longest + shorter, 64}, DType::bf16);
    expect_cut({.q = q.view(), .cache = &cache}, queries, is_cut);
    const std::vector<std::int64_t> query_starts{0, 600, 600 + queries},
        key_starts{0, longest, longest + shorter};
    expect_cut({.q = packed.view(),
                .k = keys.view(),
                .v = keys.view(),
                .query_starts = query_starts,
                .key_starts = key_starts},
               queries, is_cut);
  }
}

CLAIM(prefill_ends_with_the_shortest_tiles_of_all_heads) {
  const PrefillOrder causal = prefill_order(call_of(4, 64, 8, 1024, 1024, true), 128);
  const PrefillOrder ragged = prefill_order(call_of(2, 12, 6, 1024, 1024, false), 192);
  const PrefillOrder even = prefill_order(call_of(4, 64, 8, 1024, 1024, false), 128);
  for (int n = 0; n < 128; ++n) {
    expect(causal[n].tile == 7 && causal[256 * 8 - 1 - n].tile == 0,
           "causal: the last tiles see the most keys");
    expect(even[n].head == n / 8,
           "tiles that are all alike: a head at a time, so that blocks share its keys");
  }
  for (int n = 0; n < 24; ++n)
    expect(ragged[n].tile == 5 && ragged[24 * 6 - 1 - n].tile == 0,
           "ragged: the first tile of a head is short");
}

CLAIM(prefill_keeps_the_keys_of_a_section_in_the_second_level_cache) {
  for (const int keys : {1024, 16384, 100000}) {
    const PrefillOrder order = prefill_order(call_of(1, 64, 8, keys, keys, true), 128);
    const std::int64_t kv_heads = (order.section + 7) / 8, bytes = kv_heads * keys * 128 * 4;
    expect(bytes <= 2 * section_bytes || kv_heads == 1, keys, " keys: a section of ", order.section,
           " heads has ", bytes, " bytes");
  }
}

// K and V as they lie in memory that nobody has touched.
Call plain_call(std::int64_t heads, std::int64_t kv_heads, std::int64_t queries, std::int64_t dim) {
  Call c = call_of(16, heads, kv_heads, queries, 8192, false);
  c.dim = c.value_dim = dim;
  for (Tensor* t : {&c.k, &c.v})
    t->stride = {.batch = kv_heads * 8192 * dim, .heads = 8192 * dim, .length = dim, .dim = 1};
  return c;
}
constexpr std::int64_t at_once = 264;

CLAIM(few_rows_have_an_exact_kernel_of_their_own) {
  for (const int group : {1, 4, 5, 8, 9}) {
    const Call c = plain_call(8 * group, 8, 1, 128);
    const ExactLaunch launch = plan_exact(c, at_once);
    expect(launch.few == (group <= 4   ? 4
                          : group <= 8 ? 8
                                       : 0),
           group, " rows go to the one for ", launch.few);
    if (launch.few == 0) continue;
    expect(launch.first_blocks(c) == 16 * 8 * 8, "a block for every chunk, not ", launch.first_blocks(c));
    expect(launch.plan.splits == 1, "the general kernel behind it splits nothing");
    expect(plan_exact(c, 0).few == 0, "chunks that may not run apart");
  }
}

CLAIM(long_problems_have_an_exact_kernel_of_their_own) {
  const Call c = plain_call(8, 8, 8192, 64);
  expect(plan_exact(c, at_once).plan.first_tiles == 64, "8192 rows are 64 tiles");
  expect(plan_exact(plain_call(8, 8, 8192, 128), at_once).plan.first_tiles == 0, "heads of 128");
  expect(plan_exact(plain_call(8, 8, 64, 64), at_once).plan.first_tiles == 0, "64 rows");
}

CLAIM(only_plain_problems_skip_the_general_exact_kernel) {
  const float slope = 0;
  const cache::PagedSequence cached{};
  for (const int queries : {1, 8192}) {
    const Call plain = plain_call(32, 8, queries, 64);
    const auto expect_general = [&](const char* what, const auto& change) {
      Call c = plain;
      change(c);
      expect(plan_exact(c, at_once).plan.first_tiles == 0, what, ", ", queries, " queries");
    };
    expect(plan_exact(plain, at_once).plan.first_tiles > 0, queries, " queries");
    expect_general("a bias", [&](Call& c) { c.bias.data = &slope; });
    expect_general("slopes", [&](Call& c) { c.alibi.of_heads = &slope; });
    expect_general("a mask", [](Call& c) { c.mask_count = 1; });
    expect_general("documents", [](Call& c) { c.document_count = 1; });
    expect_general("a front", [](Call& c) { c.front = 4; });
    expect_general("a softcap", [](Call& c) { c.softcap_log2e = 20; });
    expect_general("dropout", [](Call& c) { c.drop_below = 1; });
    expect_general("weights", [&](Call& c) { c.weights.data = &slope; });
    expect_general("a cache of bf16", [&](Call& c) { c.cached = &cached, c.k.type = c.v.type = Type::bf16; });
    Call over_pages = plain;  // a few queries over pages of f32 do skip it
    over_pages.cached = &cached;
    expect(plan_exact(over_pages, at_once).plan.first_tiles == (queries == 1 ? 1 : 0), "a cache, ", queries,
           " queries");
    expect(plan_exact(over_pages, at_once).few_of_pages, "pages of f32");
    expect_general("bf16", [](Call& c) { c.k.type = Type::bf16; });
    expect_general("keys that are not aligned", [](Call& c) { c.k.stride.length = 66; });
  }
}

// Whoever writes dQ of a tile of queries waits for so many adds.
CLAIM(tiles_of_keys_and_the_tiles_of_queries_that_they_add_to_know_each_other) {
  for (const int queries : {1, 64, 200, 513})
    for (const int keys : {1, 128, 300, 700})
      for (const int key_count : {0, 1, 130, keys})
        for (const int width : {0, 1, 90, 400, queries + keys})
          for (const int end : {-300, 0, 1, keys - queries + 1, queries + keys})
            for (const int rows : {64, 128}) {
              Sequence s{};
              s.queries = queries, s.keys = keys, s.key_count = key_count < keys ? key_count : keys;
              s.end_offset = end, s.first_offset = end - width;
              for (int tile = 0; tile * rows < queries; ++tile) {
                int count = 0, first = 0;
                for (int n = (keys - 1) / backward_keys; n >= 0; --n) {
                  const QueryTiles of = query_tiles_of(s, n, rows);
                  if (of.first <= tile && tile <= of.last) ++count, first = n;
                }
                const KeyTiles found = key_tiles_of(s, tile, rows);
                expect(found.count() == count && (count == 0 || found.first == first), queries, " queries, ",
                       s.key_count, " keys that end at ", end, " in windows of ", width, ": tile ", tile,
                       " of ", rows, " has ", found.count(), " tiles of keys from ", found.first, " on, not ",
                       count, " from ", first);
              }
            }
}

// Every pair of tiles once, its dS in memory that the part before does not have; where one tile of rows of
// one head fits, in no more than a pass may take.
CLAIM(parts_of_exact_gradients_fit_their_memory) {
  float memory = 0;
  for (const int heads : {1, 3, 32, 2048})
    for (const int queries : {1, 100, 4096, 16384})
      for (const int keys : {96, 4096, 100000}) {
        GradientCall g{};
        g.forward = plain_call(heads, heads, queries, 64);
        g.forward.batch = 1, g.forward.keys = keys;
        g.q.data = g.k.data = g.v.data = &memory;
        const ExactParts parts(g, 396);
        std::int64_t pairs = 0, made = 0;
        const float* before = nullptr;
        const auto tiles_of = [](const ExactPart& p) { return p.heads * p.row_tiles * p.key_tiles; };
        parts.run_each(
            &memory,
            [&](const ExactPart& p) {
              expect(p.pairs != before, heads, " heads, ", queries, " queries, ", keys, " keys");
              pairs += tiles_of(p), before = p.pairs;
            },
            [&](const ExactPart& p, ExactParts::Beside) { made += tiles_of(p); });
        const auto tiles = [](int n) { return (n + ExactPart::items - 1) / ExactPart::items; };
        expect(pairs == heads * tiles(queries) * tiles(keys) && made == pairs, heads, " heads, ", queries,
               " queries, ", keys, " keys: ", pairs, " pairs of tiles, ", made, " for dQ");
        const std::int64_t dS = parts.bytes() - parts.sum_bytes();
        expect(dS <= ExactParts::most_bytes, heads, " heads, ", queries, " queries, ", keys, " keys: ", dS);
      }
}

}  // namespace
}  // namespace heed::cuda::test
