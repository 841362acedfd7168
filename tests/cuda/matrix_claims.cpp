// SPDX-License-Identifier: Apache-2.0
// The kernels of the matrix units, prefill, decode and the general one: within the bound of the reference on
// problems of every kind they take, and one answer (O3): the same bits again, whatever runs beside a sequence
// and however it is cut.
#include <cmath>

#include "cases/lattice.hpp"
#include "cases/selection.hpp"
#include "heed/cache.hpp"
#include "matrix.hpp"

namespace heed::cuda::test {
namespace {

CLAIM(prefill_is_within_the_bound) {
  for (const std::uint64_t seed : cases::seeds(1, 160)) {
    const Call call = range_call(seed, 400);
    expect_right(prefill, call, {.log_sum_exp = true},
                 "seed " + std::to_string(seed) + " (" + cases::describe(call) + ")");
  }
}

CLAIM(decode_is_within_the_bound) {
  int taken = 0;
  for (const std::uint64_t seed : cases::seeds(1, 240)) {
    const Call call = range_call(seed, seed % 4 == 0 ? 32 : 1 + seed % 5);
    const std::int64_t rows = call.queries() * (call.heads() / call.k.shape().heads);
    if (rows > (std::max(call.q.shape().dim, call.v.shape().dim) > 128 ? 16 : 64)) continue;
    ++taken;
    expect_right(decode, call, {.log_sum_exp = true},
                 "seed " + std::to_string(seed) + " (" + cases::describe(call) + ")");
  }
  expect(taken > 40, "only ", taken, " problems");
}

CLAIM(every_problem_of_the_conformance_table_is_within_the_bound) {
  for (const std::string& kernel : kernel_names()) {
    int taken = 0, refused = 0;
    for (std::int64_t number = 0; number < cases::case_count(); number += cases::small_selection() ? 7 : 1) {
      const cases::Case c = cases::make_case(number);
      if (c.call.q.view().dtype == DType::f64) continue;  // refused on every device but the CPU
      auto got = run(kernel, c.call, c.wants);
      if (!got) {
        ++refused;
        continue;
      }
      ++taken;
      const Check result = check(c.call.inputs(), got->outputs(), c.call.options());
      expect(result.beyond_bound == 0, kernel, ", case ", number, " ", c.name, ": ", result.beyond_bound,
             " beyond the bound, first ", result.first_miss);
    }
    std::cout << "  " << kernel << ": " << taken << " taken, " << refused << " refused" << std::endl;
  }
}

// Prefill of all rows, and of rows in calls of their own, which see fewer keys but the last.
void expect_bits_in_parts(const std::string& kernel, const Call& whole, const std::string& what) {
  const Results all = *run(kernel, whole, {.log_sum_exp = true});
  std::int64_t first = 0;
  for (const std::int64_t rows : {100, 3, 128, 102}) {
    Call part = whole;
    part.q = whole.q.rows(first, rows);
    part.k = whole.k.rows(0, first + rows), part.v = whole.v.rows(0, first + rows);
    const Results some = *run(kernel, part, {.log_sum_exp = true});
    expect(same_bits(some.out, all.out.rows(first, rows)), what, ": out of rows from ", first);
    expect(same_bits(*some.log_sum_exp, all.log_sum_exp->rows(first, rows)), what,
           ": log-sum-exp of rows from ", first);
    first += rows;
  }
}

// With 130 heads a block does several tiles of rows of the whole, and one of a part. A value that is no
// number lets tiles come again between those that come for the first time.
CLAIM(prefill_in_parts_has_the_bits_of_prefill_and_so_has_general) {
  for (const std::int64_t dim : {32, 64, 80, 96, 128, 192, 256})
    for (const std::int64_t heads : {2, 130}) {
      Call whole{.q = Tensor::random({1, heads, 333, dim}, 5, 4, DType::bf16),
                 .k = Tensor::random({1, 1, 333, dim}, 6, 2, DType::bf16),
                 .v = Tensor::random({1, 1, 333, dim}, 7, 2, DType::bf16)};
      whole.causal = Causal{Align::ends};
      const std::string what = std::to_string(heads) + " heads of " + std::to_string(dim);
      expect_bits_in_parts(prefill, whole, what);
      Call poisoned = whole;
      poisoned.v.set(0, 0, 150, 5, nan);
      expect_bits_in_parts(prefill, poisoned, what + ", poisoned");
      if (heads == 2) continue;  // parts of few rows have a kernel of their own there
      expect_bits_in_parts(general, whole, what + ", general");
      expect_bits_in_parts(general, poisoned, what + ", poisoned, general");
    }
}

CLAIM(narrow_heads_have_the_bits_of_heads_filled_up_with_zeros) {
  struct Widths {
    std::int64_t dim, value_dim, wide, wide_values;
  };
  for (const std::string& kernel : {prefill, decode})
    for (const Widths& w : {Widths{8, 8, 32, 32},
                            {40, 40, 64, 64},
                            {80, 80, 96, 96},
                            {72, 24, 96, 96},
                            {104, 104, 128, 128},
                            {24, 112, 128, 128},
                            {136, 40, 192, 128},
                            {160, 160, 192, 192},
                            {200, 248, 256, 256}}) {
      Call call{.q = Tensor::random({1, 2, kernel == prefill ? 300 : 3, w.dim}, 91, 4, DType::bf16),
                .k = Tensor::random({1, 1, 700, w.dim}, 92, 2, DType::bf16),
                .v = Tensor::random({1, 1, 700, w.value_dim}, 93, 2, DType::bf16)};
      call.causal = Causal{Align::ends}, call.scale = 0.125f;
      Call wide = call;
      wide.q = widened(call.q, w.wide), wide.k = widened(call.k, w.wide);
      wide.v = widened(call.v, w.wide_values);
      const auto narrow_out = run(kernel, call, {}), wide_out = run(kernel, wide, {});
      expect(narrow_out && wide_out, kernel, " refuses ", w.dim, " and ", w.value_dim);
      if (narrow_out && wide_out)
        expect(same_bits(widened(narrow_out->out, w.wide_values), wide_out->out), kernel, ", ", w.dim,
               " and ", w.value_dim, " dimensions");
    }
}

// A sequence alone, and as one of a padded batch whose padding is NaN.
CLAIM(batch_mates_and_padding_change_no_bit_of_general_or_others) {
  const std::pair<std::string, std::int64_t> kernels[]{{prefill, 150}, {decode, 2},  {general, 150},
                                                       {general, 300}, {general, 2}, {general, 20}};
  for (const auto& [kernel, queries] : kernels)
    for (const std::int64_t dim : {40, 64, 96, 128, 256}) {
      Call batch{.q = Tensor::random({3, 4, queries, dim}, 15, 4, DType::bf16),
                 .k = Tensor::random({3, 2, 1500, dim}, 16, 2, DType::bf16),
                 .v = Tensor::random({3, 2, 1500, dim}, 17, 2, DType::bf16)};
      batch.key_lengths = {{700, 1500, 5}};
      for (Tensor* x : {&batch.k, &batch.v})
        cases::for_each(x->shape(), [&](auto b, auto h, auto j, auto d) {
          if (j >= (*batch.key_lengths)[static_cast<std::size_t>(b)]) x->set(b, h, j, d, nan);
        });
      const auto all = run(kernel, batch, {});
      expect(all.has_value(), kernel, " refuses");
      if (!all) continue;
      for (std::int64_t b = 0; b < 3; ++b) {
        const std::int64_t keys = (*batch.key_lengths)[static_cast<std::size_t>(b)];
        const Call alone{
            .q = entry(batch.q, b, queries), .k = entry(batch.k, b, keys), .v = entry(batch.v, b, keys)};
        for (const Cut cut : {Cut::apart, Cut::together})
          expect(same_bits(run(kernel, alone, {}, cut)->out, entry(all->out, b, queries)), kernel,
                 ", sequence ", b, ", dim ", dim, cut == Cut::apart ? ", apart" : ", together");
      }
    }
}

CLAIM(the_same_call_gives_the_same_bits_again_general_too) {
  const Call call{.q = Tensor::random({2, 8, 300, 128}, 25, 4, DType::bf16),
                  .k = Tensor::random({2, 2, 900, 128}, 26, 2, DType::bf16),
                  .v = Tensor::random({2, 2, 900, 128}, 27, 2, DType::bf16)};
  Call one = call;
  one.q = call.q.rows(0, 1);
  const Results first = *run(prefill, call, {}), first_one = *run(decode, one, {}, Cut::apart);
  const Results general_first = *run(general, call, {}), general_one = *run(general, one, {}, Cut::apart);
  for (int n = 0; n < 100; ++n) {
    expect(same_bits(run(general, call, {})->out, general_first.out), "general, time ", n);
    expect(same_bits(run(general, one, {}, Cut::apart)->out, general_one.out), "general, one row, time ", n);
    expect(same_bits(run(prefill, call, {})->out, first.out), "prefill, time ", n);
    expect(same_bits(run(decode, one, {}, Cut::apart)->out, first_one.out), "decode, time ", n);
  }
}

Tensor Call::* const operands[]{&Call::q, &Call::k, &Call::v};

CLAIM(strides_change_no_bit_of_the_matrix_units_nor_of_general) {
  for (const std::string& kernel : of_device({prefill, general})) {
    Call call{.q = Tensor::random({2, 4, 200, 128}, 35, 4, DType::f16),
              .k = Tensor::random({2, 2, 300, 128}, 36, 2, DType::f16),
              .v = Tensor::random({2, 2, 300, 128}, 37, 2, DType::f16)};
    const auto plain = run(kernel, call, {});
    expect(plain.has_value(), kernel, " refuses");
    if (!plain) continue;
    for (Tensor Call::* x : operands) {
      const Shape s = (call.*x).shape();
      call.*x = (call.*x).laid_out({s.length * s.heads * 136, 136, s.heads * 136, 1});
    }
    const auto turned = run(kernel, call, {});
    expect(turned.has_value(), kernel, " refuses heads inside the length");
    if (turned) expect(same_bits(turned->out, plain->out), kernel, ", heads inside the length");
    if (kernel != general) continue;
    for (Tensor Call::* x : operands) {
      const Shape s = (call.*x).shape();
      call.*x = (call.*x).laid_out({s.length * s.heads * 271, 271, s.heads * 271, 2});
    }
    expect(same_bits(run(general, call, {})->out, plain->out), "general, every second");
  }
}

// NaN and infinities reach the rows that see them and no others; the others keep what they had.
CLAIM(poison_reaches_only_the_rows_that_see_it_general_and_others) {
  const std::pair<std::string, std::int64_t> kernels[]{
      {prefill, 200}, {decode, 4}, {general, 200}, {general, 30}, {general, 4}};
  for (const auto& [kernel, queries] : kernels) {
    Call call{.q = Tensor::random({1, 2, queries, 64}, 45, 4, DType::bf16),
              .k = Tensor::random({1, 1, 200, 64}, 46, 2, DType::bf16),
              .v = Tensor::random({1, 1, 200, 64}, 47, 2, DType::bf16)};
    call.causal = Causal{Align::ends};
    call.v.set(0, 0, 198, 3, nan), call.k.set(0, 0, 199, 5, nan), call.v.set(0, 0, 199, 7, HUGE_VALF);
    expect_right(kernel, call, {.log_sum_exp = true}, "poison");
  }
}

// A value that a row does not see changes none of its bits, whatever it is: neither where the rows beside it
// see it, nor where nobody does. Causal hides what comes after a row, Window what lies before it.
CLAIM(values_that_a_row_does_not_see_change_none_of_its_bits_general_too) {
  for (const std::int64_t dim : {64, 72, 128, 192, 256})
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const bool has_window : {false, true}) {
        Call call{.q = Tensor::random({1, 2, 700, dim}, 81, 4, dtype),
                  .k = Tensor::random({1, 1, 700, dim}, 82, 2, dtype),
                  .v = Tensor::random({1, 1, 700, dim}, 83, 2, dtype)};
        call.causal = Causal{Align::ends};
        constexpr std::int64_t left = 90;
        if (has_window) call.window = Window{left, 0, Align::ends};
        call.sink = Tensor::random({1, 2, 1, 1}, 84, 4);
        for (const std::string& kernel : of_device({prefill, general})) {
          const auto clean = run(kernel, call, {.log_sum_exp = true});
          for (const std::int64_t j : {3, 100, 130, 319, 451, 699})
            for (const float poison : {nan, HUGE_VALF}) {
              Call poisoned = call;
              poisoned.v.set(0, 0, j, 5, poison), poisoned.v.set(0, 0, j, dim - 1, poison);
              const auto got = run(kernel, poisoned, {.log_sum_exp = true});
              expect(clean && got, kernel, " refuses dim ", dim);
              if (!clean || !got) continue;
              expect(same_bits(*got->log_sum_exp, *clean->log_sum_exp), kernel, ": log-sum-exp, dim ", dim,
                     ", value ", j);
              const auto sees = [&](std::int64_t i) { return i >= j && (!has_window || i <= j + left); };
              std::int64_t differ = 0;
              cases::for_each(call.q.shape(), [&](auto b, auto h, auto i, auto d) {
                const bool is_reached = sees(i) && (d == 5 || d == dim - 1);
                const float wanted = clean->out.at(b, h, i, d), found = got->out.at(b, h, i, d);
                differ += is_reached ? std::isfinite(found) : found != wanted;
              });
              expect(differ == 0, kernel, ": ", differ, " numbers, dim ", dim, ", value ", j, ", window ",
                     has_window);
            }
        }
      }
}

// 32 rows of a KV head have a kernel of their own, whose pairs of warps meet on their way through the keys:
// as many times as there are tiles for them, which differs where the last unit of keys is not whole.
CLAIM(many_rows_of_a_kv_head_have_one_answer_however_they_are_cut) {
  for (const std::int64_t dim : {32, 64, 80, 128})
    for (const std::int64_t keys : {1024 + 41, 2048 + 1000}) {
      const Call call{.q = Tensor::random({1, 32, keys % 2 == 0 ? 2 : 1, dim}, 55, 3, DType::bf16),
                      .k = Tensor::random({1, 1, keys, dim}, 56, 2, DType::bf16),
                      .v = Tensor::random({1, 1, keys, dim}, 57, 2, DType::bf16)};
      expect_right(decode, call, {.log_sum_exp = true}, "32 rows, or 64");
      const Results whole = *run(decode, call, {}, Cut::together);
      expect(same_bits(run(decode, call, {}, Cut::apart)->out, whole.out), "apart, dim ", dim, ", keys ",
             keys);
      KvCache cache({.batch = 1,
                     .kv_heads = 1,
                     .capacity = keys,
                     .dim = dim,
                     .type = CacheType::bf16,
                     .page_size = 64});
      cache.append(call.k.view(), call.v.view());
      for (const Cut cut : {Cut::apart, Cut::together}) {
        Tensor out(call.q.shape(), DType::bf16);
        out.fill_bytes(0xff);
        expect(run(decode,
                   make_problem({.q = call.q.view(), .cache = &cache}, {.out = out.mutable_view()}, {}), cut),
               "refused");
        expect(same_bits(out, whole.out), "pages, dim ", dim, ", keys ", keys, ", cut ",
               static_cast<int>(cut));
      }
    }
}

// So many sequences that each is two blocks' work, if there are two in it: lengths around the edges of tiles,
// chunks and halves, over padding that is NaN, and a window that leaves the first half out. One of the calls
// does not ask for log-sum-exps.
CLAIM(sequences_of_two_blocks_have_the_bits_of_one_block) {
  const std::vector<std::int32_t> lengths{3001, 2048, 2049, 1024, 1025, 3072, 2900, 16, 0, 3090, 2047};
  constexpr std::int64_t batch = 55, keys = 3100, dim = 64;
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const bool has_window : {false, true}) {
      Call all{.q = Tensor::random({batch, 32, 1, dim}, 65, 3, dtype),
               .k = Tensor::random({batch, 1, keys, dim}, 66, 2, dtype),
               .v = Tensor::random({batch, 1, keys, dim}, 67, 2, dtype)};
      all.key_lengths.emplace();
      for (std::size_t b = 0; b < batch; ++b) all.key_lengths->push_back(lengths[b % lengths.size()]);
      if (has_window) all.window = Window{900, 0, Align::ends};
      for (Tensor* x : {&all.k, &all.v})
        for (std::int64_t b = 0; b < batch; ++b)
          for (std::int64_t j = (*all.key_lengths)[static_cast<std::size_t>(b)]; j < keys; ++j)
            for (std::int64_t d = 0; d < dim; ++d) x->set(b, 0, j, d, nan);
      const auto together = run(decode, all, {.log_sum_exp = true}, Cut::together),
                 planned = run(decode, all, {.log_sum_exp = true}), apart = run(decode, all, {}, Cut::apart);
      expect(together && planned && apart, "refused");
      if (!together || !planned || !apart) return;
      expect(same_bits(planned->out, together->out), "by the plan, window ", has_window);
      expect(same_bits(*planned->log_sum_exp, *together->log_sum_exp), "log-sum-exp, window ", has_window);
      expect(same_bits(apart->out, together->out), "apart, window ", has_window);
    }
}

