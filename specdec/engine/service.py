"""The part of the draft and the target service that is the same: load, run the engine, drain, stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Generic

from specdec.engine.load import LoadNews
from specdec.engine.sequences import CommandT, EventT, SequenceEngine, SequenceT
from specdec.engine.stream import Arrival
from specdec.engine.thread import EngineThread
from specdec.errors import UnavailableError
from specdec.serving.health import Health
from specdec.v1 import model_pb2

_log = logging.getLogger(__name__)
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_STUCK_SECONDS = 60.0
"""A step that takes so long is not slow, its device does not answer: peers had better go elsewhere."""
_LOST_SECONDS = 300.0
"""And after so long it never will."""


class EngineHost(Generic[CommandT, EventT, SequenceT]):
    """Runs an engine on its thread for a service, and keeps the service's health true to it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._engine: SequenceEngine[CommandT, EventT, SequenceT] | None = None
        self._thread: EngineThread[Arrival[CommandT, EventT]] | None = None
        self._failure_watch = contextlib.ExitStack()
        self._heartbeat_watch: asyncio.Task[None] | None = None

    def start(self, engine: SequenceEngine[CommandT, EventT, SequenceT], health: Health) -> None:
        """Run the engine from now on and report the service as serving. On the event loop."""
        loop = asyncio.get_running_loop()

        def report_failure() -> None:
            loop.call_soon_threadsafe(health.fail)

        self._engine = engine
        self._thread = EngineThread(engine, self._name)
        self._failure_watch.enter_context(self._thread.watched(report_failure))
        self._thread.start()
        health.set_serving(True)
        self._heartbeat_watch = asyncio.create_task(self._watch_heartbeat(self._thread, health))

    @property
    def num_sequences(self) -> int:
        """Sequences open now."""
        return self._engine.num_sequences if self._engine is not None else 0

    def load_news(self) -> LoadNews:
        """For one stream: how busy the service is."""
        return LoadNews(lambda: self._engine.load if self._engine is not None else model_pb2.Load())

    @property
    def thread(self) -> EngineThread[Arrival[CommandT, EventT]]:
        """The running thread.

        Raises:
            UnavailableError: the model is still loading, or the engine has failed.
        """
        if self._thread is None:
            raise UnavailableError(f"the {self._name} service is still loading its model; try again shortly")
        if self._thread.failure is not None:
            raise UnavailableError(f"the {self._name} service has failed and must be restarted; use another replica")
        return self._thread

    async def drain(self) -> None:
        """Refuse further sequences, and wait until those that are open have been closed."""
        if self._engine is None:
            return
        self._engine.is_draining = True
        while self._engine.num_sequences:  # noqa: ASYNC110 - bounded by the host; the engine stays free of asyncio
            await asyncio.sleep(0.05)

    async def _watch_heartbeat(self, thread: EngineThread[Arrival[CommandT, EventT]], health: Health) -> None:
        """Not ready while a step does not come back, and for good if it has not for long."""
        while (silent_seconds := time.monotonic() - thread.heartbeat) < _LOST_SECONDS:
            is_stuck = silent_seconds > _STUCK_SECONDS
            if is_stuck and health.is_serving:
                _log.error("a step of the engine has taken %.0f s and has not come back", silent_seconds)
            health.set_serving(not is_stuck)
            await asyncio.sleep(_LOOK_SECONDS)
        health.fail()

    async def close(self) -> None:
        """End the thread once its step in progress is done."""
        if self._heartbeat_watch is not None:
            self._heartbeat_watch.cancel()
            await asyncio.gather(self._heartbeat_watch, return_exceptions=True)
        self._failure_watch.close()
        if self._thread is not None and not await asyncio.to_thread(self._thread.stop, _STOP_SECONDS):
            _log.warning("the engine did not finish its step within %.0f s", _STOP_SECONDS)
