// SPDX-License-Identifier: Apache-2.0
// The scratch of a task is measured without a Use: on AMX that configures the tile registers.
#define HEED_THIS_TARGET scratch_test
#include <gtest/gtest.h>

#include "cpu/isa/scalar.hpp"
#include "cpu/prefill/prefill.hpp"
#include "cpu/tile/operands.hpp"

namespace heed::cpu::scratch_test {
namespace {

int used = 0;

struct Counted : PackedF32<Scalar> {
  using PackedF32<Scalar>::PackedF32;
  struct Use {
    Use() { ++used; }
  };
};

TEST(Scratch, is_measured_without_using_the_registers_of_products) {
  Call call{};
  call.heads = call.kv_heads = 1, call.queries = 40, call.dim = call.value_dim = 64;
  EXPECT_GT(Prefill<Counted>::scratch_floats(call, call.queries), 0);
  EXPECT_GT(Prefill<Counted>::partial(call).floats(), 0);
  EXPECT_EQ(used, 0);
}

}  // namespace
}  // namespace heed::cpu::scratch_test
