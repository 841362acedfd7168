// SPDX-License-Identifier: Apache-2.0
// A block of keys and values that tasks share is packed by one of them, and read by nobody before it is.
#define HEED_THIS_TARGET shared_blocks_test
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "cpu/isa/scalar.hpp"
#include "cpu/prefill/prefill.hpp"
#include "cpu/tile/operands.hpp"
#include "threads/pool.hpp"

namespace heed::cpu::shared_blocks_test {
namespace {

using Packed = PackedF32<Scalar>;
using Block = SharedBlock<Packed>;

struct Memory {
  explicit Memory(std::int64_t floats) : floats_(static_cast<std::size_t>(floats)) {}
  float* begin() { return floats_.data(); }
  std::vector<float> floats_;
};

class SharedBlocks : public testing::Test {
 protected:
  static constexpr OperandExtents extents{6, 5, 1, block_keys, block_keys};

  static Packed made_in(float* from) {
    Cutter memory{from};
    return {extents, memory};
  }
  static std::int64_t own_floats() {
    Cutter nothing{nullptr};
    const Packed measured(extents, nothing);
    return nothing.floats;
  }

  Memory own{own_floats()}, shared{Block::floats(made_in(nullptr))};
  Packed operands = made_in(own.begin());
  Block& block = *reinterpret_cast<Block*>(shared.begin());
};

TEST_F(SharedBlocks, one_task_begins_each) {
  EXPECT_TRUE(block.begin());
  EXPECT_FALSE(block.begin()) << "while it is packed";
  block.pack_with(operands, 8, [] { return false; });
  EXPECT_FALSE(block.begin()) << "when it is packed";
}

TEST_F(SharedBlocks, nobody_takes_one_that_is_being_packed) {
  ASSERT_TRUE(block.begin());
  block.pack_with(operands, 8, [&] {
    EXPECT_FALSE(block.is_done_soon());
    return false;
  });
  EXPECT_TRUE(block.is_done_soon());
}

TEST_F(SharedBlocks, others_find_what_was_packed_and_what_is_known_of_it) {
  ASSERT_TRUE(block.begin());
  block.pack_with(operands, 8, [&] {
    operands.k[3] = 7, operands.v[4] = 9, operands.key_known.squares = 49;
    return true;
  });
  Memory others_own{own_floats()};
  Packed other = made_in(others_own.begin());
  EXPECT_TRUE(block.use_in(other, 8)) << "there are values that are no numbers";
  EXPECT_EQ(other.k[3], 7);
  EXPECT_EQ(other.v[4], 9);
  EXPECT_EQ(other.key_known.squares, 49);
  EXPECT_EQ(own.floats_, others_own.floats_) << "nothing was written to a task's own memory";
}

// 40 queries over 300 keys of one head; every query sees them up to its own place from the end.
class SharedKeys : public testing::Test {
 protected:
  SharedKeys() {
    std::uint32_t state = 1;
    for (std::vector<float>* x : {&q, &k, &v})
      for (float& y : *x)
        y = static_cast<float>((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-23f - 1.0f;
    sequence.queries = queries, sequence.keys = sequence.key_count = keys;
    sequence.first_offset = -(queries + keys), sequence.end_offset = keys - queries + 1;
    call.batch = call.heads = call.kv_heads = 1;
    call.queries = queries, call.keys = keys, call.dim = call.value_dim = dim;
    call.q = {q.data(), {0, 0, dim, 1}}, call.k = {k.data(), {0, 0, dim, 1}},
    call.v = {v.data(), {0, 0, dim, 1}};
    call.sequences = &sequence;
    call.needs_repair = &needs_repair;
    kept.resize(static_cast<std::size_t>(2 * Prefill<Packed>::block_floats(call)));
  }

  std::vector<float> attend(std::int64_t first, std::int64_t count) {
    std::vector<float> out(static_cast<std::size_t>(queries * dim));
    call.out = {out.data(), {0, 0, dim, 1}};
    run(first, count);
    return out;
  }

  void run(std::int64_t first, std::int64_t count) const {
    std::vector<float> scratch(static_cast<std::size_t>(Prefill<Packed>::scratch_floats(call, count)));
    Prefill<Packed>(call, {0, 0, first, count}, scratch.data()).run();
  }

  void share() { call.blocks = {kept.data(), 1, 2, Prefill<Packed>::block_floats(call)}; }

  static constexpr std::int64_t queries = 40, keys = 300, dim = 6;
  std::vector<float> q = std::vector<float>(queries * dim), k = std::vector<float>(keys * dim), v = k, kept;
  Sequence sequence;
  unsigned char needs_repair = 0;
  Call call{};
};

TEST_F(SharedKeys, are_packed_whole_by_the_first_task_and_read_by_the_next) {
  const std::vector<float> first = attend(0, 20), second = attend(20, 20);
  share();
  EXPECT_EQ(attend(0, 20), first);
  for (std::vector<float>* x : {&k, &v}) std::fill(x->begin(), x->end(), 1e30f);
  EXPECT_EQ(attend(20, 20), second) << "which sees keys that the first did not";
  EXPECT_EQ(needs_repair, 0);
}

TEST_F(SharedKeys, stay_as_they_are_where_a_task_goes_through_its_keys_again_for_the_weights) {
  share();
  attend(0, 40);
  const std::vector<float> before = kept;
  std::vector<float> weights(queries * keys);
  call.weights = {weights.data(), {0, 0, keys, 1}};
  attend(0, 40);
  EXPECT_GT(weights[0], 0);
  EXPECT_EQ(std::memcmp(kept.data(), before.data(), kept.size() * sizeof(float)), 0);
}

TEST_F(SharedKeys, serve_tasks_that_run_at_once) {
  const std::vector<float> alone = attend(0, 40);
  share();
  const threads::ForOneCall four_threads(4, nullptr);
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::fill(kept.begin(), kept.end(), 0.0f);
    std::vector<float> out(alone.size());
    call.out = {out.data(), {0, 0, dim, 1}};
    threads::parallel_for(queries / 10, [&](std::size_t n) { run(static_cast<std::int64_t>(n) * 10, 10); });
    EXPECT_EQ(out, alone);
  }
}

TEST_F(SharedKeys, are_packed_again_where_whoever_began_does_not_come_back) {
  const std::vector<float> alone = attend(0, 40);
  share();
  for (std::int64_t n = 0; n < 2; ++n)
    ASSERT_TRUE(reinterpret_cast<Block*>(call.blocks.block(0, n))->begin());
  const std::vector<float> before = kept;
  EXPECT_EQ(attend(0, 40), alone);
  EXPECT_EQ(std::memcmp(kept.data(), before.data(), kept.size() * sizeof(float)), 0)
      << "what another packs was written";
}

}  // namespace
}  // namespace heed::cpu::shared_blocks_test
