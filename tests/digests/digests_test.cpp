// SPDX-License-Identifier: Apache-2.0
// O2: one file of digests comes out of every kernel on every machine. `test_digests --write FILE` makes the
// file again, with the scalar kernel; that is right only when what is computed was meant to change.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <set>

#include "cases/backward.hpp"
#include "cases/compare.hpp"
#include "cases/kernels.hpp"
#include "cases/selection.hpp"
#include "cpu/drivers.hpp"
#include "digests/digest.hpp"
#include "digests/problems.hpp"
#include "heed/check.hpp"
#include "heed/layer.hpp"

namespace heed::digests {
namespace {

using cases::Results;
using cases::Tensor;
using Digests = std::map<std::string, std::string>;  // "keys-1024 out" -> 16 hexadecimal digits

std::vector<std::string> kernels() {
  std::vector<std::string> names = kernel_names();
  std::erase(names, "reference");  // computes in double
  std::erase_if(names, cases::is_f64);
  return names;
}

// Empty where the kernel refuses: decode takes few rows.
Digests digests_of(const Problem& p, const std::string& kernel) {
  const auto got = cases::run_if_accepted(p.call, {.log_sum_exp = true}, kernel);
  if (!got) return {};
  Digests made{{p.name + " out", digest(got->out)}, {p.name + " log_sum_exp", digest(*got->log_sum_exp)}};
  const auto more = p.weights ? cases::run_if_accepted(p.call, {.weights = true}, kernel) : std::nullopt;
  if (more) made[p.name + " weights"] = digest(*more->weights);
  return made;
}

// Of all gradients together.
Digests gradient_digests_of(const Problem& p, const std::string& kernel) {
  const auto got = cases::gradients_of(cases::BackwardCall(p.call, 1000), kernel);
  if (!got) return {};
  std::uint64_t all = hash_of_nothing;
  for (const auto& gradient : got->gradients)
    if (gradient) all = hash(*gradient, all);
  return {{p.name + " gradients", in_digits(all)}};
}

// Layers, because projections have kernels of their own.
Digests layer_digests(const std::string& target) {
  cpu::forced_target() = target;
  Digests made;
  struct Size {
    std::int64_t model_dim, heads, kv_heads, batch, length;
  };
  for (const Size& s : {Size{48, 3, 3, 2, 17}, Size{80, 5, 1, 1, 1}, Size{1040, 4, 2, 1, 3},
                        Size{324, 3, 3, 1, 29}, Size{24, 3, 1, 2, 150}}) {
    const LayerConfig config = grouped_query(s.model_dim, s.heads, s.kv_heads);
    AttentionLayer layer(config, random_weights(config, 9));
    const Tensor x = Tensor::random({s.batch, 1, s.length, s.model_dim}, 900, 2);
    Tensor y(x.shape());
    layer({.x = x.view()}, {.out = y.mutable_view()}, {.masks = {Causal{}}});
    made["layer-" + std::to_string(s.model_dim) + " out"] = digest(y);
    Tensor dx(x.shape());
    layer.backward({.x = x.view()}, {.out = y.view(), .x = dx.mutable_view()}, {.masks = {Causal{}}});
    std::uint64_t all = hash(dx, hash_of_nothing);
    for (const Parameter& gradient : layer.gradients()) {
      Tensor copy(gradient.values.shape);
      std::memcpy(copy.mutable_view().data, gradient.values.data,
                  static_cast<std::size_t>(gradient.values.shape.elements()) * sizeof(float));
      all = hash(copy, all);
    }
    made["layer-" + std::to_string(s.model_dim) + " gradients"] = in_digits(all);
  }
  cpu::forced_target().clear();
  return made;
}

Digests golden() {
  std::ifstream file(HEED_GOLDEN);
  Digests read;
  for (std::string name, output, hex; file >> name >> output >> hex;) read[name + " " + output] = hex;
  return read;
}

void compare(const Digests& got, const Digests& expected, std::int64_t& compared) {
  for (const auto& [name, hex] : got) {
    ++compared;
    const auto stored = expected.find(name);
    EXPECT_EQ(hex, stored == expected.end() ? "absent" : stored->second) << name;
  }
}

std::string target_of(const std::string& kernel) { return kernel.substr(kernel.rfind('.') + 1); }

// A target of matrix instructions may leave f32, or few rows, to the others; a target of vectors may not.
bool must_take(const std::string& kernel) {
  return std::set<std::string>{"scalar", "neon", "avx2", "avx512", "wasm"}.count(target_of(kernel)) > 0;
}

// One problem of so many. But for its fma, scalar code is the same on every machine, and under an emulator
// it takes three to four times as long as AVX2's.
std::int64_t stride(const std::string& kernel) {
  const bool is_slow = kernel == "cpu.prefill.scalar" || kernel == "cpu.backward.scalar";
  return cases::small_selection() && is_slow ? 3 : 1;
}

class OneFile : public testing::TestWithParam<std::string> {
 protected:
  static bool takes_f32() {
    return must_take(GetParam()) || !digests_of(problems().front(), GetParam()).empty();
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, OneFile, testing::ValuesIn(kernels()), cases::test_name);

TEST_P(OneFile, every_digest_of_the_file_comes_out) {
  if (!takes_f32()) GTEST_SKIP() << "takes no f32";
  const Digests expected = golden();
  std::int64_t compared = 0, number = 0;
  for (const Problem& p : problems())
    if (++number % stride(GetParam()) == 0) compare(digests_of(p, GetParam()), expected, compared);
  EXPECT_GE(compared, 50);  // a target may take bf16 only
}

// One kernel of every instruction set stands for it: which of them is asked does not matter to a layer.
class OneFileOfLayers : public OneFile {};
INSTANTIATE_TEST_SUITE_P(Kernels, OneFileOfLayers, testing::ValuesIn([] {
                           std::vector<std::string> names = kernels();
                           std::erase_if(names, [](const std::string& name) {
                             return !name.starts_with("cpu.prefill.");
                           });
                           return names;
                         }()),
                         cases::test_name);

TEST_P(OneFileOfLayers, layers_on_its_instruction_set_give_the_digests_of_the_file) {
  if (!takes_f32()) GTEST_SKIP() << "takes no f32";
  std::int64_t compared = 0;
  compare(layer_digests(target_of(GetParam())), golden(), compared);
  EXPECT_EQ(compared, 10);
}

class OneFileOfGradients : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kernels, OneFileOfGradients, testing::ValuesIn([] {
                           std::vector<std::string> names = backward_kernel_names();
                           std::erase(names, "reference");  // computes in double
                           std::erase_if(names, cases::is_f64);
                           return names;
                         }()),
                         cases::test_name);

TEST_P(OneFileOfGradients, every_digest_of_the_file_comes_out) {
  const Digests expected = golden();
  std::int64_t compared = 0, number = 0;
  for (const Problem& p : problems())
    if (++number % stride(GetParam()) == 0) compare(gradient_digests_of(p, GetParam()), expected, compared);
  EXPECT_GE(compared, must_take(GetParam()) ? 50 / stride(GetParam()) : 0);
}

// O3: with 16-bit types the bits are the same for every kernel of one target.
class OneTarget : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kernels, OneTarget, testing::ValuesIn([] {
                           std::vector<std::string> names = kernels();
                           std::erase_if(names, [](const std::string& name) {
                             return name.rfind("cpu.prefill.", 0) == 0;
                           });
                           return names;
                         }()),
                         cases::test_name);

TEST_P(OneTarget, sixteen_bit_types_have_the_bits_of_its_prefill) {
  const std::string prefill = "cpu.prefill." + target_of(GetParam());
  std::int64_t compared = 0, number = 0;
  for (const Problem& p : problems())
    for (const DType dtype : {DType::f16, DType::bf16}) {
      if (cases::small_selection() && ++number % 5 != 0) continue;
      const cases::Call call = in_dtype(p.call, dtype);
      const auto got = cases::run_if_accepted(call, {.log_sum_exp = true}, GetParam());
      if (!got) continue;
      const auto expected = cases::run_if_accepted(call, {.log_sum_exp = true}, prefill);
      ASSERT_TRUE(expected) << p.name << ": only decode takes " << name_of(dtype);
      EXPECT_EQ(digest(got->out), digest(expected->out)) << p.name << ", " << name_of(dtype);
      EXPECT_EQ(digest(*got->log_sum_exp), digest(*expected->log_sum_exp))
          << p.name << ", " << name_of(dtype);
      ++compared;
    }
  if (compared == 0 && !must_take(GetParam())) GTEST_SKIP() << "takes none of them";
  const std::int64_t both = cases::small_selection() ? 10 : 60;
  EXPECT_GE(compared, must_take(GetParam()) ? both : both / 2);  // a target may take bf16 only
}

// O4: no file has them, since the C library's exp, log and tanh have a say in them.
TEST(F64, has_the_same_bits_on_every_instruction_set_of_this_machine) {
  std::int64_t compared = 0, number = 0;
  for (const Problem& p : problems()) {
    if (cases::small_selection() && ++number % 15 != 0) continue;
    const cases::Call call = in_dtype(p.call, DType::f64);
    const cases::BackwardCall backward(call, 1000);
    const auto expected = cases::run(call, {.log_sum_exp = true}, "cpu.f64.scalar");
    const auto gradients = cases::gradients_of(backward, "cpu.f64.scalar");
    for (const std::string& kernel : kernel_names()) {
      if (!cases::is_f64(kernel) || kernel == "cpu.f64.scalar") continue;
      SCOPED_TRACE(p.name + ", " + kernel);
      EXPECT_TRUE(cases::same_bits(cases::run(call, {.log_sum_exp = true}, kernel), expected));
      const auto found = cases::gradients_of(backward, kernel);
      for (const cases::Of of : cases::every_gradient)
        if ((*found)[of]) {
          EXPECT_TRUE(cases::same_bits(*(*found)[of], *(*gradients)[of])) << name_of(of);
        }
      ++compared;
    }
  }
  EXPECT_GE(compared, 3);
}

TEST(Golden, the_file_has_a_line_for_every_output_and_no_other) {
  std::set<std::string> expected, found;
  for (const char* layer : {"layer-24", "layer-48", "layer-80", "layer-324", "layer-1040"})
    expected.insert({std::string(layer) + " out", std::string(layer) + " gradients"});
  for (const Problem& p : problems()) {
    expected.insert({p.name + " out", p.name + " log_sum_exp", p.name + " gradients"});
    if (p.weights) expected.insert(p.name + " weights");
  }
  for (const auto& [name, hex] : golden()) found.insert(name);
  EXPECT_EQ(found, expected);
}

TEST(Golden, the_answers_behind_the_digests_are_right) {
  if (cases::small_selection()) GTEST_SKIP() << "once, where nothing is emulated, is enough";
  for (const Problem& p : problems()) {
    Results got = cases::run(p.call, {.weights = true, .log_sum_exp = true}, "cpu.prefill.scalar");
    const Check result = check(p.call.inputs(), got.outputs(), p.call.options());
    EXPECT_EQ(result.beyond_bound, 0) << p.name << ": " << result.first_miss;
    const cases::BackwardCall backward(p.call, 1000);
    auto gradients = *cases::gradients_of(backward, "cpu.backward.scalar");
    const Check of_gradients =
        check(p.call.inputs(), backward.saved(), gradients.views(backward), p.call.options());
    EXPECT_EQ(of_gradients.beyond_bound, 0) << p.name << ": " << of_gradients.first_miss;
  }
}

int write(const char* path) {
  Digests made = layer_digests("scalar");
  for (const Problem& p : problems()) {
    made.merge(digests_of(p, "cpu.prefill.scalar"));
    made.merge(gradient_digests_of(p, "cpu.backward.scalar"));
  }
  std::ofstream file(path);
  for (const auto& [name, hex] : made) file << name << ' ' << hex << '\n';
  return file.flush() ? 0 : 1;
}

}  // namespace
}  // namespace heed::digests

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 3 && std::string(argv[1]) == "--write") return heed::digests::write(argv[2]);
  if (argc > 1) {
    std::cerr << "usage: " << argv[0] << " [--write FILE]\n";
    return 2;
  }
  return RUN_ALL_TESTS();
}
