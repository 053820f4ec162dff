"""Levels that a draft service tells: back to nothing when nobody is there."""

from __future__ import annotations

import pytest

from specdec.telemetry import names
from specdec.telemetry.metrics import EngineMetrics
from tests.draft_service.driving import Client, ModelEngine
from tests.specdec.telemetry.recorder import Recorder


def test_an_idle_service_has_no_queue_and_uses_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    metrics = EngineMetrics("draft", recorder.meter)
    engine = ModelEngine()
    monkeypatch.setattr(engine.engine, "_metrics", metrics)
    monkeypatch.setattr(engine.drafter, "_metrics", metrics)
    client = Client(engine, range(2, 42))
    client.open(4)
    assert recorder.values(names.KV_BLOCKS)["draft", "used"] > 0
    client.close()
    assert not engine.engine.step()
    assert recorder.values(names.QUEUE_LENGTH) == {("draft",): 0}
    assert recorder.values(names.KV_BLOCKS)["draft", "used"] == 0
    assert recorder.values(names.OPEN_SEQUENCES) == {("draft",): 0}
