// SPDX-License-Identifier: Apache-2.0
// Gradients of every CUDA kernel, forced by name: within the bound of the reference whatever the options, the
// same bits for every repeat, batch and packing, untouched by what nobody sees. Those of the exact kernel are
// the CPU's.
#include <cmath>
#include <fstream>
#include <map>

#include "digests/digest.hpp"
#include "digests/problems.hpp"
#include "gradients.hpp"

namespace heed::cuda::test {
namespace {

void expect_same(const BackwardResults& found, const BackwardResults& wanted, const std::string& what) {
  expect_each(found, wanted, what, [](const Tensor& x, const Tensor& y, auto... at) {
    return x.bits(at...) == y.bits(at...) || (x.at(at...) != x.at(at...) && y.at(at...) != y.at(at...));
  });
}

CLAIM(every_digest_of_gradients_comes_out_of_the_exact_kernel) {
  std::map<std::string, std::string> golden;
  std::ifstream file(HEED_GOLDEN);
  for (std::string name, output, hex; file >> name >> output >> hex;) golden[name + " " + output] = hex;
  int compared = 0;
  for (const digests::Problem& p : digests::problems()) {
    const auto got = gradients_of(exact, BackwardCall(p.call, 1000));
    expect(got.has_value(), p.name, " is refused");
    if (!got) continue;
    std::uint64_t all = digests::hash_of_nothing;
    for (const auto& gradient : got->gradients)
      if (gradient) all = digests::hash(*gradient, all);
    expect(digests::in_digits(all) == golden[p.name + " gradients"], p.name, " gradients");
    ++compared;
  }
  expect(compared > 50, "only ", compared, " problems");
}

CLAIM(random_gradients_of_the_exact_kernel_have_the_bits_of_the_cpu) {
  for (const std::uint64_t seed : some_seeds(160)) {
    const Call call = cases::random_call(seed, {.dropout = true});
    const BackwardCall backward(call, seed ^ 0xD0u, seed % 3 == 0);
    const auto dtype = seed % 4 == 0 ? std::optional(DType::f32) : std::nullopt;
    const auto got = gradients_of(exact, backward, dtype), wanted = cases::gradients_of(backward, cpu, dtype);
    expect(got.has_value(), "seed ", seed, " is refused");
    if (got && wanted) expect_same(*got, *wanted, named(exact, seed, call));
  }
}

// Several tiles of rows and of keys, heads of several slabs; tiles of keys that some tiles of rows skip (kind
// 2) and tiles of rows that see no key (kind 6).
CLAIM(long_gradients_of_the_exact_kernel_have_the_bits_of_the_cpu) {
  const std::int64_t kv_heads = is_emulated() ? 1 : 2;
  for (const std::int64_t dim : {64, 136})
    for (int kind = 0; kind < 7; ++kind) {
      const std::int64_t queries = kind == 6 ? 350 : 130, keys = kind == 6 ? 130 : 450;
      Call call{.q = Tensor::random({1, 2 * kv_heads, queries, dim}, 81, 3),
                .k = Tensor::random({1, kv_heads, keys, dim}, 82, 2),
                .v = Tensor::random({1, kv_heads, keys, 200 - dim}, 83, 2)};
      if (kind == 1 || kind == 6) call.causal = Causal{Align::ends};
      if (kind == 2) call.window = Window{90, 40, Align::ends, 7};
      if (kind == 3) call.key_lengths = {{300}}, call.softcap = 3.0f;
      if (kind == 4)
        call.sink = Tensor::random({1, 2 * kv_heads, 1, 1}, 84, 4), call.dropout = Dropout{0.25f, 7};
      if (kind == 5) call.bias = Tensor::random({1, 1, 130, 450}, 85, 2);
      const BackwardCall backward(call, 86, true);
      expect_same(*gradients_of(exact, backward), *cases::gradients_of(backward, cpu),
                  "kind " + std::to_string(kind) + ", dim " + std::to_string(dim));
    }
}

// Shared by rows, by keys, by heads, by batch entries, or by none of them; more than a tile of each.
CLAIM(gradients_by_a_bias_of_every_shape_have_the_bits_of_the_cpu) {
  for (const Shape& shape :
       {Shape{1, 1, 1, 1}, Shape{1, 2, 1, 100}, Shape{2, 1, 70, 1}, Shape{2, 2, 70, 100}}) {
    const Call call{.q = Tensor::random({2, 2, 70, 8}, 111, 3),
                    .k = Tensor::random({2, 1, 100, 8}, 112, 2),
                    .v = Tensor::random({2, 1, 100, 8}, 113, 2),
                    .bias = Tensor::random(shape, 114, 2)};
    const BackwardCall backward(call, 115, true);
    expect_same(*gradients_of(exact, backward), *cases::gradients_of(backward, cpu),
                "bias of " + std::to_string(shape.elements()));
  }
}

CLAIM(every_random_gradient_is_within_the_bound) {
  for (const std::string& kernel : backward_kernel_names()) {
    int taken = 0;
    for (const std::uint64_t seed : some_seeds(300)) {
      const Call call = cases::random_call(seed, {.dropout = true});
      Dice dice(seed ^ 0xACEu);
      const auto dtype = dice.one_in(3) ? std::optional(DType::f32) : std::nullopt;
      taken += expect_right(kernel, BackwardCall(call, seed ^ 0xD0u, dice.one_in(3)),
                            named(kernel, seed, call), dtype);
    }
    const int some = is_emulated() ? 5 : kernel == hopper ? 2 : 50;
    expect(cases::small_selection() || taken > some, kernel, " took ", taken);
  }
}

// Calls that kernels of matrix units are for: several tiles of queries and of keys.
CLAIM(gradients_of_ranges_of_keys_are_within_the_bound) {
  for (const std::string& kernel : backward_kernel_names()) {
    if (kernel == exact) continue;
    int taken = 0;
    for (const std::uint64_t seed : some_seeds(160)) {
      const Call call = range_call(seed, is_emulated() ? 80 : 300);
      const auto dtype = seed % 4 == 0 ? std::optional(DType::f32) : std::nullopt;
      taken += expect_right(kernel, BackwardCall(call, seed ^ 0xD0u, seed % 3 == 0),
                            named(kernel, seed, call), dtype);
    }
    expect(cases::small_selection() || taken > (is_emulated() ? 5 : 60), kernel, " took ", taken);
  }
}

// Hundreds of queries and keys, which take a CPU that pretends too long.
CLAIM(gradients_with_options_are_within_the_bound) {
  if (is_emulated()) return;
  for (const std::string& kernel : backward_kernel_names()) {
    if (kernel == exact) continue;
    int taken = 0;
    for (const std::uint64_t seed : some_seeds(120)) {
      const Call call = optional_call(seed);
      taken +=
          expect_right(kernel, BackwardCall(call, seed ^ 0xD0u, seed % 3 == 0), named(kernel, seed, call));
    }
    expect(cases::small_selection() || taken > 12, kernel, " took ", taken);
  }
}

// One option at a time, with masks or without, which Hopper's kernel has kernels for.
Call call_with_option(int option, std::int64_t dim, DType dtype) {
  Call call{.q = Tensor::random({2, 4, 150, dim}, 131, 3, dtype),
            .k = Tensor::random({2, 2, 264, dim}, 132, 2, dtype),
            .v = Tensor::random({2, 2, 264, dim}, 133, 2, dtype)};
  Dice dice(static_cast<std::uint64_t>(option));
  if (option % 2 == 1) call.causal = Causal{Align::ends};
  if (option == 0 || (option > 4 && option != 8))
    call.matrices.push_back(
        {cases::random_bools(dice, {option == 0 ? 2 : 1, option == 6 ? 4 : 1, 150, 264}, 3)});
  if (option == 1) call.documents = cases::Documents{cases::random_ids(dice, 2, 264), {}, Align::ends};
  if (option == 2 || option == 5) call.bias = Tensor::random({1, 4, 150, 264}, 134, 3, dtype);
  if (option == 8 || option == 9) call.bias = Tensor::random({2, 4, 150, 264}, 134, 3, dtype);
  if (option == 3 || option == 6)
    call.alibi = cases::Slopes{.of_heads = {0.5f, 0.1f, 2, 0}, .align = Align::ends};
  if (option == 4 || option == 7) call.dropout = Dropout{0.3f, 0x5EEDu};
  return call;
}

CLAIM(gradients_of_each_option_are_within_the_bound) {
  if (is_emulated()) return;
  for (const std::string& kernel : backward_kernel_names())
    for (int option = 0; option < 10 && kernel != exact; ++option)
      for (const std::int64_t dim : {40, 64, 128}) {
        const DType dtype = (option + dim / 64) % 2 == 0 ? DType::bf16 : DType::f16;
        const std::string what =
            kernel + ", option " + std::to_string(option) + ", dim " + std::to_string(dim);
        const BackwardCall backward(call_with_option(option, dim, dtype), 135, true);
        expect(expect_right(kernel, backward, what), what, " is refused");
      }
}

// Tiles of 64 queries and 128 keys lie beside the band, with a bias that all heads share and dropout.
CLAIM(gradients_of_a_band_whose_tiles_are_mostly_hidden_are_within_the_bound) {
  for (const std::string& kernel : backward_kernel_names())
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Call call{.q = Tensor::random({1, 2, 150, 24}, 141, 3, dtype),
                .k = Tensor::random({1, 1, 300, 24}, 142, 2, dtype),
                .v = Tensor::random({1, 1, 300, 24}, 143, 2, dtype)};
      cases::BoolTensor band({1, 1, 150, 300});
      cases::for_each({1, 1, 150, 300}, [&](auto b, auto h, auto i, auto j) {
        band.at(b, h, i, j) = j > 2 * i - 9 && j < 2 * i + 9;
      });
      call.matrices.push_back({std::move(band)});
      if (dtype == DType::bf16) call.bias = Tensor::random({1, 1, 150, 300}, 144, 3, dtype);
      if (dtype == DType::f16) call.dropout = Dropout{0.3f, 0x5EEDu};
      expect_right(kernel, BackwardCall(call, 145, true), kernel + ", " + name_of(dtype));
    }
}

// Rows far behind the front see its keys and none between.
CLAIM(gradients_of_a_windows_front_are_within_the_bound) {
  for (const std::string& kernel : backward_kernel_names())
    for (const DType dtype : {DType::bf16, DType::f16}) {
      Call call{.q = Tensor::random({1, 2, 150, 40}, 11, 3, dtype),
                .k = Tensor::random({1, 1, 200, 40}, 12, 2, dtype),
                .v = Tensor::random({1, 1, 200, 40}, 13, 2, dtype)};
      call.window = Window{10, 5, Align::ends, 70};
      expect_right(kernel, BackwardCall(call, 14, true), kernel + ", " + name_of(dtype));
    }
}

// Sums of f16 are lowered by 2^7 apart from the scale: the product of both would lose bits.
CLAIM(gradients_of_the_smallest_scales_are_within_the_bound) {
  for (const std::string& kernel : backward_kernel_names()) {
    Call call{.q = Tensor::random({1, 1, 20, 16}, 15, 100, DType::f16),
              .k = Tensor::random({1, 1, 20, 16}, 16, 100, DType::f16),
              .v = Tensor::random({1, 1, 20, 16}, 17, 100, DType::f16)};
    call.scale = 0x1.6bp-138f;
    expect_right(kernel, BackwardCall(call, 18), kernel, DType::f32);
  }
}

// Around the edges of tiles, by every head size, with groups of heads.
Call sized_call(std::uint64_t seed, DType dtype) {
  Dice dice(seed);
  const auto size = [&] {
    return dice.pick<std::int64_t>(
        {8, 24, 33, 40, 64, 64, 72, 80, 96, 112, 128, 128, 160, 192, 200, 256, 264, 320});
  };
  const std::int64_t dim = size(), value_dim = dice.one_in(3) ? size() : dim, kv_heads = dice.between(1, 2),
                     heads = kv_heads * dice.pick<std::int64_t>({1, 2, 5}), batch = dice.between(1, 2),
                     queries = dice.pick<std::int64_t>({1, 2, 31, 33, 64, 65, 127, 140}),
                     keys = dice.pick<std::int64_t>({1, 63, 64, 65, 128, 130, 193, 260});
  Call call{.q = Tensor::random({batch, heads, queries, dim}, 3 * seed, 3, dtype),
            .k = Tensor::random({batch, kv_heads, keys, dim}, 3 * seed + 1, 2, dtype),
            .v = Tensor::random({batch, kv_heads, keys, value_dim}, 3 * seed + 2, 2, dtype)};
  add_random_options(dice, call, seed);
  return call;
}

CLAIM(gradients_of_heads_of_every_size_are_within_the_bound) {
  for (const std::string& kernel : backward_kernel_names())
    for (const std::uint64_t seed : some_seeds(kernel == exact ? 12 : 120)) {
      const DType dtype = kernel == exact ? DType::f32 : seed % 2 == 0 ? DType::f16 : DType::bf16;
      const Call call = sized_call(seed, dtype);
      expect_right(kernel, BackwardCall(call, seed ^ 0xD0u, seed % 3 == 0), named(kernel, seed, call));
    }
}

CLAIM(repeated_gradients_have_one_answer) {
  for (const std::string& kernel : backward_kernel_names()) {
    const BackwardCall backward(middling_call(kernel, 2, 31), 34, true);
    const auto first = gradients_of(kernel, backward);
    if (!first) continue;
    for (int n = 0; n < (is_emulated() ? 1 : 5); ++n)
      expect_same(*gradients_of(kernel, backward), *first, kernel + ", again");
  }
}

// A device that has more memory has more tiles of them on their way, which no bit depends on. The other
// device is pretended.
CLAIM(gradients_of_wide_heads_are_those_of_a_device_with_less_memory) {
  if (!is_emulated()) return;
  for (const bool is_causal : {false, true}) {
    Call call{.q = Tensor::random({1, 2, 150, 200}, 151, 3, DType::bf16),
              .k = Tensor::random({1, 1, 170, 200}, 152, 2, DType::bf16),
              .v = Tensor::random({1, 1, 170, 200}, 153, 2, DType::bf16)};
    if (is_causal) call.causal = Causal{Align::ends};
    const BackwardCall backward(call, 154);
    expect_same(*gradients_of("cuda.general", backward), *gradients_of("cuda.general.small", backward),
                is_causal ? "causal" : "full");
  }
}

// Two tiles of queries and two of keys for every kernel that Hopper's backward pass is compiled to: small
// enough for tools that follow every access.
Call smallest_call(int option, std::int64_t dim, DType dtype) {
  Call call{.q = Tensor::random({1, 2, 70, dim}, 141, 3, dtype),
            .k = Tensor::random({1, 1, 136, dim}, 142, 2, dtype),
            .v = Tensor::random({1, 1, 136, dim == 192 ? 128 : dim}, 143, 2, dtype)};
  call.causal = Causal{Align::ends};
  Dice dice(144);
  if (option == 1) call.softcap = 5.0f;
  if (option == 2) call.matrices.push_back({cases::random_bools(dice, {1, 1, 70, 136}, 3)});
  if (option == 3) call.alibi = cases::Slopes{.of_heads = {0.5f, 0.1f}, .align = Align::ends};
  if (option == 4) call.dropout = Dropout{0.3f, 0x5EEDu};
  if (option == 5) call.bias = Tensor::random({1, 1, 70, 136}, 145, 3, dtype);
  if (option == 6) call.bias = Tensor::random({1, 2, 70, 136}, 145, 3, dtype);
  return call;
}

CLAIM(every_kernel_of_hoppers_gradients_has_one_answer) {
  if (is_emulated()) return;
  for (const std::int64_t dim : {64, 128, 192, 256})
    for (int option = 0; option < (dim <= 128 ? 7 : dim == 192 ? 1 : 2); ++option)
      for (const DType dtype : {DType::bf16, DType::f16}) {
        const BackwardCall backward(smallest_call(option, dim, dtype), 146);
        const auto first = gradients_of(hopper, backward);
        const std::string what = "option " + std::to_string(option) + ", dim " + std::to_string(dim);
        if (first) expect_same(*gradients_of(hopper, backward), *first, what + ", again");
      }
}

Tensor entry_of(const Tensor& all, std::int64_t entry) {
  Shape shape = all.shape();
  shape.batch = 1;
  Tensor one(shape, all.dtype());
  cases::for_each(shape, [&](auto, auto h, auto i, auto d) { one.set(0, h, i, d, all.at(entry, h, i, d)); });
  return one;
}

CLAIM(gradients_of_a_batch_are_those_of_its_entries) {
  for (const std::string& kernel : backward_kernel_names()) {
    const BackwardCall backward(middling_call(kernel, 3, 41), 44, true);
    const auto whole = gradients_of(kernel, backward);
    if (!whole) continue;
    for (std::int64_t entry = 0; entry < 3; ++entry) {
      BackwardCall one = backward;
      one.call.q = entry_of(backward.call.q, entry), one.call.k = entry_of(backward.call.k, entry);
      one.call.v = entry_of(backward.call.v, entry), one.out = entry_of(backward.out, entry);
      one.log_sum_exp = entry_of(backward.log_sum_exp, entry);
      one.out_gradient = entry_of(backward.out_gradient, entry);
      one.log_sum_exp_gradient = entry_of(*backward.log_sum_exp_gradient, entry);
      BackwardResults wanted(one);
      for (const Of of : {Of::q, Of::k, Of::v}) wanted[of] = entry_of(*(*whole)[of], entry);
      expect_same(*gradients_of(kernel, one), wanted, kernel + ", entry " + std::to_string(entry));
    }
  }
}

// Rows of `all` from `begin` on, as many as the other has.
void copy_rows(const Tensor& all, std::int64_t begin, Tensor& some) {
  cases::for_each(some.shape(),
                  [&](auto, auto h, auto i, auto d) { some.set(0, h, i, d, all.at(0, h, begin + i, d)); });
}

void expect_packed_as_alone(const std::string& kernel, std::int64_t dim) {
  const std::vector<std::int64_t> starts{0, 3, 3, 140, 221};
  const DType dtype = kernel == exact ? DType::f32 : DType::bf16;
  const Tensor q = Tensor::random({1, 4, 221, dim}, 21, 3, dtype),
               k = Tensor::random({1, 2, 221, dim}, 22, 2, dtype),
               v = Tensor::random({1, 2, 221, dim}, 23, 2, dtype),
               out_gradient = Tensor::random({1, 4, 221, dim}, 24, 2, dtype);
  const Options options{.masks = {Causal{Align::ends}}};
  const auto gradients = [&](const Inputs& in, const Tensor& from_out) {
    Tensor out(in.q.shape, dtype), lse({1, 4, in.q.shape.length, 1});
    attention(in, {.out = out.mutable_view(), .log_sum_exp = lse.mutable_view()}, options);
    std::array<Tensor, 3> made{Tensor(in.q.shape, dtype), Tensor(in.k.shape, dtype),
                               Tensor(in.v.shape, dtype)};
    const bool is_taken = run_backward(kernel, make_gradient_problem(in, {out.view(), lse.view()},
                                                                     {.out = from_out.view(),
                                                                      .q = made[0].mutable_view(),
                                                                      .k = made[1].mutable_view(),
                                                                      .v = made[2].mutable_view()},
                                                                     options));
    return is_taken ? std::optional(made) : std::nullopt;
  };
  const auto packed =
      gradients({.q = q.view(), .k = k.view(), .v = v.view(), .query_starts = starts, .key_starts = starts},
                out_gradient);
  if (!packed) return;
  for (std::size_t n = 0; n + 1 < starts.size(); ++n) {
    const std::int64_t begin = starts[n], length = starts[n + 1] - begin;
    if (length == 0) continue;
    Tensor own_q({1, 4, length, dim}, dtype), own_k({1, 2, length, dim}, dtype), own_v = own_k,
                                                                                 own_gradient = own_q;
    copy_rows(q, begin, own_q), copy_rows(k, begin, own_k), copy_rows(v, begin, own_v);
    copy_rows(out_gradient, begin, own_gradient);
    const auto alone = gradients({.q = own_q.view(), .k = own_k.view(), .v = own_v.view()}, own_gradient);
    for (std::size_t of = 0; of < 3; ++of) {
      Tensor part((*alone)[of].shape(), dtype);
      copy_rows((*packed)[of], begin, part);
      expect(part.memory() == (*alone)[of].memory(), kernel, ", sequence ", n, ", gradient ", of);
    }
  }
}

CLAIM(gradients_of_packed_sequences_are_those_of_each_alone) {
  for (const std::string& kernel : backward_kernel_names()) {
    expect_packed_as_alone(kernel, 64);
    if (kernel == hopper) expect_packed_as_alone(kernel, 256);
  }
}

// As (batch, length, heads, dim): batch entries follow each other as rows of one.
Tensor rows_of_one(const Tensor& x) {
  const Shape s = x.shape();
  return x.laid_out({s.length * s.heads * s.dim, s.dim, s.heads * s.dim, 1});
}

// Rows [begin, end) of an entry.
struct RowsOfEntry {
  std::int64_t entry, begin, end;

