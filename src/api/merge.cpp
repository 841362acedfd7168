// SPDX-License-Identifier: Apache-2.0
// merge(): what is refused of two results, and who joins them.
#include "backend/backend.hpp"
#include "heed/attention.hpp"
#include "refusal/refusal.hpp"

namespace HEED_NAMESPACE {
namespace {

Error cannot_merge(const char* name) {
  return refusal(Error::unsupported, name,
                 ": weights and scores are over different keys and cannot be merged");
}

void check_side(const char* name, const Results& side) {
  const std::string out = std::string(name) + ".out", lse = std::string(name) + ".log_sum_exp";
  check_argument({out.c_str(), side.out, {.types = Rule::any_or_f64}});
  if (!side.log_sum_exp)
    throw refusal(Error::shape, lse.c_str(), ": not given; merge needs it to weigh the two results");
  check_argument({lse.c_str(), *side.log_sum_exp, {.types = Rule::any_or_f64}});
  if (side.log_sum_exp->dtype != DType::f32 && side.log_sum_exp->dtype != DType::f64)
    throw refusal(Error::dtype, lse.c_str(), ": ", name_of(side.log_sum_exp->dtype),
                  " is neither f32 nor f64");
  Shape rows = side.out.shape;
  rows.dim = 1;
  if (!(side.log_sum_exp->shape == rows))
    throw refusal(Error::shape, lse.c_str(), ": ", in_words(side.log_sum_exp->shape).c_str(), " is not ",
                  in_words(rows).c_str(), ", one number per row of ", out.c_str());
  if (side.weights) throw cannot_merge(name);
}

}  // namespace

void merge(const Outputs& into, const Results& other) {
  const Backend& backend = backend_of("into.out", into.out.device);
  check_side("into", into);
  if (into.scores.into) throw cannot_merge("into");
  check_side("other", other);
  if (!(into.out.shape == other.out.shape))
    throw refusal(Error::shape, "other.out: ", in_words(other.out.shape).c_str(),
                  " is not the shape of into.out: ", in_words(into.out.shape).c_str());
  Arguments arguments;
  arguments.add("into.log_sum_exp", *into.log_sum_exp, {.use = Rule::written});
  arguments.add("into.out", into.out, {.use = Rule::written});
  arguments.add("other.out", other.out);
  arguments.add("other.log_sum_exp", *other.log_sum_exp);
  check_overlap(arguments.all());
  check_devices(arguments.all(), "into.out.device", into.out.device);
  if (into.out.device != Device::cpu)
    for (const Argument& a : arguments.all())
      if (*a.dtype == DType::f64)
        throw refusal(Error::dtype, a.name, ".dtype: f64, which is merged on the CPU alone");
  backend.merge(into, other);
}

}  // namespace HEED_NAMESPACE
