# SPDX-License-Identifier: Apache-2.0
"""Which exceptions are those of signal handlers: they may come out of any call into Python."""

from __future__ import annotations

import types


def _arguments_of(frame: types.FrameType) -> list[object]:
    """What a function was called with, as far as its names still say it."""
    code, held = frame.f_code, frame.f_locals
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04)  # *arguments
    arguments: list[object] = []
    for name in code.co_varnames[:count]:
        value = held.get(name)
        arguments += value if isinstance(value, tuple) else [value]
    return arguments


def was_raised_by_one(error: BaseException) -> bool:
    """KeyboardInterrupt, SystemExit, and what a handler of the program's own raised.

    Python hands a handler the frame that it interrupts, and lets it run there: no other function is given the frame it returns to.

    >>> was_raised_by_one(KeyboardInterrupt()), was_raised_by_one(RuntimeError())
    (True, False)
    """
    if not isinstance(error, Exception):
        return True
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if any(argument is frame.f_back for argument in _arguments_of(frame) if argument is not None):
            return True
        trace = trace.tb_next
    return False
