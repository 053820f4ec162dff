"""A file of traces, as the file exporter of an OpenTelemetry collector writes it: OTLP in JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from specdec.telemetry import names
from specdec.waterfall.spans import MalformedSpansError, RecordedSpan, spans_of

WANTED = frozenset(
    each.name for each in (names.GENERATE, names.PREFILL, names.ROUND, names.VERIFY, names.TARGET_WINDOW)
)
_MAX_LINE_BYTES = 64 * 1024 * 1024
_MAX_FILE_BYTES = 1024 * 1024 * 1024
_MAX_SPANS = 1_000_000


class SpanFileError(Exception):
    """The file cannot be read, or holds something else. The message names the line, and nothing of its content."""


@dataclass(frozen=True)
class SpanFile:
    """The spans of a file that tell of rounds."""

    spans: list[RecordedSpan]
    is_cut: bool
    """Its last line is incomplete, as where the collector is still writing; it was left out."""


def read_span_file(path: Path | BinaryIO) -> SpanFile:
    """Read one object of `resourceSpans` a line, or a single one over many lines.

    Raises:
        SpanFileError: it cannot be read, is too large, or is no OTLP in JSON.
    """
    try:
        if isinstance(path, Path):
            with path.open("rb") as file:
                return _read(file)
        return _read(path)
    except OSError as error:
        raise SpanFileError((error.strerror or "it cannot be read").lower()) from None


def _read(file: BinaryIO) -> SpanFile:
    spans: list[RecordedSpan] = []
    number = num_bytes = 0
    broken: tuple[int, str] | None = None
    while line := file.readline(_MAX_LINE_BYTES + 1):
        number += 1
        num_bytes += len(line)
        if len(line) > _MAX_LINE_BYTES or num_bytes > _MAX_FILE_BYTES:
            raise SpanFileError(f"line {number}: it is too large")
        if not line.strip():
            continue
        if broken is not None:
            raise SpanFileError(f"line {broken[0]}: {broken[1]}")
        try:
            document = _parsed(line)
        except MalformedSpansError as error:
            if number == 1:
                return _one_document(line, file, str(error))
            broken = (number, str(error))
            continue
        _take(document, spans, number)
    # Only the last line may be incomplete.
    return SpanFile(spans, is_cut=broken is not None)


def _one_document(beginning: bytes, file: BinaryIO, problem: str) -> SpanFile:
    """The file is one object over many lines, or nothing that can be read."""
    whole = beginning + file.read(_MAX_LINE_BYTES + 1 - len(beginning))
    if len(whole) > _MAX_LINE_BYTES:
        raise SpanFileError(f"line 1: {problem}")
    if whole == beginning:
        raise SpanFileError(f"line 1: {problem}")
    try:
        document = _parsed(whole)
    except MalformedSpansError as error:
        raise SpanFileError(str(error)) from None
    spans: list[RecordedSpan] = []
    _take(document, spans, 1)
    return SpanFile(spans, is_cut=False)


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except UnicodeDecodeError:
        raise MalformedSpansError("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise MalformedSpansError(f"it is not JSON: {error.msg.lower()} at character {error.pos + 1}") from None
    except (RecursionError, ValueError):
        # A number of thousands of digits is a ValueError.
        raise MalformedSpansError("it is not JSON that can be read") from None


def _take(document: object, spans: list[RecordedSpan], number: int) -> None:
    # One export, or a list of them, as some tools gather lines.
    for each in document if isinstance(document, list) else [document]:
        try:
            spans.extend(spans_of(each, WANTED))
        except MalformedSpansError as error:
            raise SpanFileError(f"line {number}: {error}") from None
        if len(spans) > _MAX_SPANS:
            raise SpanFileError(
                f"line {number}: more than {_MAX_SPANS} spans of rounds; cut the file into smaller ones"
            )
