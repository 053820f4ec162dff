"""Turns traces and metrics on, if the environment names a collector. Otherwise the SDK is not even imported."""

import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace

from specdec.telemetry.variables import TelemetrySettingError, read_switches

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

MAX_SPAN_LINKS = 4096
"""A target.forward span links to every sequence of its batch; the SDK's own limit of 128 would cut that short."""


@dataclass(frozen=True, slots=True)
class _Pipeline:
    """One kind of signal on its way to the collector. `flush` blocks while it exports what is left, then stops."""

    flush: Callable[[], None]
    give_up: Callable[[], None]


class Telemetry:
    """What runs in the background for telemetry; nothing while it is off."""

    def __init__(self, pipelines: tuple[_Pipeline, ...] = ()) -> None:
        self._pipelines = pipelines

    @property
    def is_on(self) -> bool:
        """Whether anything is exported."""
        return bool(self._pipelines)

    def shutdown(self, timeout: float) -> None:
        """Export what is left and stop; after `timeout` seconds drop what is still left. Blocks; call it once."""
        deadline = time.monotonic() + timeout
        flushes = [threading.Thread(target=pipeline.flush, daemon=True) for pipeline in self._pipelines]
        for flush in flushes:
            flush.start()
        for pipeline, flush in zip(self._pipelines, flushes, strict=True):
            flush.join(max(0.0, deadline - time.monotonic()))
            if flush.is_alive():
                pipeline.give_up()


def setup_telemetry(service_name: str, *, has_metrics_port: bool = False) -> Telemetry:
    """Install tracer and meter providers as the standard OTEL_* variables say. Once in a process.

    On if OTEL_EXPORTER_OTLP_ENDPOINT is set (or its _TRACES_ or _METRICS_ variant, for that signal alone),
    OTEL_SDK_DISABLED is not true, and OTEL_TRACES_EXPORTER or OTEL_METRICS_EXPORTER is not none.

    Args:
        service_name: service.name, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES gives one.
        has_metrics_port: keep metrics for Prometheus too, in the default registry of its client, whatever the variables
            say.

    Raises:
        TelemetrySettingError: a variable is malformed; names it.
    """
    switches = read_switches()
    if not (switches.has_traces or switches.has_metrics or has_metrics_port):
        return Telemetry()
    resource = _resource(service_name)
    pipelines = []
    try:
        if switches.has_traces:
            pipelines.append(_trace_pipeline(resource))
        if switches.has_metrics or has_metrics_port:
            pipelines.append(_metric_pipeline(resource, exports=switches.has_metrics, has_port=has_metrics_port))
    except ValueError as error:
        # Variables that only the SDK knows, such as its limits on attributes; it names them.
        raise TelemetrySettingError(str(error)) from None
    return Telemetry(tuple(pipelines))


def _resource(service_name: str) -> "Resource":
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    own = {
        "service.name": service_name,
        "service.version": version("specdec"),
        "service.instance.id": str(uuid.uuid4()),
    }
    return Resource.create({**own, **OTELResourceDetector().detect().attributes})


def _trace_pipeline(resource: "Resource") -> _Pipeline:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter()
    limits = SpanLimits(max_links=None if "OTEL_SPAN_LINK_COUNT_LIMIT" in os.environ else MAX_SPAN_LINKS)
    provider = TracerProvider(resource=resource, span_limits=limits, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return _Pipeline(flush=provider.shutdown, give_up=exporter.shutdown)


def _metric_pipeline(resource: "Resource", *, exports: bool, has_port: bool) -> _Pipeline:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader

    readers: list[MetricReader] = []
    give_up: Callable[[], None] = _nothing
    if exports:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

        exporter = OTLPMetricExporter()
        readers.append(PeriodicExportingMetricReader(exporter))
        give_up = exporter.shutdown
    if has_port:
        from specdec.telemetry.exemplars import ExemplarReader

        readers.append(ExemplarReader())
    provider = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
    metrics.set_meter_provider(provider)
    return _Pipeline(flush=provider.shutdown, give_up=give_up)


def _nothing() -> None:
    """Nothing waits to be exported."""
