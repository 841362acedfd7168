# SPDX-License-Identifier: Apache-2.0
"""What a pickle of a cache or of a layer calls: functions that pickle finds by name."""

from __future__ import annotations

from typing import Any, TypeVar

from heed import _heed

T = TypeVar("T")


def restored_cache(cls: type[T], state: dict[str, Any]) -> T:
    """A cache out of what KvCache.__reduce__ told: the arrays of its file, and the device."""
    return _heed.restored_cache(cls, state)


def restored_layer(cls: type[T], state: dict[str, Any]) -> T:
    """A layer out of what AttentionLayer.__reduce__ told: its arguments, its weights, its mode."""
    return _heed.restored_layer(cls, state)
