"""Spans of rehearsed pods come through a collector of others as they are, and it may come and go."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import secrets
from pathlib import Path

import pytest

from specdec.cli.child_process import ChildProcess
from specdec.cli.ports import choose_ports
from specdec.serving.channel import open_channel
from specdec.v1 import generation_pb2, generation_pb2_grpc, sampling_pb2
from tests.k8s.conftest import Fresh
from tests.k8s.documents import SERVICES
from tests.k8s.rehearsal.cluster import Cluster
from tests.k8s.rendering import Combination
from tests.otlp_receiver import OtlpReceiver

pytestmark = pytest.mark.collector

START_SECONDS = 90.0
NUM_REQUESTS = 4


def collector(port: int, http_port: int, behind: str) -> ChildProcess:
    """rotel, which receives on a port and sends on to an address."""
    found = importlib.util.find_spec("rotel")
    assert found is not None, "rotel is missing; run `pip install --no-deps rotel==0.0.1a15`"
    assert found.origin is not None
    program = Path(found.origin).with_name("rotel-agent")
    assert os.access(program, os.X_OK), f"make {program} executable"
    flags = [f"--otlp-grpc-endpoint=127.0.0.1:{port}", f"--otlp-http-endpoint=127.0.0.1:{http_port}"]
    flags += ["--exporter=otlp", "--otlp-exporter-protocol=grpc", f"--otlp-exporter-endpoint={behind}"]
    return ChildProcess("rotel", [str(program), "start", *flags])


async def generate(address: str, seed: int) -> str:
    """Ask for something with a trace of its own; gives the trace's id."""
    trace_id = secrets.token_hex(16)
    request = generation_pb2.GenerateRequest(
        text="abcdefgh" * 3,
        max_new_tokens=12,
        num_draft_tokens=2,
        sampling=sampling_pb2.SamplingParams(temperature=0.8, seed=seed),
    )
    async with open_channel(address, max_message_bytes=1 << 20) as channel:
        call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(
            request, metadata=(("traceparent", f"00-{trace_id}-{secrets.token_hex(8)}-01"),), timeout=60
        )
        async for _ in call:
            pass
    return trace_id


async def test_spans_come_through_a_collector(fresh: Fresh, tmp_path: Path, changes: dict[str, dict[str, str]]) -> None:
    (port, http_port) = choose_ports([("127.0.0.1", 0), ("127.0.0.1", 0)])
    here = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    given = {component: {**changes.get(component, {}), **here} for component in SERVICES}
    async with (
        OtlpReceiver() as receiver,
        Cluster(fresh(Combination("overlays/cpu", ("otel-collector",))), tmp_path, given) as cluster,
    ):
        rotel = collector(port, http_port, receiver.environment["OTEL_EXPORTER_OTLP_ENDPOINT"])
        try:
            pods = [pod for component in SERVICES for pod in await cluster.scale(component, 1)]
            await asyncio.gather(*(pod.ready(START_SECONDS) for pod in pods))
            address = f"{pods[-1].address}:{pods[-1].port('grpc')}"
            # Nobody listens yet, and nobody waits for that.
            await generate(address, 0)
            await rotel.start()
            await asyncio.sleep(1)
            traces = {await generate(address, seed) for seed in range(NUM_REQUESTS)}

            def services_of(trace_id: str) -> set[str]:
                return {span.service for span in receiver.spans if span.trace_id == trace_id}

            every_service = {f"specdec-{component}" for component in SERVICES}
            await receiver.wait_until(lambda: all(services_of(trace) == every_service for trace in traces), 30)
            await receiver.wait_for_spans(
                lambda spans: traces <= {span.trace_id for span in spans if span.name == "generate"}, 30
            )
            assert receiver.undeclared() == set()
            # A pass still links to the windows that it served.
            windows = {span.span_id for span in receiver.spans_named("target.window") if span.trace_id in traces}
            linked = {link for span in receiver.spans_named("target.forward") for link in span.linked_span_ids}
            assert windows
            assert windows <= linked
        finally:
            await rotel.stop(5)
        await asyncio.gather(*(cluster.scale(component, 0) for component in SERVICES))
