// SPDX-License-Identifier: Apache-2.0
// The exact kernel has the bits of the CPU's kernels (O2): the digests of tests/digests, and whatever the CPU
// says to problems of every kind.
#include <cmath>
#include <fstream>
#include <map>

#include "cases/extremes.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "claims.hpp"
#include "digests/digest.hpp"
#include "digests/problems.hpp"
#include "heed/cache.hpp"
#include "kernels.hpp"

namespace heed::cuda::test {
namespace {

using cases::Results;
using cases::Tensor;
using cases::Wants;
using claims::expect;
using digests::digest;

const std::string exact = "cuda.exact", cpu = "cpu.prefill.scalar";

void expect_same(const Tensor& found, const Tensor& wanted, const std::string& what) {
  std::int64_t differ = 0, total = 0;
  std::ostringstream first;
  cases::for_each(found.shape(), [&](auto b, auto h, auto i, auto d) {
    const float x = found.at(b, h, i, d), y = wanted.at(b, h, i, d);
    ++total;
    if (found.bits(b, h, i, d) == wanted.bits(b, h, i, d) || (x != x && y != y)) return;
    if (differ++ == 0)
      first << "(" << b << ", " << h << ", " << i << ", " << d << ") is " << x << ", not " << y;
  });
  expect(differ == 0, what, ": ", differ, " of ", total, " differ, first ", first.str());
}

void expect_same(const Results& found, const Results& wanted, const std::string& what) {
  expect_same(found.out, wanted.out, what + ", out");
  if (found.weights) expect_same(*found.weights, *wanted.weights, what + ", weights");
  if (found.log_sum_exp) expect_same(*found.log_sum_exp, *wanted.log_sum_exp, what + ", log_sum_exp");
  if (found.scores) expect_same(*found.scores, *wanted.scores, what + ", scores");
}

CLAIM(every_digest_of_the_file_comes_out) {
  std::map<std::string, std::string> golden;
  std::ifstream file(HEED_GOLDEN);
  for (std::string name, output, hex; file >> name >> output >> hex;) golden[name + " " + output] = hex;
  int compared = 0;
  for (const digests::Problem& p : digests::problems())
    for (const Cut cut : {Cut::apart, Cut::together}) {
      const auto got = run(exact, p.call, {.weights = p.weights, .log_sum_exp = true}, cut);
      expect(got.has_value(), p.name, " is refused");
      if (!got) continue;
      expect(digest(got->out) == golden[p.name + " out"], p.name, " out");
      expect(digest(*got->log_sum_exp) == golden[p.name + " log_sum_exp"], p.name, " log_sum_exp");
      if (p.weights) expect(digest(*got->weights) == golden[p.name + " weights"], p.name, " weights");
      ++compared;
    }
  expect(compared > 100, "only ", compared, " problems");
}

CLAIM(random_problems_of_every_type_have_the_bits_of_the_cpu) {
  for (const std::uint64_t seed : cases::seeds(1, 120)) {
    const cases::Call call = cases::random_call(seed, {.dropout = true});
    Wants wants{.weights = seed % 2 == 0, .log_sum_exp = seed % 3 != 0};
    if (seed % 4 == 1)
      wants.scores = seed % 8 == 1 ? Stage::raw : seed % 16 == 5 ? Stage::softcapped : Stage::biased;
    const auto got = run(exact, call, wants);
    const Results wanted = cases::run(call, wants, cpu);
    expect(got.has_value(), "seed ", seed, " is refused");
    if (got) expect_same(*got, wanted, "seed " + std::to_string(seed) + " (" + cases::describe(call) + ")");
  }
}

// Several chunks of keys, rows of which some are not there, ranges that begin and end anywhere, and numbers
// that f32 cannot finish. Where a GPU is emulated, of one KV head, and a few more than two chunks.
struct LongKeys {
  const std::int64_t heads = is_emulated() ? 1 : 2, count = is_emulated() ? 2070 : 2500;
};

CLAIM(long_plain_problems_have_the_bits_of_the_cpu) {
  const LongKeys keys;
  for (const std::int64_t dim : {64, 40})
    for (int kind = 0; kind < 7; ++kind) {
      cases::Call call{.q = Tensor::random({2, 2 * keys.heads, 70, dim}, 81, 3),
                       .k = Tensor::random({2, keys.heads, keys.count, dim}, 82, 2),
                       .v = Tensor::random({2, keys.heads, keys.count, 104 - dim}, 83, 2)};
      if (kind == 1) call.causal = Causal{Align::ends};
      if (kind == 2) call.window = Window{900, 40, Align::ends};
      if (kind == 3) call.key_lengths = {{1300, 130}};
      if (kind == 4) call.sink = Tensor::random({1, 2 * keys.heads, 1, 1}, 84, 4);
      if (kind == 5) call.v.set(0, keys.heads - 1, 1700, 3, HUGE_VALF), call.causal = Causal{Align::ends};
      if (kind == 6) call.k.set(1, 0, 2, 1, HUGE_VALF), call.key_lengths = {{0, 1}};
      const Results wanted = cases::run(call, {.log_sum_exp = true}, cpu);
      for (const Cut cut : {Cut::by_the_plan, Cut::together})
        expect_same(*run(exact, call, {.log_sum_exp = true}, cut), wanted,
                    "kind " + std::to_string(kind) + ", dim " + std::to_string(dim));
    }
}

// As above, with one token or two for one, four or eight heads that share their keys.
CLAIM(few_rows_have_the_bits_of_the_cpu) {
  const LongKeys keys;
  int number = 0;
  for (const std::int64_t dim : {128, 20})
    for (const std::int64_t group : {1, 4, 8})
      for (int kind = 0; kind < 7; ++kind) {
        const std::int64_t tokens = group < 8 ? 1 + number++ % 2 : 1, heads = keys.heads * group;
        cases::Call call{.q = Tensor::random({2, heads, tokens, dim}, 91, 3),
                         .k = Tensor::random({2, keys.heads, keys.count, dim}, 92, 2),
                         .v = Tensor::random({2, keys.heads, keys.count, 148 - dim}, 93, 2)};
        if (kind == 1) call.causal = Causal{Align::ends};
        if (kind == 2) call.window = Window{900, 40, Align::ends};
        if (kind == 3) call.key_lengths = {{1300, 130}};
        if (kind == 4) call.sink = Tensor::random({1, heads, 1, 1}, 94, 4);
        if (kind == 5) call.v.set(0, keys.heads - 1, 1700, 3, HUGE_VALF), call.causal = Causal{Align::ends};
        if (kind == 6) call.k.set(1, 0, 2, 1, HUGE_VALF), call.key_lengths = {{0, 1}};
        const Results wanted = cases::run(call, {.log_sum_exp = true}, cpu);
        for (const Cut cut : {Cut::by_the_plan, Cut::together})
          expect_same(*run(exact, call, {.log_sum_exp = true}, cut), wanted,
                      "kind " + std::to_string(kind) + ", dim " + std::to_string(dim) + ", group " +
                          std::to_string(group));
      }
}

CLAIM(numbers_at_the_ends_of_the_range_have_the_results_of_the_cpu) {
  for (const cases::Extreme& extreme : cases::extremes(DType::f32, 140)) {
    const Wants wants{.weights = true, .log_sum_exp = true};
    const auto got = run(exact, extreme.call, wants);
    if (got) expect_same(*got, cases::run(extreme.call, wants), extreme.name);
  }
}

CLAIM(sixteen_bit_problems_have_the_bits_of_the_cpus_f32_arithmetic) {
  int number = 0;
  for (const digests::Problem& p : digests::problems())
    for (const DType dtype : {DType::f16, DType::bf16}) {
      if (++number % 3 != 0) continue;
      const cases::Call call = digests::in_dtype(p.call, dtype);
      const auto got = run(exact, call, {.log_sum_exp = true});
      if (got) expect_same(*got, cases::run(call, {.log_sum_exp = true}, cpu), p.name + " in 16 bits");
    }
}

// Strides with gaps that hold NaN, and rows that do not begin on 16 bytes.
CLAIM(strides_change_no_bit) {
  for (const std::int64_t dim : {8, 64, 72}) {
    cases::Call call{.q = Tensor::random({2, 4, 21, dim}, 1, 4),
                     .k = Tensor::random({2, 2, 300, dim}, 2, 2),
                     .v = Tensor::random({2, 2, 300, dim}, 3, 2)};
    call.causal = Causal{Align::ends};
    const auto plain = run(exact, call, {.log_sum_exp = true});
    for (Tensor cases::Call::* x : {&cases::Call::q, &cases::Call::k, &cases::Call::v}) {
      const Shape s = (call.*x).shape();
      call.*x = (call.*x).laid_out({s.length * s.heads * (dim + 4), dim + 4, s.heads * (dim + 4), 1});
    }
    expect_same(*run(exact, call, {.log_sum_exp = true}), *plain, "fours apart");
    for (Tensor cases::Call::* x : {&cases::Call::k, &cases::Call::v}) {
      const Shape s = (call.*x).shape();
      call.*x =
          (call.*x).laid_out({s.length * s.heads * (2 * dim + 1), 2 * dim + 1, s.heads * (2 * dim + 1), 2});
    }
    expect_same(*run(exact, call, {.log_sum_exp = true}), *plain, "every second");
  }
}

struct CachedCase {
  CacheType type;
  std::int64_t page_size, tokens, queries, dim, value_dim;
};

CLAIM(caches_of_every_type_have_the_bits_of_the_cpu) {
  for (const CachedCase& t : {CachedCase{CacheType::f32, 16, 70, 3, 16, 16},
                              {CacheType::f32, 64, 1100, 1, 24, 40},
                              {CacheType::f32, 32, 2070, 1, 128, 36},
                              {CacheType::f32, 4096, 2070, 2, 36, 128},
                              {CacheType::f32, 16, 130, 4, 20, 20},
                              {CacheType::bf16, 32, 300, 2, 64, 64},
                              {CacheType::f16, 16, 90, 5, 33, 17},
                              {CacheType::int8, 16, 280, 2, 32, 32},
                              {CacheType::int8, 128, 1300, 1, 80, 20}}) {
    KvCache cache({.batch = 2,
                   .kv_heads = 2,
                   .capacity = t.tokens,
                   .dim = t.dim,
                   .value_dim = t.value_dim,
                   .type = t.type,
                   .page_size = t.page_size});
    const Tensor k = Tensor::random({2, 2, t.tokens, t.dim}, 11, 2),
                 v = Tensor::random({2, 2, t.tokens, t.value_dim}, 12, 2);
    const std::int64_t counts[] = {t.tokens, t.tokens - 7};
    cache.append(k.view(), v.view(), counts);
    const Tensor q = Tensor::random({2, 4, t.queries, t.dim}, 13, 3);
    const auto attend = [&](const auto& with) {
      Tensor out({2, 4, t.queries, t.value_dim}), lse({2, 4, t.queries, 1});
      out.fill_bytes(0xff), lse.fill_bytes(0xff);
      with({.q = q.view(), .cache = &cache}, {.out = out.mutable_view(), .log_sum_exp = lse.mutable_view()},
           Options{.masks = {Causal{}}});
      return std::pair(out, lse);
    };
    const auto wanted = attend([](const Inputs& in, const Outputs& out, Options options) {
      options.kernel = cpu;
      attention(in, out, options);
    });
    const auto found = attend([](const Inputs& in, const Outputs& out, const Options& options) {
      expect(run(exact, make_problem(in, out, options)), "refused");
    });
    const std::string what = "pages of " + std::to_string(t.page_size) + ", dim " + std::to_string(t.dim);
    expect_same(found.first, wanted.first, what + ", out");
    expect_same(found.second, wanted.second, what + ", log_sum_exp");
  }
}

CLAIM(packed_and_padded_sequences_have_the_bits_of_the_cpu) {
  const std::vector<std::int64_t> queries{0, 3, 3, 70, 71}, keys{0, 9, 20, 300, 301};
  const Tensor q = Tensor::random({1, 4, 71, 32}, 21, 3), k = Tensor::random({1, 2, 301, 32}, 22, 2),
               v = Tensor::random({1, 2, 301, 24}, 23, 2);
  const Inputs packed{
      .q = q.view(), .k = k.view(), .v = v.view(), .query_starts = queries, .key_starts = keys};
  const auto attend = [&](const auto& with) {
    Tensor out({1, 4, 71, 24});
    out.fill_bytes(0xff);
    with(packed, {.out = out.mutable_view()}, Options{.masks = {Causal{Align::ends}}});
    return out;
  };
  const Tensor wanted = attend([](const Inputs& in, const Outputs& out, Options options) {
    options.kernel = cpu;
    attention(in, out, options);
  });
  expect_same(attend([](const Inputs& in, const Outputs& out, const Options& options) {
                run(exact, make_problem(in, out, options));
              }),
              wanted, "packed");
  // Rows beyond a sequence's queries are not written.
  const Tensor padded_q = Tensor::random({3, 2, 10, 16}, 24, 3),
               padded_k = Tensor::random({3, 1, 40, 16}, 25, 2);
  const std::vector<std::int64_t> counts{10, 0, 4};
  Tensor out(padded_q.shape());
  out.fill_bytes(0xff);
  run(exact,
      make_problem({.q = padded_q.view(), .k = padded_k.view(), .v = padded_k.view(), .query_counts = counts},
                   {.out = out.mutable_view()}, {}));
  cases::for_each(out.shape(), [&](auto b, auto h, auto i, auto d) {
    const bool is_written = out.bits(b, h, i, d) != 0xffffffffu;
    expect(is_written == (i < counts[static_cast<std::size_t>(b)]), "row ", i, " of ", b,
           " written: ", is_written);
  });
}

}  // namespace
}  // namespace heed::cuda::test
