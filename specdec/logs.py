"""Log lines on standard error: text for people, or one JSON object a line for machines. They never hold a prompt."""

import json
import logging
import sys
import time
from datetime import datetime, timezone
from typing import Literal

from opentelemetry import trace

PROJECT_LOGGERS = ("specdec", "draft_service", "target_service", "orchestrator", "benchmarks")
"""Loggers that follow the chosen level. Libraries log from warning up: a debug level is for our lines, not theirs."""

_EXPORTER_LOGGER = "opentelemetry"
_EXPORTER_LINE_INTERVAL_SECONDS = 60.0


def configure_logs(
    log_format: Literal["text", "json"], level: Literal["debug", "info", "warning", "error"], *, service: str
) -> None:
    """Send the log of this process to standard error, in place of whatever was configured before.

    Args:
        log_format: text for people, or one JSON object a line.
        level: least severe line of this project's own loggers.
        service: name put on every line.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(service) if log_format == "json" else _TextFormatter(service))
    handler.addFilter(_ExporterLines())
    handler.addFilter(is_no_poller_noise)
    threshold: int = getattr(logging, level.upper())
    logging.basicConfig(handlers=[handler], level=max(threshold, logging.WARNING), force=True)
    for name in PROJECT_LOGGERS:
        logging.getLogger(name).setLevel(threshold)
    logging.captureWarnings(True)


class _TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z info    target message`. Only a traceback takes lines of its own."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage().replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        line = f"{_timestamp(record)} {record.levelname.lower():<7} {self._service} {message}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _JsonFormatter(logging.Formatter):
    """One object: time, level, service, logger, message, and where they exist trace_id, span_id and exception."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            **_span_ids(record),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class _ExporterLines(logging.Filter):
    """One line a minute from each logger of the telemetry library, which repeats itself while the collector is away."""

    def __init__(self) -> None:
        super().__init__()
        self._next_line_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] != _EXPORTER_LOGGER:
            return True
        now = time.monotonic()
        if now < self._next_line_at.get(record.name, 0.0):
            return False
        self._next_line_at[record.name] = now + _EXPORTER_LINE_INTERVAL_SECONDS
        return True


def is_no_poller_noise(record: logging.LogRecord) -> bool:
    """Whether a record is none of those by which asyncio reports that gRPC's poller woke up for nothing.

    Where two event loops share grpc.aio's wake-up pipe, both are woken and one finds it empty: BlockingIOError, which
    asyncio logs as an error with a traceback, and which harms nobody.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not (
        record.name == "asyncio"
        and isinstance(error, BlockingIOError)
        and "PollerCompletionQueue._handle_events" in record.getMessage()
    )


def _timestamp(record: logging.LogRecord) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(record.created, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _span_ids(record: logging.LogRecord) -> dict[str, str]:
    """The span given with the record (`extra=tracing.log_fields(span)`), else the current one, else nothing."""
    if hasattr(record, "trace_id"):
        return {"trace_id": record.trace_id, "span_id": getattr(record, "span_id", "")}
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}