struct CachedDecode {
  CacheType type;
  std::int64_t page_size, tokens, queries, dim;
};

CLAIM(decode_over_pages_has_the_bits_of_decode_over_rows) {
  for (const CachedDecode& t : {CachedDecode{CacheType::bf16, 16, 70, 1, 64},
                                {CacheType::bf16, 64, 1100, 1, 128},
                                {CacheType::f16, 256, 3000, 2, 128},
                                {CacheType::bf16, 32, 517, 8, 64},
                                {CacheType::f16, 32, 900, 2, 32},
                                {CacheType::bf16, 64, 700, 1, 80},
                                {CacheType::bf16, 64, 700, 4, 72},
                                {CacheType::bf16, 16, 1300, 1, 96},
                                {CacheType::bf16, 128, 2100, 2, 192},
                                {CacheType::f16, 64, 1500, 1, 256}}) {
    const DType dtype = t.type == CacheType::bf16 ? DType::bf16 : DType::f16;
    KvCache cache({.batch = 2,
                   .kv_heads = 2,
                   .capacity = t.tokens,
                   .dim = t.dim,
                   .type = t.type,
                   .page_size = t.page_size});
    const Tensor k = Tensor::random({2, 2, t.tokens, t.dim}, 51, 2, dtype),
                 v = Tensor::random({2, 2, t.tokens, t.dim}, 52, 2, dtype);
    cache.append(k.view(), v.view());
    const Tensor q = Tensor::random({2, 8, t.queries, t.dim}, 53, 3, dtype);
    const auto attend = [&](const Inputs& inputs, Cut cut) {
      Tensor out(q.shape(), dtype);
      out.fill_bytes(0xff);
      expect(run(decode, make_problem(inputs, {.out = out.mutable_view()}, {.masks = {Causal{Align::ends}}}),
                 cut),
             "refused");
      return out;
    };
    const Tensor rows = attend({.q = q.view(), .k = k.view(), .v = v.view()}, Cut::by_the_plan);
    for (const Cut cut : {Cut::apart, Cut::together, Cut::by_the_plan}) {
      expect(same_bits(attend({.q = q.view(), .cache = &cache}, cut), rows), "pages of ", t.page_size,
             ", dim ", t.dim, ", tokens ", t.tokens, ", cut ", static_cast<int>(cut));
      expect(same_bits(attend({.q = q.view(), .k = k.view(), .v = v.view()}, cut), rows), "rows, tokens ",
             t.tokens, ", cut ", static_cast<int>(cut));
    }
  }
}

