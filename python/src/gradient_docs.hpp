// SPDX-License-Identifier: Apache-2.0
// Signatures and docstrings of the backward pass. The examples in them are run by the tests.
#pragma once

namespace heed::python {

constexpr const char* attention_backward_begin =
    "attention_backward(out_gradient: ArrayT, q: ArrayT, k: ArrayT, v: ArrayT, out: ArrayT, lse: ArrayT, *, "
    "lse_gradient: ArrayT | None = None, by: typing.Sequence[typing.Literal['q', 'k', 'v', 'bias', 'sink']] "
    "= "
    "('q', 'k', 'v'), into: typing.Sequence[ArrayT] | None = None";

constexpr const char* attention_backward_doc =
    R"(The gradients of a loss by q, k and v, from its gradient by what attention() returned.

out and lse are those of attention(q, k, v, ..., return_lse=True) with the same arguments, out_gradient the gradient of the
loss by out, lse_gradient that by lse, where it has one. All other keywords are those of attention(), the seed of a dropout
and the layout among them. Returns a tuple with the gradients by the arguments that `by` names, always in the order q, k, v, bias, sink; each
has the shape and the element type of its argument, so that of a bias that broadcasts is the sum over all that share it. `into`
has arrays to write those by q, k and v to, of any strides; all other gradients, or without it all, come in new and packed arrays.

Memory grows with the lengths, never with queries times keys. Neither threads nor what else is asked for changes a bit.
kernel forces one of backward_kernel_names().

>>> import numpy, heed
>>> q = numpy.ones((2, 3, 4), numpy.float32)
>>> k = v = numpy.arange(40, dtype=numpy.float32).reshape(2, 5, 4) / 40
>>> out, lse = heed.attention(q, k, v, return_lse=True)
>>> dq, dk, dv = heed.attention_backward(numpy.ones_like(out), q, k, v, out, lse)
>>> dq.shape, dk.shape, float(dv.sum().round(3))
((2, 3, 4), (2, 5, 4), 24.0)
)";

constexpr const char* backward_kernel_names_doc =
    R"(Every kernel for gradients this machine can run, in the order they are tried.

>>> import heed
>>> heed.backward_kernel_names()[-1]
'reference'
)";

}  // namespace heed::python
