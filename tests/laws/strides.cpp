// SPDX-License-Identifier: Apache-2.0
// Laws of views: memory order is only strides. Every layout of every operand gives the bits of the contiguous
// copy, and nothing between the elements is read or written.
#include <functional>

#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/random_call.hpp"
#include "cases/selection.hpp"

namespace heed::cases {
namespace {

class Strides : public Law {};
INSTANTIATE_TEST_SUITE_P(Kernels, Strides, testing::ValuesIn(plan_and_kernels()), test_name);

constexpr Wants every_output{.weights = true, .log_sum_exp = true, .scores = Stage::biased};

struct Layout {
  const char* name;
  std::function<heed::Strides(Shape)> stride;
  std::size_t lead_elements = 0;
};

// Packed in the order of the four axes' numbers, outermost first, each row of memory `pad` elements longer
// than it needs.
std::function<heed::Strides(Shape)> ordered(std::vector<int> order, std::int64_t pad) {
  return [order, pad](Shape s) {
    const std::int64_t extent[4] = {s.batch, s.heads, s.length, s.dim};
    std::int64_t stride[4] = {}, step = 1;
    for (auto axis = order.rbegin(); axis != order.rend(); ++axis)
      stride[*axis] = step, step = step * extent[*axis] + pad;
    return heed::Strides{stride[0], stride[1], stride[2], stride[3]};
  };
}

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{
      {"bhsd", ordered({0, 1, 2, 3}, 0)},
      {"bshd", ordered({0, 2, 1, 3}, 0)},
      {"sbhd", ordered({2, 0, 1, 3}, 0)},
      {"slices of a larger buffer", ordered({0, 1, 2, 3}, 5)},
      {"bshd slices", ordered({0, 2, 1, 3}, 3)},
      {"dim outside length", ordered({0, 1, 3, 2}, 0)},
      {"dim outermost, padded", ordered({3, 2, 1, 0}, 2)},
      {"every second element",
       [](Shape s) {
         const heed::Strides p = bhsd(s);
         return heed::Strides{2 * p.batch, 2 * p.heads, 2 * p.length, 2};
       }},
      {"no stride where there is one entry",
       [](Shape s) {
         constexpr std::int64_t none = heed::Strides::not_given;
         const heed::Strides p = bhsd(s);
         return heed::Strides{s.batch > 1 ? p.batch : none, s.heads > 1 ? p.heads : none,
                              s.length > 1 ? p.length : none, s.dim > 1 ? p.dim : none};
       }},
      {"one element after an aligned address", ordered({0, 1, 2, 3}, 0), 1},
      {"three elements after an aligned address, padded", ordered({0, 2, 1, 3}, 1), 3},
  };
  return all;
}

Tensor laid_out(const Tensor& t, const Layout& layout) {
  return t.laid_out(layout.stride(t.shape()), layout.lead_elements * bytes_of(t.dtype()));
}

TEST_P(Strides, every_layout_of_the_inputs_gives_the_bits_of_the_contiguous_copy) {
  for (std::uint64_t seed : seeds(900, 920)) {
    const Call call = random_call(seed, {.dropout = true});
    const auto expected = attend(call, every_output);
    for (std::size_t n = 0; n < layouts().size(); ++n) {
      auto nth = [&](std::size_t shift) -> const Layout& {
        return layouts()[(n + shift) % layouts().size()];
      };
      SCOPED_TRACE("seed " + std::to_string(seed) + ", q " + nth(0).name + ": " + describe(call));
      Call other = call;  // each operand its own layout
      other.q = laid_out(call.q, nth(0));
      other.k = laid_out(call.k, nth(seed));
      other.v = laid_out(call.v, nth(3 * seed + 1));
      if (call.bias) other.bias = laid_out(*call.bias, nth(5));
      if (call.sink) other.sink = laid_out(*call.sink, nth(7));
      EXPECT_TRUE(same_bits(attend(other, every_output), expected));
    }
  }
}

// Counts the bytes of `t` that lie between its elements and are no longer 0xff.
std::int64_t touched_between(const Tensor& t) {
  Tensor fresh = t;
  fresh.fill_bytes(0xff);
  for_each(t.shape(), [&](auto b, auto h, auto i, auto d) { fresh.set(b, h, i, d, t.at(b, h, i, d)); });
  std::int64_t touched = 0;
  for (std::size_t n = 0; n < t.memory().size(); ++n) touched += fresh.memory()[n] != t.memory()[n];
  return touched;
}

TEST_P(Strides, every_layout_of_the_outputs_holds_the_same_bits_and_nothing_between_them_is_written) {
  for (std::uint64_t seed : seeds(930, 950)) {
    const Call call = random_call(seed);
    const auto expected = attend(call, every_output);
    if (!expected) continue;
    for (std::size_t n = 0; n < layouts().size(); ++n) {
      auto nth = [&](std::size_t shift) -> const Layout& {
        return layouts()[(n + shift) % layouts().size()];
      };
      SCOPED_TRACE("seed " + std::to_string(seed) + ", out " + nth(0).name + ": " + describe(call));
      Results got(call, every_output);
      got.out = laid_out(got.out, nth(0));
      got.weights = laid_out(*got.weights, nth(1));
      got.log_sum_exp = laid_out(*got.log_sum_exp, nth(4));
      got.scores = laid_out(*got.scores, nth(6));
      attention(call.inputs(), got.outputs(), call.options(GetParam()));
      EXPECT_TRUE(same_bits(got, *expected));
      EXPECT_EQ(touched_between(got.out) + touched_between(*got.weights) + touched_between(*got.log_sum_exp) +
                    touched_between(*got.scores),
                0);
    }
  }
}

TEST_P(Strides, a_stride_of_zero_broadcasts_along_every_axis_of_every_input) {
  const Call call = random_call(960, {.masks = false, .bias = false, .sink = false});
  for (std::int64_t keys : {1, 31, 32, 33, 65}) {
    Call full{.q = Tensor({2, 4, 3, 8}), .k = Tensor({2, 2, keys, 8}), .v = Tensor({2, 2, keys, 8})};
    for (int axis = 0; axis < 4; ++axis) {
      SCOPED_TRACE("axis " + std::to_string(axis) + ", " + std::to_string(keys) + " keys");
      Inputs broadcast = full.inputs();
      std::vector<Tensor> single;
      for (Tensor* t : {&full.q, &full.k, &full.v}) {
        Shape s = t->shape();
        (axis == 0 ? s.batch : axis == 1 ? s.heads : axis == 2 ? s.length : s.dim) = 1;
        single.push_back(Tensor::random(s, static_cast<std::uint64_t>(axis * 10) + single.size(), 2));
        for_each(t->shape(), [&](auto b, auto h, auto i, auto d) {
          t->set(
              b, h, i, d,
              single.back().at(axis == 0 ? 0 : b, axis == 1 ? 0 : h, axis == 2 ? 0 : i, axis == 3 ? 0 : d));
        });
      }
      View* views[] = {&broadcast.q, &broadcast.k, &broadcast.v};
      for (std::size_t n = 0; n < 3; ++n) {
        heed::Strides stride = bhsd(single[n].shape());
        (axis == 0 ? stride.batch : axis == 1 ? stride.heads : axis == 2 ? stride.length : stride.dim) = 0;
        views[n]->data = single[n].view().data;
        views[n]->stride = stride;
      }
      const auto expected = attend(full, every_output);
      if (!expected) continue;
      Results got(full, every_output);
      attention(broadcast, got.outputs(), full.options(GetParam()));
      EXPECT_TRUE(same_bits(got, *expected));
    }
  }
}

// Where keys lie side by side a kernel may read them in whole lines of a cache, from the address that begins
// one: one of these does.
TEST_P(Strides, every_place_within_a_line_gives_the_same_bits) {
  constexpr std::size_t halves_in_line = 32;
  const Call call{.q = Tensor::random({1, 2, 40, 64}, 1, 4, DType::bf16),
                  .k = Tensor::random({1, 2, 320, 64}, 2, 4, DType::bf16),
                  .v = Tensor::random({1, 2, 320, 64}, 3, 4, DType::bf16)};
  const auto expected = attend(call, {.log_sum_exp = true});
  for (std::size_t lead = 0; lead < halves_in_line; ++lead) {
    Call other = call;
    for (Tensor* t : {&other.k, &other.v}) *t = laid_out(*t, {"", ordered({0, 1, 2, 3}, 0), lead});
    EXPECT_TRUE(same_bits(attend(other, {.log_sum_exp = true}), expected)) << lead << " elements further";
  }
}

// Either the bits of the aligned copy, or a refusal that says so: never a crash, never other numbers.
TEST_P(Strides, a_base_that_splits_elements_is_read_right_or_refused) {
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Call call{.q = Tensor::random({1, 2, 9, 16}, 1, 4, dtype),
              .k = Tensor::random({1, 2, 33, 16}, 2, 4, dtype),
              .v = Tensor::random({1, 2, 33, 16}, 3, 4, dtype)};
    const auto expected = attend(call);
    for (Tensor* t : {&call.q, &call.k, &call.v}) *t = t->laid_out(bhsd(t->shape()), 1);
    try {
      EXPECT_TRUE(same_bits(attend(call), expected));
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("multiple of the element's"), std::string::npos)
          << error.what();
    }
  }
}

}  // namespace
}  // namespace heed::cases
