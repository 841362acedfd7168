// SPDX-License-Identifier: Apache-2.0
// Laws of documents packed in one row (S20), beyond those of every mask: pieces of a call, caches, packed
// sequences, and what is not read.
#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"
#include "heed/cache.hpp"

namespace heed::cases {
namespace {

class DocumentLaws : public Law {};
INSTANTIATE_TEST_SUITE_P(Kernels, DocumentLaws, testing::ValuesIn(plan_and_kernels()), test_name);

constexpr Wants rows{.log_sum_exp = true};

Call packed_row(std::uint64_t seed, std::int64_t length) {
  Dice dice(seed);
  const std::int64_t kv_heads = dice.between(1, 2), heads = kv_heads * dice.between(1, 3), batch = 2;
  const DType dtype = dice.pick<DType>({DType::f32, DType::f32, DType::f16, DType::bf16});
  return {.q = Tensor::random({batch, heads, length, 16}, seed, 4, dtype),
          .k = Tensor::random({batch, kv_heads, length, 16}, seed + 1, 2, dtype),
          .v = Tensor::random({batch, kv_heads, length, 16}, seed + 2, 2, dtype),
          .documents = Documents{.ids = random_ids(dice, dice.one_in(2) ? 1 : batch, length)}};
}

// Of one row for all batch entries, or of each.
std::vector<std::int32_t> first_tokens(const std::vector<std::int32_t>& ids, std::int64_t length,
                                       std::int64_t count) {
  std::vector<std::int32_t> made;
  for (std::int64_t first = 0; first < std::ssize(ids); first += length)
    made.insert(made.end(), ids.begin() + first, ids.begin() + first + count);
  return made;
}

// Rows [first, first + count), over the keys that exist by then.
Call piece(const Call& whole, std::int64_t first, std::int64_t count) {
  Call part = whole;
  part.q = whole.q.rows(first, count);
  part.k = whole.k.rows(0, first + count);
  part.v = whole.v.rows(0, first + count);
  part.causal = Causal{Align::ends};
  if (part.alibi) part.alibi->align = Align::ends;
  part.documents =
      Documents{first_tokens(whole.documents->ids, whole.keys(), first + count), {}, Align::ends};
  return part;
}

TEST_P(DocumentLaws, pieces_of_a_causal_row_give_the_rows_of_the_whole_call) {
  for (std::uint64_t seed : seeds(2000, 2008)) {
    const std::int64_t length = seed % 4 == 0 ? 1100 : 90;
    Call whole = packed_row(seed, length);
    whole.causal = Causal{};
    if (seed % 3 != 0)
      whole.alibi = Slopes{std::vector<float>(static_cast<std::size_t>(whole.heads()), 0.07f)};
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(whole));
    const auto expected = attend(whole, rows);
    if (!expected) continue;  // a kernel for few queries
    for (std::int64_t size : {1, 3, 8, 33, 300})
      for (std::int64_t first = length > 1000 ? length - 2 * size : 0; first < length; first += size) {
        if (first < 0) break;
        const std::int64_t count = std::min(size, length - first);
        const auto got = attend(piece(whole, first, count), rows);
        if (!got) continue;
        ASSERT_TRUE(same_bits(got->out, expected->out.rows(first, count))) << count << " rows from " << first;
        ASSERT_TRUE(same_bits(*got->log_sum_exp, expected->log_sum_exp->rows(first, count)));
      }
  }
}

// Numbers of the tokens of a cache, of sequences of different lengths: a row as long as the longest each.
TEST_P(DocumentLaws, cached_sequences_of_different_lengths_give_the_bits_of_each_alone) {
  for (std::uint64_t seed : seeds(2020, 2030)) {
    Dice dice(seed);
    Call all = packed_row(seed, 300);
    all.causal = Causal{};
    const std::int64_t lengths[] = {300, dice.between(5, 299)}, count = dice.between(1, 5);
    KvCache cache({.batch = 2,
                   .kv_heads = all.k.shape().heads,
                   .capacity = 300,
                   .dim = 16,
                   .type = all.q.dtype() == DType::f32   ? CacheType::f32
                           : all.q.dtype() == DType::f16 ? CacheType::f16
                                                         : CacheType::bf16,
                   .page_size = dice.one_in(2) ? std::optional<std::int64_t>(16) : std::nullopt});
    cache.append(all.k.view(), all.v.view());
    cache.truncate(1, lengths[1]);
    Call call = all;
    call.q = Tensor({2, all.heads(), count, 16}, all.q.dtype());
    for_each(call.q.shape(), [&](auto b, auto h, auto i, auto d) {
      call.q.set(b, h, i, d, all.q.at(b, h, lengths[b] - count + i, d));
    });
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + describe(call));
    Results got(call, rows);
    const auto whole = attend(all, rows);
    try {
      attention({.q = call.q.view(), .cache = &cache}, got.outputs(), call.options(GetParam()));
    } catch (const Error& error) {
      if (error.code == Error::unsupported && !GetParam().empty()) continue;
      throw;
    }
    if (!whole) continue;
    for_each(got.out.shape(), [&](auto b, auto h, auto i, auto d) {
      ASSERT_EQ(got.out.bits(b, h, i, d), whole->out.bits(b, h, lengths[b] - count + i, d));
    });
  }
}

