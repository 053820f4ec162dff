"""An engine that echoes, on its thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from specdec.engine.stream import Arrival
from specdec.engine.thread import EngineThread
from specdec.v1.draft_pb2 import DraftEvent
from tests.specdec.engine.streaming import SECONDS, Echo


@pytest.fixture
def engine() -> Echo:
    return Echo()


@pytest.fixture
def thread(engine: Echo) -> Iterator[EngineThread[Arrival[int, DraftEvent]]]:
    thread = EngineThread(engine, "test-engine")
    thread.start()
    yield thread
    engine.go_on.set()
    assert thread.stop(SECONDS)
