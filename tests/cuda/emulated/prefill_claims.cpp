// SPDX-License-Identifier: Apache-2.0
// Prefill's kernels against the reference's bound, on a CPU that emulates a GPU's threads: a few of what
// prefill_claims.cpp says of all of them.
#include <array>

#include "cases/selection.hpp"
#include "heed/cache.hpp"
#include "matrix.hpp"

namespace heed::cuda::test {
namespace {

// Those that a kernel is compiled for here and that do not take long.
template <class Made>
void expect_some_right(std::uint64_t first, std::uint64_t end, int at_least, const Made& made) {
  constexpr std::int64_t most_pairs = 250'000;  // of a query and a key: a second
  int taken = 0;
  const std::vector<std::uint64_t> seeds = cases::seeds(first, end);
  for (const std::uint64_t seed : seeds) {
    const Call call = made(seed);
    if (call.score_shape().elements() > most_pairs) continue;
    auto got = run(prefill, call, {.log_sum_exp = true});
    if (!got) continue;
    ++taken;
    const Check result = check(call.inputs(), got->outputs(), call.options());
    expect(result.beyond_bound == 0, "seed ", seed, " (", cases::describe(call), "): ", result.beyond_bound,
           " of ", result.compared, " beyond the bound, first ", result.first_miss);
  }
  expect(taken >= at_least, "only ", taken, " of ", seeds.size(), " have a kernel");
}

CLAIM(prefill_of_random_ranges_is_within_the_bound) {
  expect_some_right(1, 100, 5, [](std::uint64_t seed) { return range_call(seed, 300); });
}

// Keys in units, whose states are merged: of two or four heads in a tile of rows, of one, and of two tiles.
CLAIM(prefill_of_few_queries_over_many_keys_is_right_and_has_one_answer) {
  for (const auto& [queries, longest] :
       {std::array<std::int64_t, 2>{16, 2200}, {50, 2200}, {100, 2200}, {130, 4200}}) {
    Call batch{.q = Tensor::random({2, 2, queries, 64}, 311, 4, DType::bf16),
               .k = Tensor::random({2, 1, longest, 64}, 312, 2, DType::bf16),
               .v = Tensor::random({2, 1, longest, 64}, 313, 2, DType::bf16)};
    batch.key_lengths = {{static_cast<std::int32_t>(longest), 300}},
    batch.sink = Tensor::random({1, 2, 1, 1}, 314, 4);
    const auto all = run(prefill, batch, {});
    expect(all.has_value(), queries, " queries are refused");
    Call alone{
        .q = entry(batch.q, 0, queries), .k = entry(batch.k, 0, longest), .v = entry(batch.v, 0, longest)};
    alone.sink = batch.sink;
    const std::string what = std::to_string(queries) + " queries over " + std::to_string(longest);
    if (all) expect(same_bits(run(prefill, alone, {})->out, entry(all->out, 0, queries)), what);
    alone.causal = Causal{Align::ends};
    if (queries != 50) expect_right(prefill, alone, {.log_sum_exp = true}, what);
    if (queries != 16) continue;
    alone.k.set(0, 0, 1500, 3, 3e37f), alone.v.set(0, 0, 700, 5, HUGE_VALF);
    expect_right(prefill, alone, {.log_sum_exp = true}, what + ", numbers at the ends of their range");
  }
}

// Pages that were another's and lie in no order, of sequences that share their first ones: as rows, to the
// last bit.
void expect_the_bits_of_rows(std::int64_t queries, std::int64_t longest) {
  constexpr std::int64_t shared = 150, dim = 64;
  KvCacheConfig config{.batch = 2, .kv_heads = 2, .capacity = longest, .dim = dim, .type = CacheType::bf16};
  config.page_size = 64, config.pages = 4 * longest / 64;
  KvCache cache(config);
  const Tensor k = Tensor::random({2, 2, longest, dim}, 21, 2, DType::bf16),
               v = Tensor::random({2, 2, longest, dim}, 22, 2, DType::bf16);
  Tensor poison({2, 2, longest, dim}, DType::bf16);
  poison.fill_bytes(0xff);
  cache.append(poison.view(), poison.view());
  cache.reset(1), cache.reset(0);
  const std::vector<std::int64_t> lengths{longest, longest - 90};
  cache.append(k.view(), v.view(), lengths);
  cache.release(cache.fork(1));
  const std::int64_t forked = cache.fork(0, shared);
  const std::vector<std::int64_t> sequences{forked, 0, 1}, counts{shared, longest, longest - 90};
  const Tensor q = Tensor::random({3, 4, queries, dim}, 23, 3, DType::bf16);
  Tensor out(q.shape(), DType::bf16);
  const Options options{.masks = {Causal{Align::ends}}};
  const Problem problem = make_problem({.q = q.view(), .cache = &cache, .sequences = sequences},
                                       {.out = out.mutable_view()}, options);
  expect(run(prefill, problem, Cut::by_the_plan), "refused");
  for (std::int64_t n = 0; n < 3; ++n) {
    const std::int64_t of = n / 2, count = counts[static_cast<std::size_t>(n)];
    Call alone{.q = entry(q, n, queries), .k = entry(k, of, count), .v = entry(v, of, count)};
    alone.causal = Causal{Align::ends};
    const auto rows = run(prefill, alone, {});
    expect(rows && same_bits(rows->out, entry(out, n, queries)), queries, " queries, sequence ", n);
  }
}
CLAIM(prefill_over_pages_has_the_bits_of_prefill_over_rows) {
  expect_the_bits_of_rows(90, 400);
  expect_the_bits_of_rows(20, 2300);  // whose keys are cut
}

// With one option that scores or weights go through, and masks.
Call option_call(std::uint64_t seed) {
  Dice dice(seed);
  const bool is_f16 = dice.one_in(5);
  const DType dtype = is_f16 ? DType::f16 : DType::bf16;
  const std::int64_t queries = dice.between(1, 230), keys = 8 * dice.between(1, 50),
                     kv_heads = dice.between(1, 2),
                     dim = is_f16 ? 128 : dice.pick<std::int64_t>({64, 64, 40}), batch = dice.between(1, 2);
  Call call{.q = Tensor::random({batch, 2, queries, dim}, 3 * seed, 4, dtype),
            .k = Tensor::random({batch, kv_heads, keys, dim}, 3 * seed + 1, 2, dtype),
            .v = Tensor::random({batch, kv_heads, keys, dim}, 3 * seed + 2, 2, dtype)};
  const Shape full = call.score_shape();
  if (dice.one_in(2)) call.causal = Causal{Align::ends};
  if (dice.one_in(3)) call.window = Window{dice.between(0, 300), dice.between(0, 40), Align::ends};
  if (dice.one_in(3)) call.sink = Tensor::random({1, 2, 1, 1}, seed ^ 0x51Du, 4);
  const std::int64_t option = is_f16 ? 0 : dice.between(0, 4);
  if (option == 0) call.softcap = dice.pick<float>({2.0f, 30.0f, 60.0f});
  if (option == 1) call.bias = Tensor::random({1, 2, queries, keys}, seed ^ 0xB1A5u, 4, DType::bf16);
  if (option == 2) call.alibi = cases::Slopes{.of_heads = {0.5f, 0.1f}, .align = Align::ends};
  if (option == 3) call.dropout = Dropout{dice.pick<float>({0.1f, 0.9f}), dice.bits()};
  if (option == 4 || (!is_f16 && dice.one_in(3)))
    call.matrices.push_back(
        {cases::random_bools(dice, cases::broadcast_some(dice, full), 3), dice.one_in(2)});
  return call;
}
CLAIM(prefill_under_random_options_is_within_the_bound) { expect_some_right(1, 41, 5, option_call); }

// Numbers that are none, and some whose products and sums f32 does not hold, or only just.
CLAIM(prefill_of_numbers_at_the_ends_of_their_range_is_as_in_64_bits) {
  expect_some_right(1, 71, 5, [](std::uint64_t seed) {
    Call call = seed % 5 == 0 ? range_call(seed, 300) : option_call(seed);
    Dice dice(seed ^ 0xBADu);
    for (Tensor* x : {&call.q, &call.k, &call.v})
      for (std::int64_t n = dice.between(0, 2); n > 0; --n) {
        const Shape& s = x->shape();
        const std::int64_t b = dice.between(0, s.batch - 1), h = dice.between(0, s.heads - 1),
                           i = dice.between(0, s.length - 1), d = dice.between(0, s.dim - 1);
        x->set(b, h, i, d,
               dice.pick<float>({nan, HUGE_VALF, -HUGE_VALF, 3e38f, -1e38f, 1e30f, -1e12f, 1e10f, 6e4f}));
      }
    return call;
  });
}

// Keys behind a sequence's end and values that a causal mask hides, of another number and of none.
CLAIM(what_a_row_does_not_see_changes_no_bit_of_it) {
  constexpr std::int64_t keys = 280, length = 203, seen = 100;
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const std::int64_t dim = dtype == DType::bf16 ? 64 : 128;
    Call call{.q = Tensor::random({1, 2, 150, dim}, 1, 4, dtype),
              .k = Tensor::random({1, 1, keys, dim}, 2, 2, dtype),
              .v = Tensor::random({1, 1, keys, dim}, 3, 2, dtype)};
    call.causal = Causal{Align::starts}, call.key_lengths = {{length}};
    const auto before = run(prefill, call, {});
    for (Tensor* x : {&call.k, &call.v})
      for (std::int64_t d = 0; d < dim; ++d) x->set(0, 0, length, d, nan);
    call.v.set(0, 0, seen, 5, nan), call.v.set(0, 0, seen + 40, 7, HUGE_VALF);
    const auto after = run(prefill, call, {});
    expect(before && after, "refused");
    if (!before || !after) continue;
    std::int64_t misses = 0;
    cases::for_each(before->out.shape(), [&](auto b, auto h, auto i, auto d) {
      if (i < seen) misses += before->out.bits(b, h, i, d) != after->out.bits(b, h, i, d);
    });
    expect(misses == 0, dim, " dimensions: ", misses, " misses");
    expect(std::isnan(after->out.at(0, 0, seen, 5)), "a row sees a NaN and has none");
  }
}

CLAIM(rows_whose_scores_are_all_at_a_softcap_are_within_the_bound) {
  for (const float cap : {3.0f, 50.0f, 55.5f}) expect_right_at_a_softcap(DType::bf16, 64, cap);
  expect_right_at_a_softcap(DType::f16, 128, 50);
}

}  // namespace
}  // namespace heed::cuda::test
