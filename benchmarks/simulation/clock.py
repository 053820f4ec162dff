"""Waiting precisely."""

from __future__ import annotations

import ctypes
import sys
import time

_PR_SET_TIMERSLACK = 29
_SWITCH_SECONDS = 0.0005


def sharpen_timers() -> None:
    """Let threads started from now on wake when they asked to. Call it on the main thread, first.

    Linux may let a sleep end 50 us late to save wake-ups, and a thread that wakes may wait 5 ms for Python's lock while
    another computes.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    sys.setswitchinterval(_SWITCH_SECONDS)


def wait_until(deadline: float) -> None:
    """Sleep until a time of `time.perf_counter`; not at all if it has passed."""
    while (left := deadline - time.perf_counter()) > 0:
        time.sleep(left)
