// SPDX-License-Identifier: Apache-2.0
// The scratch of a task is measured before there is any: on AMX, to make operands is to use the tile
// registers.
#define HEED_THIS_TARGET scratch_test
#include <gtest/gtest.h>

#include "cpu/isa/scalar.hpp"
#include "cpu/prefill/prefill.hpp"
#include "cpu/tile/operands.hpp"

namespace heed::cpu::scratch_test {
namespace {

int made = 0;

struct Counted : PackedF32<Scalar> {
  Counted(const OperandExtents& e, const Parts& parts) : PackedF32<Scalar>(e, parts) { ++made; }
};

TEST(Scratch, is_measured_without_making_operands) {
  Call call{};
  call.heads = call.kv_heads = 1, call.queries = 40, call.dim = call.value_dim = 64;
  EXPECT_GT(Prefill<Counted>::scratch_floats(call, call.queries), 0);
  EXPECT_GT(Prefill<Counted>::partial(call).floats(), 0);
  EXPECT_EQ(made, 0);
}

}  // namespace
}  // namespace heed::cpu::scratch_test