  Tensor operator()(const Tensor& all) const {
    Tensor made({1, all.shape().heads, end - begin, all.shape().dim}, all.dtype());
    cases::for_each(made.shape(), [&](auto, auto h, auto i, auto d) {
      made.set(0, h, i, d, all.at(entry, h, begin + i, d));
    });
    return made;
  }
};

// Two batch entries, each with documents of its own, which Hopper's kernel has as sequences.
CLAIM(gradients_of_documents_are_those_of_each_alone) {
  const std::vector<RowsOfEntry> documents{{0, 0, 3}, {0, 3, 140}, {0, 140, 150}, {1, 0, 65}, {1, 65, 150}};
  for (const std::string& kernel : backward_kernel_names()) {
    Call call = middling_call(kernel, 2, 121);
    call.sink = Tensor::random({1, 4, 1, 1}, 124, 2);
    call.documents.emplace().align = Align::starts;
    for (std::size_t n = 0; n < documents.size(); ++n)
      call.documents->ids.insert(call.documents->ids.end(),
                                 static_cast<std::size_t>(documents[n].end - documents[n].begin),
                                 static_cast<std::int32_t>(n));
    BackwardCall all(call, 125, true);
    for (Tensor* x : {&all.call.q, &all.call.k, &all.call.v, &all.out, &all.out_gradient, &all.log_sum_exp,
                      &*all.log_sum_exp_gradient})
      *x = rows_of_one(*x);
    BackwardResults whole(all);
    for (const Of of : {Of::q, Of::k, Of::v}) whole[of] = rows_of_one(*whole[of]);
    expect(differentiate(kernel, all, whole), kernel, " refuses documents");
    const Check result = check(all.call.inputs(), all.saved(), whole.views(all), all.call.options());
    expect(result.beyond_bound == 0, kernel, ": ", result.beyond_bound, " of ", result.compared,
           " beyond the bound, first ", result.first_miss);
    if (kernel != hopper) continue;
    for (const RowsOfEntry& rows : documents) {
      BackwardCall one = all;
      one.call.documents.reset();
      one.call.q = rows(all.call.q), one.call.k = rows(all.call.k), one.call.v = rows(all.call.v);
      one.out = rows(all.out), one.out_gradient = rows(all.out_gradient);
      one.log_sum_exp = rows(all.log_sum_exp), one.log_sum_exp_gradient = rows(*all.log_sum_exp_gradient);
      BackwardResults alone(one, {}, {Of::q, Of::k, Of::v}), wanted = alone;
      for (const Of of : {Of::q, Of::k, Of::v}) wanted[of] = rows(*whole[of]);
      differentiate(kernel, one, alone);
      expect_same(alone, wanted, "document at " + std::to_string(rows.begin));
    }
  }
}

// NaN and infinities in keys, values, biases and gradients that nobody sees change no bit.
CLAIM(what_nobody_sees_changes_no_gradient) {
  for (const std::string& kernel : backward_kernel_names()) {
    Call call = middling_call(kernel, 1, 51);
    call.causal.reset();
    call.key_lengths = {{100}};
    const BackwardCall clean(call, 54);
    const auto wanted = gradients_of(kernel, clean);
    if (!wanted) continue;
    BackwardCall poisoned = clean;
    for (std::int64_t j = 100; j < 150; ++j)
      for (std::int64_t d = 0; d < 64; d += 9) {
        poisoned.call.k.set(0, 1, j, d, NAN), poisoned.call.v.set(0, 0, j, d, HUGE_VALF);
      }
    expect_same(*gradients_of(kernel, poisoned), *wanted, kernel + ", hidden keys");
    // Queries beyond the keys see none.
    Call few = middling_call(kernel, 1, 61);
    few.k = entry_of(Tensor::random({1, 2, 40, 64}, 62, 2, few.k.dtype()), 0);
    few.v = entry_of(Tensor::random({1, 2, 40, 64}, 63, 2, few.k.dtype()), 0);
    few.causal = Causal{Align::ends};
    BackwardCall hollow(few, 64);
    const auto of_clean = gradients_of(kernel, hollow);
    for (std::int64_t i = 0; i < 100; ++i)
      hollow.out_gradient.set(0, 2, i, 5, NAN), hollow.call.q.set(0, 1, i, 3, NAN);
    const auto got = gradients_of(kernel, hollow);
    expect_right(kernel, hollow, kernel + ", queries that see nothing");
    if (kernel == exact) expect_same(*got, *of_clean, kernel + ", queries that see nothing");
  }
}

CLAIM(gradients_are_added_where_the_caller_says_so) {
  for (const std::string& kernel : backward_kernel_names()) {
    Call call = middling_call(kernel, 1, 91);
    if (kernel != hopper) call.bias = Tensor::random({1, 1, 150, 150}, 95, 2);
    call.sink = Tensor::random({1, 4, 1, 1}, 96, 2);
    const BackwardCall backward(call, 94);
    const auto plain = gradients_of(kernel, backward, DType::f32);
    if (!plain) continue;
    BackwardResults added(backward, DType::f32), wanted(backward, DType::f32);
    added.accumulate = true;
    for (const Of of : cases::every_gradient) {
      if (!added[of]) continue;
      cases::for_each(added[of]->shape(), [&](auto b, auto h, auto i, auto d) {
        const auto before = static_cast<float>((i * 7 + d * 3) % 5);
        added[of]->set(b, h, i, d, before);
        wanted[of]->set(b, h, i, d, before + (*plain)[of]->at(b, h, i, d));
      });
    }
    differentiate(kernel, backward, added);
    expect_same(added, wanted, kernel + ", added");
  }
}

// Only some of the gradients, and rows that do not lie side by side.
CLAIM(what_is_asked_for_and_strides_change_no_bit_of_a_gradient) {
  for (const std::string& kernel : backward_kernel_names()) {
    BackwardCall backward(middling_call(kernel, 1, 101), 104);
    const auto all = gradients_of(kernel, backward);
    if (!all) continue;
    for (const Of of : {Of::q, Of::k, Of::v}) {
      BackwardResults one(backward, {}, {of});
      differentiate(kernel, backward, one);
      expect_same(one, *all, kernel + ", only one");
    }
    for (Tensor* x : {&backward.call.q, &backward.call.k, &backward.call.v, &backward.out_gradient}) {
      const Shape s = x->shape();
      const std::int64_t apart = kernel == hopper ? 72 : 67;  // rows on 16 bytes
      *x = x->laid_out({s.length * s.heads * apart, apart, s.heads * apart, 1});
    }
    expect_same(*gradients_of(kernel, backward), *all, kernel + ", strides");
  }
}

}  // namespace
}  // namespace heed::cuda::test
