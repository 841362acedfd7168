// SPDX-License-Identifier: Apache-2.0
// Whose threads heed's work runs on in a process that has PyTorch.
#pragma once

namespace heed::python {

// On PyTorch's from now on, and not in children that are forked from here; true if PyTorch is there and has
// an OpenMP runtime.
bool share_openmp_threads();

}  // namespace heed::python
