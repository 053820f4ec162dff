"""Spans as they are in OTLP JSON, and as they are used here."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from specdec.waterfall.printable import printable

Value = str | bool | int | float | list[Any]

_MAX_LISTED = 64
_HEX = re.compile(r"[0-9a-fA-F]+")
_ERROR_CODES = (2, "2", "STATUS_CODE_ERROR")


class MalformedSpansError(Exception):
    """What was read is no OTLP; the message says what is wrong, and nothing of its content."""


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened during a span."""

    name: str
    time: int
    """Nanoseconds since the epoch."""
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class RecordedSpan:
    """A span that was exported. Ids are in lower-case hex, times in nanoseconds since the epoch."""

    name: str
    trace_id: str
    span_id: str
    parent_span_id: str
    start: int
    end: int
    attributes: Mapping[str, Value]
    events: tuple[SpanEvent, ...]
    is_error: bool

    @property
    def seconds(self) -> float:
        """Its duration."""
        return max(0, self.end - self.start) / 1e9

    def text(self, name: str) -> str:
        """An attribute; empty if it is not there."""
        value = self.attributes.get(name)
        if isinstance(value, list):
            value = value[0] if value else None
        return "" if value is None else str(value)

    def number(self, name: str) -> float | None:
        """An attribute; None if it is not there, or no number."""
        value = self.attributes.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def count(self, name: str) -> int:
        """An attribute; 0 if it is not there, or no number."""
        number = self.number(name)
        return max(0, int(number)) if number is not None and abs(number) < 1e18 else 0


def spans_of(document: object, wanted: frozenset[str]) -> Iterator[RecordedSpan]:
    """The spans of one export: an object with `resourceSpans`. Metrics and logs have none.

    Args:
        document: what JSON gave.
        wanted: names of spans; others are passed over unread.

    Raises:
        MalformedSpansError: it is something else, or a wanted span lacks what every span has.
    """
    for resource in _objects(_object(document, "an export"), "resourceSpans"):
        for scope in (*_objects(resource, "scopeSpans"), *_objects(resource, "instrumentationLibrarySpans")):
            for span in _objects(scope, "spans"):
                if span.get("name") in wanted:
                    yield _span(span)


def _span(span: Mapping[str, Any]) -> RecordedSpan:
    status = _get(span, "status")
    return RecordedSpan(
        name=str(span["name"]),
        trace_id=_id(_get(span, "traceId"), 16, "traceId"),
        span_id=_id(_get(span, "spanId"), 8, "spanId"),
        parent_span_id=_id(parent, 8, "parentSpanId") if (parent := _get(span, "parentSpanId")) else "",
        start=_nanoseconds(span, "startTimeUnixNano"),
        end=_nanoseconds(span, "endTimeUnixNano"),
        attributes=_attributes(span),
        events=tuple(
            SpanEvent(printable(str(event.get("name"))), _nanoseconds(event, "timeUnixNano"), _attributes(event))
            for event in _objects(span, "events")
        ),
        is_error=isinstance(status, dict) and status.get("code") in _ERROR_CODES,
    )


def _get(holder: Mapping[str, Any], name: str) -> Any:
    """A field by its name in JSON, or as it is called in the proto; None if there is neither."""
    return holder[name] if name in holder else holder.get(_in_proto(name))


@lru_cache(maxsize=64)
def _in_proto(name: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise MalformedSpansError(f"{what} is not a JSON object")
    return value


def _objects(holder: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    value = _get(holder, name)
    if value is None:
        return
    if not isinstance(value, list):
        raise MalformedSpansError(f"{name} is not a list")
    for entry in value:
        yield _object(entry, f"an entry of {name}")


def _id(value: object, num_bytes: int, name: str) -> str:
    """OTLP has ids in hex; plain proto3 JSON, which some write, in base64."""
    if isinstance(value, str):
        if len(value) == 2 * num_bytes and _HEX.fullmatch(value):
            return value.lower()
        try:
            decoded = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            decoded = b""
        if len(decoded) == num_bytes:
            return decoded.hex()
    raise MalformedSpansError(f"a span's {name} is not {num_bytes} bytes in hex")


def _nanoseconds(holder: Mapping[str, Any], name: str) -> int:
    number = _integer(_get(holder, name))
    if number is None or not 0 <= number < 2**64:
        raise MalformedSpansError(f"{name} is not a time in nanoseconds")
    return number


def _integer(value: object) -> int | None:
    if isinstance(value, str):
        return int(value) if len(value) <= 20 and re.fullmatch(r"-?[0-9]+", value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if abs(value) < 2.0**64 else None


def _attributes(holder: Mapping[str, Any]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for entry in _objects(holder, "attributes"):
        value = _value(entry.get("value"))
        if value is not None:
            found[str(entry.get("key"))] = value
    return found


def _value(value: object) -> Value | None:
    """Of an attribute; None if it is of a kind that is not used here."""
    if not isinstance(value, dict):
        return None
    text, number = _get(value, "stringValue"), _get(value, "intValue")
    flag, real, array = _get(value, "boolValue"), _get(value, "doubleValue"), _get(value, "arrayValue")
    if isinstance(text, str):
        return printable(text)
    if number is not None:
        return _integer(number)
    if isinstance(flag, bool):
        return flag
    if isinstance(real, int | float) and not isinstance(real, bool) and abs(real) < float("inf"):
        return float(real)
    if isinstance(array, dict) and isinstance(entries := array.get("values"), list):
        return [found for entry in entries[:_MAX_LISTED] if (found := _value(entry)) is not None]
    return None