CLAIM(packed_sequences_have_the_bits_of_each_alone_in_general_too) {
  for (const std::string& kernel : of_device({prefill, general}))
    for (const std::int64_t dim : {64, 88, 128, 192, 256}) {
      // The general kernel has another shape for few rows.
      const bool is_general = kernel == general;
      const std::vector<std::int64_t> queries{
          0, 130, is_general ? 230 : 131, is_general ? 230 : 131, 500, is_general ? 599 : 503},
          keys{0, 200, is_general ? 301 : 201, 330, 700, 1000};

      const Tensor q = Tensor::random({1, 4, queries.back(), dim}, 61, 3, DType::bf16),
                   k = Tensor::random({1, 2, 1000, dim}, 62, 2, DType::bf16),
                   v = Tensor::random({1, 2, 1000, dim}, 63, 2, DType::bf16);
      Tensor out(q.shape(), DType::bf16);
      out.fill_bytes(0xff);
      const Options options{.masks = {Causal{Align::ends}}};
      expect(
          run(kernel,
              make_problem(
                  {.q = q.view(), .k = k.view(), .v = v.view(), .query_starts = queries, .key_starts = keys},
                  {.out = out.mutable_view()}, options)),
          "refused");
      for (std::size_t n = 0; n + 1 < queries.size(); ++n) {
        const std::int64_t rows = queries[n + 1] - queries[n];
        if (rows == 0) continue;
        Call alone{.q = q.rows(queries[n], rows),
                   .k = k.rows(keys[n], keys[n + 1] - keys[n]),
                   .v = v.rows(keys[n], keys[n + 1] - keys[n])};
        alone.causal = Causal{Align::ends};
        expect(same_bits(run(kernel, alone, {})->out, out.rows(queries[n], rows)), kernel, ", sequence ", n,
               ", dim ", dim);
      }
    }
}

