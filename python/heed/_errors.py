# SPDX-License-Identifier: Apache-2.0
"""The exceptions heed raises for bad input, before anything is written."""

from __future__ import annotations


class Error(ValueError, RuntimeError):
    """Bad input, a ValueError and, as PyTorch's functions raise, a RuntimeError: one sentence that names the argument, the rule and what was found.

    ``code`` is one of shape, dtype, device, value, ambiguous, overlap, unsupported, capacity, file, busy, rank.

    >>> import numpy, heed
    >>> q = numpy.zeros((1, 8, 4, 16), numpy.float32)
    >>> try:
    ...     heed.attention(q, q[:, :3], q[:, :3])
    ... except heed.Error as error:
    ...     print(error.code, "|", error)
    shape | k.heads: 3 does not divide q.heads: 8
    """

    __module__ = "heed"  # where it is found, and what a traceback shows
    code: str = "value"


class KindError(Error, TypeError):
    """An argument of the wrong kind: not an array, an element type heed does not compute in, another device.

    Both a heed.Error and a TypeError.

    >>> import numpy, heed
    >>> q = numpy.zeros((4, 16), int)
    >>> try:
    ...     heed.attention(q, q, q)
    ... except TypeError as error:
    ...     print(error)
    q.dtype: int64 is none of float32, float16, bfloat16; pass q.astype(np.float32), or q.float() of PyTorch
    """

    __module__ = "heed"
    code: str = "dtype"
