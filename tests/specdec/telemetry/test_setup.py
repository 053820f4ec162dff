import asyncio
import json
import os
import socket
import sys
import time
from typing import Any

import pytest

from specdec.telemetry import names
from tests.otlp_receiver import OtlpReceiver
from tests.specdec.telemetry.emitter import NUM_LINKS

pytestmark = pytest.mark.timeout(60)


async def emit(num_spans: int, emit_seconds: float, variables: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Run the emitter to its end; what it reports, with its whole life as `life_seconds`, and its log lines."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-W", "error", "-m", "tests.specdec.telemetry.emitter", str(num_spans), str(emit_seconds)),
        env={**environment, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, log = await asyncio.wait_for(process.communicate(), 50)
    lines = log.decode().splitlines()
    assert process.returncode == 0, lines[-1]
    return {**json.loads(output), "life_seconds": time.monotonic() - began}, lines


async def test_a_collector_gets_spans_and_metrics() -> None:
    async with OtlpReceiver() as receiver:
        report, lines = await emit(NUM_LINKS + 10, 0.0, receiver.environment)
        assert report["is_on"]
        assert lines == []
        windows = receiver.spans_named("target.window")
        (forward,) = receiver.spans_named("target.forward")
        assert len(windows) == NUM_LINKS + 10
        assert set(forward.linked_span_ids) == {window.span_id for window in windows[-NUM_LINKS:]}
        assert {span.service for span in receiver.spans} == {"specdec-emitter"}
        assert receiver.total(names.FORWARD_ROW_COUNT.name, specdec__service="target") == 5 * (NUM_LINKS + 10)
        assert receiver.undeclared() == set()


async def test_metrics_come_while_the_process_runs() -> None:
    async with OtlpReceiver() as receiver:
        running = asyncio.create_task(emit(20, 3.0, receiver.environment))
        await receiver.wait_until(lambda: receiver.total(names.FORWARD_ROW_COUNT.name) > 0)
        await receiver.wait_for_spans(lambda spans: len(spans) > 1)
        assert not running.done()
        await running


async def test_the_operator_names_the_service() -> None:
    async with OtlpReceiver() as receiver:
        await emit(1, 0.0, {**receiver.environment, "OTEL_SERVICE_NAME": "canary"})
        assert {span.service for span in receiver.spans} == {"canary"}


async def test_without_a_collector_the_sdk_is_not_even_imported() -> None:
    report, lines = await emit(5, 0.0, {})
    assert not report["is_on"]
    assert not report["has_sdk"]
    assert lines == []


async def test_a_variable_that_only_the_sdk_knows_is_named() -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "many"}
    with pytest.raises(AssertionError, match=r"TelemetrySettingError: .*OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"):
        await emit(1, 0.0, variables)


@pytest.mark.parametrize("collector", ["down", "silent"])
async def test_a_collector_that_does_not_answer_costs_nothing(collector: str) -> None:
    with socket.socket() as peer:
        peer.bind(("127.0.0.1", 0))
        if collector == "silent":
            peer.listen()
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{peer.getsockname()[1]}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_BSP_MAX_QUEUE_SIZE": "100",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "50",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        }
        report, lines = await emit(2000, 4.0, variables)
    assert report["slowest_seconds"] < 0.2
    assert report["emit_seconds"] < 8
    assert report["shutdown_seconds"] < 2
    assert report["life_seconds"] < report["emit_seconds"] + report["shutdown_seconds"] + 3
    # One line a minute from each of the exporters, the batch processor and the metric reader.
    assert 1 <= len(lines) <= 6, lines
    assert not any("Traceback" in line for line in lines)
