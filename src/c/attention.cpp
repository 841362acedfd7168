// SPDX-License-Identifier: Apache-2.0
// Attention, its gradients, what explains them, and merge, as c.h has them.
#include "heed/attention.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

#include "c/call.hpp"
#include "c/status.hpp"
#include "c/structs.hpp"
#include "heed/gradient.hpp"

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

Saved to_saved(const heed_saved* given) {
  const heed_saved s = read_known("saved", given);
  return {.out = to_view("saved.out", s.out), .log_sum_exp = to_view("saved.log_sum_exp", s.log_sum_exp)};
}

Gradients to_gradients(const heed_gradients* given) {
  const heed_gradients g = read_known("gradients", given);
  check_reserved("gradients", g.reserved);
  return {.out = to_view("gradients.out", g.out),
          .log_sum_exp = to_optional("gradients.log_sum_exp", g.log_sum_exp),
          .q = to_optional("gradients.q", g.q),
          .k = to_optional("gradients.k", g.k),
          .v = to_optional("gradients.v", g.v),
          .bias = to_optional("gradients.bias", g.bias),
          .sink = to_optional("gradients.sink", g.sink),
          .accumulate = to_flag("gradients.accumulate", g.accumulate)};
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

heed_status heed_attention_backward(const heed_inputs* given_inputs, const heed_saved* given_saved,
                                    const heed_gradients* given_gradients,
                                    const heed_options* given_options) {
  return status_of([&] {
    const heed::Inputs inputs = to_inputs(given_inputs);
    const heed::Saved saved = to_saved(given_saved);
    const heed::Gradients gradients = to_gradients(given_gradients);
    const heed::Options options = to_options(given_options);
    heed::attention_backward(inputs, saved, gradients, options);
  });
}

heed_status heed_explain_backward(const heed_inputs* given_inputs, const heed_saved* given_saved,
                                  const heed_gradients* given_gradients, const heed_options* given_options,
                                  char** text) {
  return status_of([&] {
    check_pointer("text", text);
    const heed::Inputs inputs = to_inputs(given_inputs);
    const heed::Saved saved = to_saved(given_saved);
    const heed::Gradients gradients = to_gradients(given_gradients);
    const heed::Options options = to_options(given_options);
    *text = owned_copy(heed::explain(inputs, saved, gradients, options));
  });
}
