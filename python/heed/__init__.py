# SPDX-License-Identifier: Apache-2.0
"""heed: attention, exact to a written specification, on NumPy, PyTorch and JAX arrays alike.

>>> import numpy, heed
>>> q = k = v = numpy.ones((1, 8, 16, 64), numpy.float32)     # (batch, heads, length, dim)
>>> heed.attention(q, k, v, causal=True).shape
(1, 8, 16, 64)
"""

from heed._heed import (
    Error,
    KindError,
    __version__,
    attention,
    explain,
    get_num_threads,
    kernel_names,
    merge,
    scaled_dot_product_attention,
    set_num_threads,
)

__all__ = [
    "Error",
    "KindError",
    "__version__",
    "attention",
    "explain",
    "get_num_threads",
    "kernel_names",
    "merge",
    "scaled_dot_product_attention",
    "set_num_threads",
]
