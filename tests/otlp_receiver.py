"""An OTLP/gRPC collector for tests: keeps what it receives, and waits for what a test expects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from specdec.telemetry import names


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as the collector got it: ids in hex, times in nanoseconds since the epoch."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_span_id: str
    attributes: dict[str, Any]
    linked_span_ids: tuple[str, ...]
    is_error: bool
    status_message: str
    start_time: int
    end_time: int


@dataclass(frozen=True)
class ReceivedPoint:
    """Newest point of one time series. Of a histogram `value` is the sum; of anything else `count` is 1."""

    service: str
    metric: str
    attributes: dict[str, Any]
    value: float
    count: int


class OtlpReceiver:
    """`async with OtlpReceiver() as receiver:` listens on a free port; `spans` and `points` hold what came so far."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self._points: dict[tuple[str, ...], ReceivedPoint] = {}
        self._server = grpc.aio.server()
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(self.spans), self._server)  # type: ignore[no-untyped-call]
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(self._points), self._server)  # type: ignore[no-untyped-call]

    async def __aenter__(self) -> OtlpReceiver:
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.stop(0)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make a process export here, soon after things happen."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._port}",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
        }

    @property
    def points(self) -> list[ReceivedPoint]:
        """The newest point of each time series."""
        return list(self._points.values())

    def spans_named(self, name: str) -> list[ReceivedSpan]:
        """Spans of one kind, in the order of their arrival."""
        return [span for span in self.spans if span.name == name]

    def total(self, metric: str, **attributes: object) -> float:
        """Sum of a counter or gauge, or of the values of a histogram, over the time series that have `attributes`.

        In the keys of `attributes` two underscores stand for a dot.
        """
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}
        return sum(point.value for point in self.points if point.metric == metric and _has(point, wanted))

    async def wait_for_spans(self, enough: Callable[[list[ReceivedSpan]], bool], timeout: float = 10.0) -> None:
        """Return when `enough(spans)` is true; fail the test if it is not within `timeout` seconds."""
        await self.wait_until(lambda: enough(self.spans), timeout)

    async def wait_until(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Return when `condition()` is true; fail the test if it is not within `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not condition():
            assert loop.time() < deadline, f"not received in {timeout:g} s; spans: {[s.name for s in self.spans]}"
            await asyncio.sleep(0.02)

    def undeclared(self) -> set[str]:
        """Whatever was received that is not in the table of names; empty if all is well."""
        found = set()
        for span in self.spans:
            declared = names.SPANS[span.name].attributes if span.name in names.SPANS else ()
            found |= {span.name} - set(names.SPANS)
            found |= {f"{span.name}: {key}" for key in span.attributes if key not in declared}
        for point in self.points:
            declared = names.METRICS[point.metric].attributes if point.metric in names.METRICS else ()
            found |= {point.metric} - set(names.METRICS)
            found |= {f"{point.metric}: {key}" for key in point.attributes if key not in declared}
        return found


class _Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self, spans: list[ReceivedSpan]) -> None:
        self._spans = spans

    async def Export(self, request: trace_service_pb2.ExportTraceServiceRequest, context: object) -> object:  # noqa: N802
        for resource_spans in request.resource_spans:
            service = str(_attributes(resource_spans.resource.attributes)["service.name"])
            for span in (span for scope in resource_spans.scope_spans for span in scope.spans):
                self._spans.append(
                    ReceivedSpan(
                        service,
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        _attributes(span.attributes),
                        tuple(link.span_id.hex() for link in span.links),
                        span.status.code == span.status.STATUS_CODE_ERROR,
                        span.status.message,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                    )
                )
        return trace_service_pb2.ExportTraceServiceResponse()


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def __init__(self, points: dict[tuple[str, ...], ReceivedPoint]) -> None:
        self._points = points

    async def Export(self, request: metrics_service_pb2.ExportMetricsServiceRequest, context: object) -> object:  # noqa: N802
        for resource_metrics in request.resource_metrics:
            resource = _attributes(resource_metrics.resource.attributes)
            service, instance = str(resource["service.name"]), str(resource["service.instance.id"])
            for metric in (metric for scope in resource_metrics.scope_metrics for metric in scope.metrics):
                points: Any = getattr(metric, str(metric.WhichOneof("data"))).data_points
                for point in points:
                    attributes = _attributes(point.attributes)
                    if metric.HasField("histogram"):
                        value, count = point.sum, point.count
                    else:
                        value, count = getattr(point, point.WhichOneof("value")), 1
                    key = (instance, metric.name, repr(sorted(attributes.items())))
                    self._points[key] = ReceivedPoint(service, metric.name, attributes, value, count)
        return metrics_service_pb2.ExportMetricsServiceResponse()


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    if value.HasField("array_value"):
        return [_value(item) for item in value.array_value.values]
    return getattr(value, str(value.WhichOneof("value")))


def _has(point: ReceivedPoint, wanted: dict[str, object]) -> bool:
    return all(point.attributes.get(key) == value for key, value in wanted.items())
