// SPDX-License-Identifier: Apache-2.0
// What is counted from a query's own position among the keys: causal, window, document and alibi.
#pragma once
#include "choices.hpp"

namespace heed::python {

void read_causal(Choices& choices, nb::handle object);
void read_window(Choices& choices, nb::handle object);
void read_document(Choices& choices, nb::handle object);
void read_query_document(Choices& choices, nb::handle object);
void read_alibi(Choices& choices, nb::handle object);

// Once all keywords are read: what has no anchor of its own shares the causal mask's.
void share_anchor(Choices& choices);

}  // namespace heed::python
