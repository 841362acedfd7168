// SPDX-License-Identifier: Apache-2.0
// Who takes part in an operation of PyTorch's beside the function that is called.
#pragma once
#include "refusal.hpp"

namespace heed::python {

// A mode, a tracer, a transform of torch.func, the profiler or derivatives in forward mode.
bool is_pytorch_observed();

bool is_any_autocast_enabled();

// torch.Tensor or torch.nn.Parameter themselves.
bool is_tensor(nb::handle object);

// A subclass has a say in what is done with its tensors, and autograd records what is done with others.
bool takes_part(nb::handle object);

}  // namespace heed::python
