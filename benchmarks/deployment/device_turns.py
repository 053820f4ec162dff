"""Several models on one device: one forward pass at a time."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class DeviceTurns:
    """A lock that is had in the order in which it was asked for, so that neither model starves the other.

    `threading.Lock` goes to whoever is awake, which is the thread that has just let go of it.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        with self._guard:
            if not self._is_taken:
                self._is_taken = True
                return
            turn = threading.Event()
            self._waiting.append(turn)
        turn.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().set()  # still taken, by the next
            else:
                self._is_taken = False