TEST_P(DocumentLaws, packed_sequences_have_a_row_of_numbers_each) {
  const std::vector<std::int64_t> starts{0, 40, 41, 110};
  Dice dice(2040);
  const std::vector<std::int32_t> ids = random_ids(dice, 3, 69);
  const Call all{.q = Tensor::random({1, 2, 110, 16}, 1),
                 .k = Tensor::random({1, 2, 110, 16}, 2),
                 .v = Tensor::random({1, 2, 110, 16}, 3)};
  Results got(all, rows);
  const Options options{.masks = {Causal{}, Document{ids}}, .kernel = GetParam()};
  try {
    attention({.q = all.q.view(),
               .k = all.k.view(),
               .v = all.v.view(),
               .query_starts = starts,
               .key_starts = starts},
              got.outputs(), options);
  } catch (const Error& error) {
    if (error.code == Error::unsupported && !GetParam().empty()) return;
    throw;
  }
  for (std::size_t n = 0; n < 3; ++n) {
    const std::int64_t first = starts[n], count = starts[n + 1] - first;
    const auto row = ids.begin() + 69 * static_cast<std::ptrdiff_t>(n);
    const Call alone{.q = all.q.rows(first, count),
                     .k = all.k.rows(first, count),
                     .v = all.v.rows(first, count),
                     .causal = Causal{},
                     .documents = Documents{{row, row + count}}};
    const auto expected = attend(alone, rows);
    if (!expected) continue;
    EXPECT_TRUE(same_bits(got.out.rows(first, count), expected->out)) << "sequence " << n;
  }
}

// Whole pages of keys that may be written and then not even read.
class Forbidden {
 public:
  explicit Forbidden(std::int64_t floats) : bytes_(static_cast<std::size_t>(floats) * sizeof(float)) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Forbidden() { munmap(memory_, bytes_); }
  Forbidden(const Forbidden&) = delete;
  Forbidden& operator=(const Forbidden&) = delete;

  float* data() const { return static_cast<float*>(memory_); }
  void forbid(std::int64_t first, std::int64_t floats) const {
    if (mprotect(data() + first, static_cast<std::size_t>(floats) * sizeof(float), PROT_NONE) != 0)
      throw std::bad_alloc();
  }

 private:
  std::size_t bytes_;
  void* memory_;
};

// 256 keys of 64 floats are 64 KB: whole pages, whatever their size, and a whole block of keys.
TEST_P(DocumentLaws, blocks_of_keys_that_no_query_is_of_are_never_read) {
  if (GetParam() == "reference") return;  // it skips nothing
  constexpr std::int64_t keys = 4096, dim = 64, block = 256;
  const Shape shape{.length = keys, .dim = dim};
  const Forbidden k(keys * dim), v(keys * dim);
  std::vector<std::int32_t> ids(keys);
  for (std::int64_t j = 0; j < keys; ++j) {
    ids[static_cast<std::size_t>(j)] = j < 5 * block ? 4 : j < 7 * block ? 6 : 9;  // the queries are of 6
    for (std::int64_t d = 0; d < dim; ++d) {
      k.data()[j * dim + d] = uniform(1, static_cast<std::uint64_t>(j * dim + d));
      v.data()[j * dim + d] = uniform(2, static_cast<std::uint64_t>(j * dim + d));
    }
  }
  for (const std::int64_t queries : {2, 100}) {
    const Tensor q = Tensor::random({1, 1, queries, dim}, 3);
    const std::vector<std::int32_t> query_ids(static_cast<std::size_t>(queries), 6);
    Tensor expected({1, 1, queries, dim}), got({1, 1, queries, dim});
    const Options options{.masks = {Document{.ids = ids, .query_ids = query_ids}}, .kernel = GetParam()};
    const auto attend_into = [&](Tensor& out) {
      attention({.q = q.view(), .k = {k.data(), shape}, .v = {v.data(), shape}}, {.out = out.mutable_view()},
                options);
    };
    try {
      attend_into(expected);
    } catch (const Error& error) {
      if (error.code == Error::unsupported && !GetParam().empty()) continue;
      throw;
    }
    for (const Forbidden* x : {&k, &v}) {
      x->forbid(0, 5 * block * dim);
      x->forbid(7 * block * dim, (keys - 7 * block) * dim);
    }
    attend_into(got);
    EXPECT_TRUE(same_bits(got, expected));
    for (const Forbidden* x : {&k, &v})
      ASSERT_EQ(mprotect(x->data(), keys * dim * sizeof(float), PROT_READ | PROT_WRITE), 0);
  }
}

}  // namespace
}  // namespace heed::cases
