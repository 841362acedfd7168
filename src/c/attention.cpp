// SPDX-License-Identifier: Apache-2.0
// Attention, its explanation and its merge, as c.h has them.
#include "heed/attention.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

#include "c/call.hpp"
#include "c/status.hpp"
#include "c/structs.hpp"

namespace heed::c {
namespace {

// Memory that heed_free gives back.
char* owned_copy(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (!copy) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

Results to_results(const heed_results& r) {
  Results results{.out = to_view("out", r.out)};
  results.weights = to_optional("weights", r.weights);
  results.log_sum_exp = to_optional("log_sum_exp", r.log_sum_exp);
  return results;
}

}  // namespace
}  // namespace heed::c

using namespace heed::c;

heed_status heed_attention(const heed_inputs* given_inputs, const heed_outputs* given_outputs,
                           const heed_options* given_options) {
  return status_of([&] {
    const heed::Inputs inputs = to_inputs(given_inputs);
    const heed::Outputs outputs = to_outputs(read_known("outputs", given_outputs));
    const heed::Options options = to_options(given_options);
    heed::attention(inputs, outputs, options);
  });
}

heed_status heed_explain(const heed_inputs* given_inputs, const heed_outputs* given_outputs,
                         const heed_options* given_options, char** text) {
  return status_of([&] {
    check_pointer("text", text);
    const heed::Inputs inputs = to_inputs(given_inputs);
    const heed::Outputs outputs = to_outputs(read_known("outputs", given_outputs));
    const heed::Options options = to_options(given_options);
    *text = owned_copy(heed::explain(inputs, outputs, options));
  });
}

heed_status heed_merge(const heed_outputs* given_into, const heed_results* given_other) {
  return status_of([&] {
    const heed_outputs known_into = read_known("into", given_into);
    const heed_results known_other = read_known("other", given_other);
    const heed::Outputs into = qualified([&] { return to_outputs(known_into); }, "into.");
    const heed::Results other = qualified([&] { return to_results(known_other); }, "other.");
    heed::merge(into, other);
  });
}
