# SPDX-License-Identifier: Apache-2.0
"""What heed.plan returns."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Verdict(NamedTuple):
    """What becomes of one kernel when a call is planned.

    >>> import numpy, heed
    >>> q = numpy.zeros((4, 6, 16), numpy.float32)
    >>> heed.plan(q, q, q, kernel="reference")[-1]
    Verdict(kernel='reference', choice='taken', reason='')
    """

    kernel: str
    choice: Literal["taken", "refused", "not needed"]
    reason: str  # why it is refused
