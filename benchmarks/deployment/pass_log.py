"""A record of every forward pass, written by a service and read by the benchmark that started it."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_FORMAT = struct.Struct("<7d2q")


class Pass(NamedTuple):
    """A forward pass. Times are of `time.perf_counter`, which on Linux is one clock for all processes of a machine."""

    started: float
    """When it had the device."""
    ended: float
    computing_seconds: float
    """Real computing; what is left was waited, in a simulation."""
    planned_seconds: float
    """What the simulated device takes; 0: no simulation."""
    forward_cpu_seconds: float
    """CPU time of the engine's thread in the pass: packing the batch, and the model."""
    model_cpu_seconds: float
    """CPU time of it in the model alone."""
    meter_cpu_seconds: float
    """CPU time of it in measuring the pass before this one, which no service without a meter would take."""
    num_sequences: int
    num_rows: int

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.ended - self.started


class PassLog:
    """Appends passes to a file; made by one thread, used by one."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, entry: Pass) -> None:
        """Append a pass. One system call, some microseconds."""
        os.write(self._descriptor, _FORMAT.pack(*entry))


class PassReader:
    """Reads a log while it grows.

    Args:
        path: need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num_read_bytes = 0
        self._passes: list[Pass] = []

    def between(self, began: float, ended: float) -> list[Pass]:
        """Passes logged so far that overlap the time given. What ended before `began` is not kept for later calls."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._num_read_bytes)
                data = file.read()
            data = data[: len(data) - len(data) % _FORMAT.size]
            self._num_read_bytes += len(data)
            self._passes += [Pass._make(values) for values in _FORMAT.iter_unpack(data)]
        self._passes = [entry for entry in self._passes if entry.ended > began]
        return [entry for entry in self._passes if entry.started < ended]


def busy_seconds(passes: Sequence[Pass], began: float, ended: float) -> float:
    """How much of a time was taken by passes, none of which overlap each other."""
    return sum(max(0.0, min(entry.ended, ended) - max(entry.started, began)) for entry in passes)
