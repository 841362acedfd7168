# SPDX-License-Identifier: Apache-2.0
"""heed: attention, exact to a written specification, on NumPy, PyTorch and JAX arrays alike.

>>> import numpy, heed
>>> q = k = v = numpy.ones((1, 8, 16, 64), numpy.float32)     # (batch, heads, length, dim)
>>> heed.attention(q, k, v, causal=True).shape
(1, 8, 16, 64)

heed.torch, heed.jax, heed.onnx and heed.transformers are imported by name, so that none of those libraries is needed here.
"""

from heed import _heed
from heed._errors import Error, KindError
from heed._functions import public as _public
from heed._heed import AttentionLayer, KvCache, Rotary
from heed._heed import version as __version__
from heed._installation import configuration, show_config
from heed._picture import picture
from heed._showing import view
from heed._verdicts import Verdict

attention = _public(_heed.attention)
attention_backward = _public(_heed.attention_backward)
backward_kernel_names = _public(_heed.backward_kernel_names)
combine = _public(_heed.combine)
explain = _public(_heed.explain)
get_num_threads = _public(_heed.get_num_threads)
kernel_names = _public(_heed.kernel_names)
key_lengths = _public(_heed.key_lengths)
look_ahead_mask = _public(_heed.look_ahead_mask)
merge = _public(_heed.merge)
padding_mask = _public(_heed.padding_mask)
plan = _public(_heed.plan)
rotate = _public(_heed.rotate)
scaled_dot_product_attention = _public(_heed.scaled_dot_product_attention)
set_num_threads = _public(_heed.set_num_threads)

__all__ = [
    "AttentionLayer",
    "Error",
    "KindError",
    "KvCache",
    "Rotary",
    "Verdict",
    "__version__",
    "attention",
    "attention_backward",
    "backward_kernel_names",
    "combine",
    "configuration",
    "explain",
    "get_num_threads",
    "kernel_names",
    "key_lengths",
    "look_ahead_mask",
    "merge",
    "padding_mask",
    "picture",
    "plan",
    "rotate",
    "scaled_dot_product_attention",
    "set_num_threads",
    "show_config",
    "view",
]
