// SPDX-License-Identifier: Apache-2.0
// One call to attention_backward() that owns everything it points to: a forward call, what it saved,
// gradients of its results, and those that come out.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "cases/call.hpp"
#include "heed/gradient.hpp"

namespace heed::cases {

enum class Of : std::uint8_t { q, k, v, bias, sink };
inline constexpr std::array<Of, 5> every_gradient{Of::q, Of::k, Of::v, Of::bias, Of::sink};
inline const char* name_of(Of of) {
  constexpr const char* names[] = {"q", "k", "v", "bias", "sink"};
  return names[static_cast<std::size_t>(of)];
}

struct BackwardCall {
  Call call;
  Tensor out, log_sum_exp;  // saved
  Tensor out_gradient;      // of the loss
  std::optional<Tensor> log_sum_exp_gradient{};

  // Runs the forward call.
  BackwardCall(Call forward, std::uint64_t stream, bool lse_gradient = false) : call(std::move(forward)) {
    Results saved = run(call, {.log_sum_exp = true});
    out = saved.out, log_sum_exp = *saved.log_sum_exp;
    out_gradient = Tensor::random(call.out_shape(), stream, 2, call.q.dtype());
    if (lse_gradient) log_sum_exp_gradient = Tensor::random(log_sum_exp.shape(), stream + 1, 2);
  }

  Saved saved() const { return {out.view(), log_sum_exp.view()}; }
  // What a gradient has the extents and the dtype of; nothing where the call has no such argument.
  const Tensor* argument(Of of) const {
    if (of == Of::bias) return call.bias ? &*call.bias : nullptr;
    if (of == Of::sink) return call.sink ? &*call.sink : nullptr;
    return of == Of::q ? &call.q : of == Of::k ? &call.k : &call.v;
  }
};

struct BackwardResults {
  std::array<std::optional<Tensor>, 5> gradients{};
  bool accumulate = false;

  // Those in `wanted` that the call has arguments for, in f32 or in the argument's dtype. Whatever is not
  // written stays a NaN.
  BackwardResults(const BackwardCall& call, std::optional<DType> dtype = {},
                  const std::vector<Of>& wanted = {every_gradient.begin(), every_gradient.end()}) {
    for (const Of of : wanted)
      if (const Tensor* x = call.argument(of))
        (*this)[of].emplace(x->shape(), dtype.value_or(x->dtype())).fill_bytes(0xff);
  }

  std::optional<Tensor>& operator[](Of of) { return gradients[static_cast<std::size_t>(of)]; }
  const std::optional<Tensor>& operator[](Of of) const { return gradients[static_cast<std::size_t>(of)]; }

  Gradients views(const BackwardCall& call) {
    const auto view = [&](Of of) {
      return (*this)[of] ? Optional<MutableView>((*this)[of]->mutable_view()) : Optional<MutableView>();
    };
    Gradients made{.out = call.out_gradient.view(),
                   .q = view(Of::q),
                   .k = view(Of::k),
                   .v = view(Of::v),
                   .bias = view(Of::bias),
                   .sink = view(Of::sink),
                   .accumulate = accumulate};
    if (call.log_sum_exp_gradient) made.log_sum_exp = call.log_sum_exp_gradient->view();
    return made;
  }
};

inline void differentiate(const BackwardCall& call, BackwardResults& into, const std::string& kernel = "") {
  attention_backward(call.call.inputs(), call.saved(), into.views(call), call.call.options(kernel));
}

// Empty if a forced kernel says that it cannot take this problem.
inline std::optional<BackwardResults> gradients_of(const BackwardCall& call, const std::string& kernel = "",
                                                   std::optional<DType> dtype = {}) {
  BackwardResults results(call, dtype);
  try {
    differentiate(call, results, kernel);
  } catch (const Error& error) {
    if (error.code == Error::unsupported && !kernel.empty()) return std::nullopt;
    throw;
  }
  return results;
}

// How many random problems a forced kernel took. A quarter of them are bf16, and matrix instructions take no
// other.
struct Taken {
  std::int64_t tried = 0, some = 0;
  bool any_f32 = false;

  void count(const Call& call, bool is_taken) {
    ++tried, some += is_taken;
    any_f32 |= is_taken && call.q.dtype() != DType::bf16;
  }
  bool enough() const { return 100 * some > (any_f32 ? 27 : 20) * tried; }
};

}  // namespace heed::cases
