"""The thread that owns the model: what touches sequences, caches or tensors happens on it and nowhere else."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

Command_contra = TypeVar("Command_contra", contravariant=True)
Command = TypeVar("Command")

_log = logging.getLogger(__name__)

_IDLE_SECONDS = 1.0
"""An idle thread wakes up so often to keep its heartbeat fresh."""


class Engine(Protocol[Command_contra]):
    """What the thread drives."""

    def handle(self, commands: Sequence[Command_contra]) -> None:
        """Take note of commands that arrived, in order; refusals are answered here."""

    def step(self) -> bool:
        """Do one batch of work and answer it. Returns whether there is more to do now."""

    @property
    def patience_seconds(self) -> float:
        """How long it pays to wait for further commands before the next step; 0: not at all."""


class EngineThread(Generic[Command]):
    """Runs an engine: takes all commands that have arrived, and as many more as it has patience for; does one step; and
    again. Sleeps if there is nothing to do.

    An exception out of the engine is a bug or a broken device. It is logged, kept in `failure`, and the thread ends:
    a service must not go on with a model in an unknown state.
    """

    def __init__(self, engine: Engine[Command], name: str) -> None:
        self._engine = engine
        self._inbox: queue.SimpleQueue[tuple[tuple[Command, ...], int, int] | None] = queue.SimpleQueue()
        self._counting = threading.Lock()
        self._num_in = self._num_bytes_in = 0
        self._num_out = self._num_bytes_out = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopping = threading.Event()
        self._watchers: set[Callable[[], None]] = set()
        self.failure: BaseException | None = None
        self.heartbeat = time.monotonic()
        """When the thread last began a step or was idle; monotonic seconds."""

    def start(self) -> None:
        """Begin to run; once."""
        self._thread.start()

    def submit(self, *commands: Command, weight: int | None = None, num_bytes: int = 0) -> None:
        """Hand over commands, from any thread, to be taken all at once.

        Args:
            commands: in their order.
            weight: as how many they count; None: as many as they are.
            num_bytes: of memory that wait with them.
        """
        weight = len(commands) if weight is None else weight
        with self._counting:
            self._num_in += weight
            self._num_bytes_in += num_bytes
        self._inbox.put((commands, weight, num_bytes))

    @contextlib.contextmanager
    def watched(self, on_failure: Callable[[], None]) -> Iterator[None]:
        """While the block runs, a failure of the thread calls `on_failure`, on the thread; one before it, at once."""
        self._watchers.add(on_failure)
        if self.failure is not None:
            on_failure()
        try:
            yield
        finally:
            self._watchers.discard(on_failure)

    @property
    def num_watchers(self) -> int:
        """How many watch it now."""
        return len(self._watchers)

    @property
    def backlog(self) -> int:
        """Weight of the commands that wait to be taken; approximate."""
        return self._num_in - self._num_out

    @property
    def backlog_bytes(self) -> int:
        """Memory that they hold; approximate."""
        return self._num_bytes_in - self._num_bytes_out

    def stop(self, timeout: float) -> bool:
        """Let the step in progress finish, then end the thread. Blocks up to `timeout` seconds; False: it is stuck."""
        self._stopping.set()
        self._inbox.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        more = False
        try:
            while not self._stopping.is_set():
                self.heartbeat = time.monotonic()
                self._handle(self._take(0.0 if more else _IDLE_SECONDS))
                while (patience_seconds := self._engine.patience_seconds) > 0.0:
                    self._handle(self._take(patience_seconds))
                more = self._engine.step()
        except Exception as error:  # noqa: BLE001 - whatever it is, the owner of the thread must learn of it
            _log.exception("the engine failed")
            self.failure = error
            for watcher in list(self._watchers):
                watcher()

    def _handle(self, commands: list[Command]) -> None:
        if commands:
            self._engine.handle(commands)

    def _take(self, patience_seconds: float) -> list[Command]:
        """All commands in the inbox; if there is none, the first one that comes within so many seconds."""
        commands: list[Command] = []
        try:
            while True:
                taken = self._inbox.get(block=patience_seconds > 0, timeout=patience_seconds or None)
                if taken is not None:
                    part, weight, num_bytes = taken
                    commands.extend(part)
                    self._num_out += weight
                    self._num_bytes_out += num_bytes
                patience_seconds = 0.0
        except queue.Empty:
            return commands
