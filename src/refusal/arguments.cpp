// SPDX-License-Identifier: Apache-2.0
#include "refusal/arguments.hpp"

#include "refusal/refusal.hpp"

namespace heed::refusing {
namespace {

const char* name_of(Extent e) {
  switch (e) {
    case Extent::one:
      return "1";
    case Extent::batch:
    case Extent::sequences:
      return "batch";
    case Extent::heads:
      return "heads";
    case Extent::queries:
    case Extent::drafted:
      return "queries";
    case Extent::keys:
      return "keys";
    case Extent::value_dim:
      return "value_dim";
    case Extent::model_dim:
      return "model_dim";
  }
  return "unknown";
}

// "(batch, heads, queries, keys)"
std::string in_words(const std::array<Extent, 4>& a) {
  std::string words;
  for (const Extent e : a) words += std::string(words.empty() ? "(" : ", ") + name_of(e);
  return words + ')';
}

bool broadcasts(const Shape& shape, const Shape& target) {
  const Axes extent = axes(shape), wanted = axes(target);
  for (std::size_t i = 0; i < extent.size(); ++i)
    if (extent[i] != wanted[i] && extent[i] != 1) return false;
  return true;
}

bool may_be(DType found, Rule::Types types, DType of_q) {
  switch (types) {
    case Rule::any:
      return true;
    case Rule::of_q:
      return found == of_q;
    case Rule::of_q_or_f32:
      return found == of_q || found == DType::f32;
    case Rule::f32:
      return found == DType::f32;
  }
  return false;
}

[[gnu::cold]] Error wrong_dtype(const Argument& a, DType of_q) {
  const char *const found = name_of(*a.dtype), *const wanted = name_of(of_q);
  if (a.rule.types == Rule::f32) return refusal(Error::dtype, a.name, ".dtype: ", found, " is not f32");
  if (a.rule.types == Rule::of_q)
    return refusal(Error::dtype, a.name, ".dtype: ", found, " is not q.dtype: ", wanted);
  return refusal(Error::dtype, a.name, ".dtype: ", found, " is neither q.dtype: ", wanted, " nor f32");
}

}  // namespace

void check_alone(std::span<const Argument> arguments) {
  for (const Argument& a : arguments) check_argument(a);
}

void check_extents(const Argument& a, const Extents& extents) {
  if (a.rule.fit == Rule::freely) return;
  const Shape wanted = extents.shape(a.rule.axes);
  if (a.rule.fit == Rule::exactly && a.shape != wanted)
    throw refusal(Error::shape, a.name, ".shape: ", a.shape, " is not ", in_words(a.rule.axes), ": ", wanted);
  if (a.rule.fit == Rule::by_broadcasting && !broadcasts(a.shape, wanted))
    throw refusal(Error::shape, a.name, ".shape: ", a.shape, " does not broadcast to ", in_words(a.rule.axes),
                  ": ", wanted);
}

void check_extents(std::span<const Argument> arguments, const Extents& extents) {
  for (const Argument& a : arguments) check_extents(a, extents);
}

void check_dtypes(std::span<const Argument> arguments, DType of_q) {
  for (const Argument& a : arguments)
    if (a.dtype && !may_be(*a.dtype, a.rule.types, of_q)) throw wrong_dtype(a, of_q);
}

void check_devices(std::span<const Argument> arguments, const char* name, Device wanted) {
  for (const Argument& a : arguments)
    if ((a.dtype || a.device != Device::cpu) && a.device != wanted) check_device(a, name, wanted);
}

void check_overlap(std::span<const Argument> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const Argument& output = arguments[i];
    if (output.rule.use != Rule::written) continue;
    check_own_places(output);
    for (const Argument& earlier : arguments.first(i))
      if (earlier.rule.use == Rule::written) check_apart(output, earlier);
    for (const Argument& input : arguments)
      if (input.rule.use == Rule::read) check_apart(output, input);
  }
}

}  // namespace heed::refusing
