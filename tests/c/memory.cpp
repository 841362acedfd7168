// SPDX-License-Identifier: Apache-2.0
// Every allocation of this program can be made to fail: a call from C then says so, and leaks nothing.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <set>

#include "cases/allocations.hpp"
#include "heed/c.h"

namespace {

using heed::cases::allocations;

const float numbers[64]{};
float out[64];

heed_view view(heed_shape shape) {
  heed_view made{};
  made.data = numbers;
  made.shape = shape;
  return made;
}

template <class Struct>
Struct sized() {
  Struct made{};
  made.size = sizeof made;
  return made;
}

heed_status attend(std::int64_t key_dim) {
  auto inputs = sized<heed_inputs>();
  inputs.q = view({1, 2, 2, 4});
  inputs.k = view({1, 1, 3, key_dim});
  inputs.v = view({1, 1, 3, 4});
  auto outputs = sized<heed_outputs>();
  outputs.out.data = out;
  outputs.out.shape = {1, 2, 2, 4};
  heed_mask causal{};
  causal.kind = HEED_MASK_CAUSAL;
  causal.align = HEED_ALIGN_ENDS;
  auto options = sized<heed_options>();
  options.masks = {&causal, 1, sizeof causal};
  return heed_attention(&inputs, &outputs, &options);
}

heed_status differentiate() {
  auto inputs = sized<heed_inputs>();
  inputs.q = view({1, 2, 2, 4});
  inputs.k = inputs.v = view({1, 1, 3, 4});
  auto saved = sized<heed_saved>();
  saved.out = view({1, 2, 2, 4});
  saved.log_sum_exp = view({1, 2, 2, 1});
  auto gradients = sized<heed_gradients>();
  gradients.out = saved.out;
  gradients.q.data = out;
  gradients.q.shape = {1, 2, 2, 4};
  return heed_attention_backward(&inputs, &saved, &gradients, nullptr);
}

heed_status make_a_cache() {
  auto config = sized<heed_cache_config>();
  config.kv_heads = 2;
  config.capacity = 16;
  config.dim = 4;
  heed_cache* cache = nullptr;
  const heed_status status = heed_cache_create(&config, &cache);
  EXPECT_EQ(cache != nullptr, status == HEED_OK);
  heed_cache_destroy(cache);
  return status;
}

heed_status make_a_layer() {
  auto config = sized<heed_layer_config>();
  config.model_dim = 4;
  config.heads = 2;
  const auto rotary = sized<heed_rotary>();
  config.rotary = &rotary;
  auto weights = sized<heed_layer_weights>();
  weights.w_q = weights.w_k = weights.w_v = weights.w_o = view({1, 1, 4, 4});
  heed_layer* layer = nullptr;
  const heed_status status = heed_layer_create(&config, &weights, &layer);
  EXPECT_EQ(layer != nullptr, status == HEED_OK);
  heed_layer_destroy(layer);
  return status;
}

// Lets every allocation of the call fail, one after another, until a run has enough. Where the library knows
// what it had no room for it says that instead.
void expect_to_run_out(const std::function<heed_status()>& call, heed_status at_last) {
  EXPECT_EQ(call(), at_last);  // what is kept between calls is now there, and so is the room for a sentence
  std::int64_t failed = 0;
  for (;; ++failed) {
    ASSERT_LT(failed, 1000);
    const std::int64_t before = allocations.live;
    allocations.until_failure = failed;
    const heed_status status = call();
    const bool is_enough = allocations.until_failure >= 0;
    allocations.until_failure = -1;
    if (is_enough) {
      EXPECT_EQ(status, at_last) << heed_last_error();
      break;
    }
    if (status == HEED_OK) continue;  // what failed was not needed
    EXPECT_TRUE(status == HEED_ERROR_MEMORY || status == HEED_ERROR_CAPACITY) << status;
    if (status == HEED_ERROR_MEMORY) {
      EXPECT_STREQ(heed_last_error(), "out of memory");
    }
    EXPECT_LE(allocations.live, before + 1);  // at most the last error, which this thread keeps
  }
}

TEST(memory_in_c, a_call_that_runs_out_says_so) {
  expect_to_run_out([] { return attend(4); }, HEED_OK);
  expect_to_run_out(differentiate, HEED_OK);
}

TEST(memory_in_c, so_does_a_refused_call_without_room_for_its_sentence) {
  expect_to_run_out([] { return attend(3); }, HEED_ERROR_SHAPE);
}

TEST(memory_in_c, what_cannot_be_made_leaves_its_pointer_alone) {
  expect_to_run_out(make_a_cache, HEED_OK);
  expect_to_run_out(make_a_layer, HEED_OK);
}

}  // namespace
