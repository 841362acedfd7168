// SPDX-License-Identifier: Apache-2.0
// A call of C++ in the words of C.
#pragma once
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "c/status.hpp"
#include "heed/attention.hpp"
#include "heed/c.h"
#include "heed/gradient.hpp"

namespace heed::in_c {

inline heed_shape shape(const Shape& s) { return {s.batch, s.heads, s.length, s.dim}; }
inline heed_strides strides(const Strides& s) { return {s.batch, s.heads, s.length, s.dim}; }

template <class CView, class CppView>
CView number_view(const CppView& v) {
  CView made{};
  made.data = v.data;
  made.shape = shape(v.shape);
  made.stride = strides(v.stride);
  made.dtype = static_cast<heed_dtype>(v.dtype);
  made.device = static_cast<heed_device>(v.device);
  made.layout = HEED_LAYOUT_STRIDED;
  return made;
}
inline heed_view view(const View& v) { return number_view<heed_view>(v); }
inline heed_mutable_view view(const MutableView& v) { return number_view<heed_mutable_view>(v); }
inline heed_bool_view view(const BoolView& v) {
  return {v.data, shape(v.shape), strides(v.stride), HEED_LAYOUT_STRIDED, static_cast<heed_device>(v.device)};
}
template <class AnyView>
auto view(const Optional<AnyView>& v) {
  return v ? view(*v) : decltype(view(*v)){};
}
inline heed_int64s list(std::span<const std::int64_t> numbers) { return {numbers.data(), numbers.size()}; }

// One function per mask, so that a mask which C lacks does not compile here.
struct MakeMask {
  heed_mask made{};

  static heed_align align(std::optional<Align> a) {
    return !a ? 0 : *a == Align::starts ? HEED_ALIGN_STARTS : HEED_ALIGN_ENDS;
  }
  void operator()(const Causal& m) {
    made.kind = HEED_MASK_CAUSAL;
    made.align = align(m.align);
  }
  void operator()(const Window& m) {
    made.kind = HEED_MASK_WINDOW;
    made.align = align(m.align);
    made.left = m.left;
    made.right = m.right;
    made.front = m.front;
  }
  void operator()(const KeyLengths& m) {
    made.kind = HEED_MASK_KEY_LENGTHS;
    made.valid = {m.valid.data(), m.valid.size()};
  }
  void operator()(const Document& m) {
    made.kind = HEED_MASK_DOCUMENT;
    made.align = align(m.align);
    made.ids = {m.ids.data(), m.ids.size()};
    made.query_ids = {m.query_ids.data(), m.query_ids.size()};
  }
  void operator()(const Keep& m) {
    made.kind = HEED_MASK_KEEP;
    made.where = view(m.where);
  }
  void operator()(const Hide& m) {
    made.kind = HEED_MASK_HIDE;
    made.where = view(m.where);
  }
  void operator()(const Tree& m) {
    made.kind = HEED_MASK_TREE;
    made.where = view(m.where);
  }
};

inline heed_outputs outputs(const Outputs& from) {
  heed_outputs made{};
  made.size = sizeof made;
  made.out = view(from.out);
  made.weights = view(from.weights);
  made.log_sum_exp = view(from.log_sum_exp);
  made.scores.into = view(from.scores.into);
  made.scores.stage = static_cast<heed_stage>(from.scores.stage);
  return made;
}

inline heed_saved saved(const Saved& from) {
  return {sizeof(heed_saved), view(from.out), view(from.log_sum_exp)};
}

inline heed_gradients gradients(const Gradients& from) {
  heed_gradients made{};
  made.size = sizeof made;
  made.out = view(from.out);
  made.log_sum_exp = view(from.log_sum_exp);
  made.q = view(from.q);
  made.k = view(from.k);
  made.v = view(from.v);
  made.bias = view(from.bias);
  made.sink = view(from.sink);
  made.accumulate = from.accumulate ? 1 : 0;
  return made;
}

// A number that a float holds in the field of floats, any other in that of doubles.
inline void set(double number, float& f32, double& f64) {
  const auto shortened = static_cast<float>(number);
  if (shortened == number)
    f32 = shortened;
  else
    f64 = number;
}

// Owns the list of masks that its options point to.
struct Choices {
  std::vector<heed_mask> masks{};
  std::string kernel{};
  heed_options options{};

  explicit Choices(const Options& from) : kernel(from.kernel) {
    for (const Mask& mask : from.masks) {
      MakeMask make;
      std::visit(make, mask);
      masks.push_back(make.made);
    }
    options.size = sizeof options;
    options.masks = {masks.data(), masks.size(), sizeof(heed_mask)};
    options.bias = view(from.bias);
    options.sink = view(from.sink);
    if (from.alibi) {
      options.alibi_slopes = {from.alibi->slopes.data(), from.alibi->slopes.size()};
      options.alibi_align = MakeMask::align(from.alibi->align);
    }
    options.has_scale = from.scale ? 1 : 0;
    set(from.scale.value_or(0), options.scale, options.scale_f64);
    set(from.softcap.value_or(0), options.softcap, options.softcap_f64);
    options.head_map = static_cast<heed_head_map>(from.head_map);
    if (from.dropout) {
      options.dropout.seed = from.dropout->seed;
      set(from.dropout->drop_probability, options.dropout.drop_probability, options.drop_probability_f64);
    }
    options.kernel = kernel.empty() ? nullptr : kernel.c_str();
    options.stream = from.stream;
  }
  Choices(const Choices&) = delete;
  Choices& operator=(const Choices&) = delete;
};

// A view that C++ has not been given has extents of 1 and no data; that of C is all zeros.
inline heed_inputs inputs(const Inputs& from, const heed_cache* cache = nullptr) {
  heed_inputs made{};
  made.size = sizeof made;
  made.q = view(from.q);
  if (!cache || from.k.data) made.k = view(from.k);
  if (!cache || from.v.data) made.v = view(from.v);
  made.cache = cache;
  made.sequences = list(from.sequences);
  made.query_starts = list(from.query_starts);
  made.key_starts = list(from.key_starts);
  made.query_counts = list(from.query_counts);
  return made;
}

}  // namespace heed::in_c