// Sequences that begin anywhere in a tile; what follows them must not reach them, whatever it is.
CLAIM(packed_decode_has_the_bits_of_each_alone_in_general_too) {
  const std::vector<std::int64_t> queries{0, 1, 2, 4, 5}, keys{0, 1100, 1101, 1450, 3000};
  for (const std::string& kernel : {decode, general})
    for (const std::int64_t heads : {2, 16})
      for (const std::int64_t dim : {64, 80, 128}) {
        if (kernel == general && heads == 16)
          continue;  // sequences of one and of two queries have two shapes
        const Tensor q = Tensor::random({1, heads, 5, dim}, 71, 3, DType::bf16);
        Tensor k = Tensor::random({1, 1, 3000, dim}, 72, 2, DType::bf16),
               v = Tensor::random({1, 1, 3000, dim}, 73, 2, DType::bf16);
        k.set(0, 0, 1450, 1, nan), v.set(0, 0, 1450, 3, nan), v.set(0, 0, 1100, 5, HUGE_VALF);
        Tensor out(q.shape(), DType::bf16);
        out.fill_bytes(0xff);
        const Options options{.masks = {Causal{Align::ends}}};
        const bool is_taken = run(
            kernel,
            make_problem(
                {.q = q.view(), .k = k.view(), .v = v.view(), .query_starts = queries, .key_starts = keys},
                {.out = out.mutable_view()}, options));
        expect(is_taken, "refused");
        if (!is_taken) continue;
        for (std::size_t n = 0; n + 1 < queries.size(); ++n) {
          const std::int64_t rows = queries[n + 1] - queries[n];
          Call alone{.q = q.rows(queries[n], rows),
                     .k = k.rows(keys[n], keys[n + 1] - keys[n]),
                     .v = v.rows(keys[n], keys[n + 1] - keys[n])};
          alone.causal = Causal{Align::ends};
          expect(same_bits(run(kernel, alone, {})->out, out.rows(queries[n], rows)), kernel, ", sequence ", n,
                 ", dim ", dim);
        }
      }
}

}  // namespace
}  // namespace heed::cuda::test
