"""Metrics served to `specdec top` by services that there are none of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import grpc
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, generate_latest

from specdec.telemetry.metrics import EngineMetrics, OrchestratorMetrics, RoundTimes


class Emitting:
    """The project's own metrics, as one process has them; `text` is what Prometheus would fetch now."""

    def __init__(self, service_name: str) -> None:
        # Not the registry of all of the process: several of them must not meet there.
        self._registry = CollectorRegistry()
        reader = PrometheusMetricReader(scope_info_enabled=False, registry=self._registry)
        self._provider = MeterProvider(
            [reader], resource=Resource({"service.name": service_name}), shutdown_on_exit=False
        )
        meter = self._provider.get_meter("test")
        self.orchestrator = OrchestratorMetrics(meter)
        self.target = EngineMetrics("target", meter)
        self.draft = EngineMetrics("draft", meter)

    @property
    def text(self) -> str:
        return generate_latest(self._registry).decode()

    def round(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """The orchestrator commits a round."""
        self.orchestrator.round_ended(
            num_draft_tokens=num_draft_tokens,
            num_accepted_tokens=num_accepted_tokens,
            draft_source="model" if num_draft_tokens else "",
            duration_seconds=0.01,
            times=RoundTimes(0, 0, 0, 0.01, 0, 0),
            seconds_per_token=0.01,
        )

    def request(self, ttft_seconds: float, tpot_seconds: float) -> None:
        """The orchestrator ends a request."""
        self.orchestrator.first_token(ttft_seconds, operation="chat", model="tiny")
        self.orchestrator.request_ended(
            grpc.StatusCode.OK,
            operation="chat",
            model="tiny",
            duration_seconds=1.0,
            finish_reason="length",
            seconds_per_output_token=tpot_seconds,
        )


@contextmanager
def served(emitting: Emitting | bytes, *, status: int = 200) -> Iterator[str]:
    """HOST:PORT of a server that answers with these metrics, as they are then, or with these bytes."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = emitting if isinstance(emitting, bytes) else emitting.text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
