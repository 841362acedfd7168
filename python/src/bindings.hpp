// SPDX-License-Identifier: Apache-2.0
// What the module is made of: one function per source file that defines names.
#pragma once
#include <nanobind/nanobind.h>

namespace heed::python {

void define_attention(nanobind::module_& m);
void define_keywords(nanobind::module_& m);
void define_gradient(nanobind::module_& m);
void define_scaled_dot_product_attention(nanobind::module_& m);
void define_masks(nanobind::module_& m);
void define_rotary(nanobind::module_& m);
void define_cache(nanobind::module_& m);
void define_layer(nanobind::module_& m);
void define_lent_layer(nanobind::module_& m);
void define_listeners(nanobind::module_& m);
void define_machine(nanobind::module_& m);
void define_openmp(nanobind::module_& m);
void define_distributed(nanobind::module_& m);
void define_distributed_layer(nanobind::module_& m);
void define_view(nanobind::module_& m);
void define_jax(nanobind::module_& m);
void define_functions(nanobind::module_& m);

// Comes after all definitions: calls that fit none of their signatures get a sentence of heed.
void answer_mismatches(nanobind::module_& m);

}  // namespace heed::python
