// SPDX-License-Identifier: Apache-2.0
// heed._heed, the compiled half of the Python package.
#include <nanobind/nanobind.h>
#include <nanobind/typing.h>

#include "bindings.hpp"
#include "refusal.hpp"
#include "result.hpp"

NB_MODULE(_heed, m) {
  m.doc() = "The compiled half of heed; import heed instead.";
  m.attr("ArrayT") = nanobind::type_var("ArrayT");
  nanobind::set_leak_warnings(false);  // what is alive when Python ends is no concern of the user
  heed::python::define_errors();
  heed::python::define_export(m);
  heed::python::define_attention(m);
  heed::python::define_keywords(m);
  heed::python::define_gradient(m);
  heed::python::define_scaled_dot_product_attention(m);
  heed::python::define_masks(m);
  heed::python::define_rotary(m);
  heed::python::define_cache(m);
  heed::python::define_layer(m);
  heed::python::define_lent_layer(m);
  heed::python::define_listeners(m);
  heed::python::define_machine(m);
  heed::python::define_openmp(m);
  heed::python::define_distributed(m);
  heed::python::define_distributed_layer(m);
  heed::python::define_view(m);
  heed::python::define_jax(m);
  heed::python::define_functions(m);
  heed::python::answer_mismatches(m);
}
